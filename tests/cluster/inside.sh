#!/bin/bash
# inside.sh: the cluster from within. `root` and `boot` make process 1 of the cluster, which is its login node and runs
# slurmctld; the other commands run beside it. Called by slurm-cluster only.
set -euo pipefail
base=/.cluster
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/cluster/cgroup.sh
. "$here/cgroup.sh"
# shellcheck source=tests/cluster/site.sh
. "$here/site.sh"
# shellcheck source=tests/cluster/store.sh
. "$here/store.sh"

fail() {
    printf 'slurm-cluster: %s\n' "$@" >&2
    exit 1
}

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}

settings() {
    # shellcheck source=/dev/null
    . "$1/settings"
}

# root DIR: a root of our own, which shows the machine's folders with /etc, /run, /sys and /proc made again.
make_root() {
    local dir=$1 pid path name
    settings "$dir"
    # /proc is the machine's still, and so is this number.
    read -r pid _ < /proc/self/stat
    echo "$pid" > "$dir/init.pid"
    # shellcheck disable=SC2154  # from the settings
    cg_join "$group"
    mount -t tmpfs -o mode=755,size=64m root /run
    for path in /*; do
        name=${path#/}
        case $name in proc | sys | run | etc | scm | shared) continue ;; esac
        if [ -L "$path" ]; then
            cp -P "$path" /run/
        elif [ -d "$path" ]; then
            mkdir "/run/$name"
            mount --rbind "$path" "/run/$name"
        fi
    done
    mkdir -p /run/{proc,sys,run,scm,shared,.old}
    cp -a /etc /run/etc
    mkdir "/run$base"
    cp -r "$here" "/run$base/lib"
    cp "$dir/settings" "/run$base/"
    [ ! -d "$dir/etc" ] || cp -r "$dir/etc" "/run$base/etc"
    if [ -d "$dir/sys" ]; then
        mkdir "/run$base/sys"
        mount --bind "$dir/sys" "/run$base/sys"
    fi
    mount --bind "$dir/shared" /run/shared
    mount --bind "$dir/log" /run/var/log/slurm
    cg_sysfs "$group" /run/sys
    mount -t proc proc /run/proc
    cd /run
    pivot_root . .old
    umount -l .old
    rmdir .old
    exec unshare --cgroup "$base/lib/inside.sh" boot
}

# The login node; ends, and the whole cluster with it, when standard input does.
boot() {
    settings "$base"
    cg_make login
    cg_join login
    cg_delegate ""
    mount -t tmpfs -o mode=755,size=64m run /run
    mount -t tmpfs -o mode=1777,size=1g shm /dev/shm
    # Open MPI names its folder there by host, user and process number, which other clusters on this machine may have too.
    mount -t tmpfs -o mode=1777,size=1g tmp /tmp
    mkdir -m 755 /run/netns
    touch /run/netns/login
    mount --bind /proc/self/ns/net /run/netns/login
    network_up
    chmod 1777 /shared
    write_users /etc /shared
    write_hosts /etc
    write_munge /etc
    write_slurm /etc
    write_open_mpi /etc
    start_munge
    start_ctld
    local i
    for ((i = 1; i <= nodes; i++)); do start_node "node$i" & done
    wait_for 180 all_idle || fail "the nodes did not come up within three minutes:" "$(sinfo -N -l -R; sinfo -N -l)"
    echo ready
    exec > /dev/null
    cat <&0 > /dev/null &
    wait $!
}

network_up() {
    hostname login
    ip link set lo up
    ip link add cluster type bridge
    ip addr add "$login_address/24" dev cluster
    ip link set cluster up
}

start_ctld() {
    install -d -o slurm -g slurm -m 755 /run/slurmctld
    chown slurm: /var/log/slurm
    # shellcheck disable=SC2154  # by_clock: from the settings
    setpriv --reuid slurm --regid slurm --init-groups "${by_clock[@]}" slurmctld < /dev/null > /dev/null
    wait_for 60 scontrol ping || fail "slurmctld does not answer; see slurmctld.log in the cluster's log folder"
}

# Its settings of nodes are not on disk yet when it dies soon after: `--forget-nodes` has it so.
restart_ctld() {
    settings "$base"
    # It may be dead already.
    kill -KILL "$(cat /run/slurmctld/pid)" 2> /dev/null || true
    [ "${1:-}" != --forget-nodes ] || rm -f /run/slurmctld/state/node_state*
    start_ctld
}

all_idle() {
    [ "$(sinfo -h -N -t idle -o %N | wc -l)" -eq "$nodes" ]
}

known_node() {
    settings "$base"
    if ! [[ ${1:-} =~ ^node([1-9][0-9]*)$ ]] || [ "${BASH_REMATCH[1]}" -gt "$nodes" ]; then
        fail "there is no node '${1:-}': they are node1 to node$nodes"
    fi
}

node_pid() {
    [ -s "$base/$1.pid" ] || fail "$1 is off: start it with start-node $1"
    cat "$base/$1.pid"
}

start_node() {
    local uptime
    known_node "$1"
    [ ! -e "$base/$1.pid" ] || fail "$1 is on: switch it off with kill-node $1"
    # The remains of an earlier life.
    ip link del "$1" 2> /dev/null || true
    cg_remove "$1" || fail "control groups of $1's earlier life cannot be removed"
    cg_make "$1"
    # Its clocks that count from the start begin now: they differ between nodes, as everywhere but on one machine.
    read -r uptime _ < /proc/uptime
    setsid unshare --fork --kill-child --pid --mount --net --uts --ipc --propagation private \
        --time --monotonic "-${uptime%.*}" --boottime "-${uptime%.*}" \
        "$base/lib/node.sh" create "$1" < /dev/null > /dev/null 2>> "/var/log/slurm/$1.log" &
    wait_for 120 [ -e "$base/$1.up" ] || fail "$1 did not come up; see $1.log in the cluster's log folder"
    [ ! -d "$base/store" ] || store_at "$1"
}

# A power cut: it sends no last message, and its memory is gone.
kill_node() {
    local pid
    known_node "$1"
    pid=$(node_pid "$1")
    ip link set "$1" down
    kill -KILL "$pid"
    wait_for 60 [ ! -e "/proc/$pid" ] || fail "$1 does not die"
    rm -f "$base/$1.pid" "$base/$1.up"
}

link() {
    known_node "$2"
    node_pid "$2" > /dev/null
    ip link set "$2" "$1"
}

# shape_link NODE RATE: megabit a second both ways, or `off`.
shape_link() {
    local pid rate=${2:-}
    known_node "$1"
    pid=$(node_pid "$1")
    if [ "$rate" = off ]; then
        tc qdisc del dev "$1" root
        nsenter -t "$pid" -n tc qdisc del dev eth0 root
        return
    fi
    [[ $rate =~ ^[1-9][0-9]*$ ]] || fail "'$rate' is no rate: give whole Mbit/s, or off"
    limit "$rate" "$1"
    limit "$rate" eth0 nsenter -t "$pid" -n
}

# limit MBIT DEVICE [COMMAND...]: what leaves by it, which COMMAND can reach. A burst of 4 ms, but no less than one 64 KiB packet.
limit() {
    local burst=$(($1 * 500 > 65536 ? $1 * 500 : 65536))
    "${@:3}" tc qdisc replace dev "$2" root tbf rate "$1mbit" burst "$burst" latency 50ms
}

# enter PLACE USER COMMAND...
enter() {
    local place=$1
    shift
    if [ "$place" = login ]; then
        cg_join login
        as_user "$@"
    fi
    known_node "$place"
    exec nsenter -t "$(node_pid "$place")" --mount --pid --net --uts --ipc --time --cgroup \
        "$base/lib/inside.sh" as "$@"
}

as_user() {
    local user=$1 home
    shift
    home=$(getent passwd "$user" | cut -d : -f 6) || fail "there is no user '$user' in the cluster: ${users[*]%:*} root"
    cd "$home"
    set -- env PATH=/shared/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
    settings "$base"
    [ "$user" != root ] || set -- "${by_clock[@]}" "$@"
    exec setpriv --reuid "$user" --regid "$user" --init-groups --reset-env --pdeathsig KILL "$@"
}

command=$1
shift
case $command in
    root) make_root "$@" ;;
    boot) boot ;;
    enter) enter "$@" ;;
    as)
        cg_join init
        as_user "$@"
        ;;
    start-node) start_node "$@" ;;
    kill-node) kill_node "$@" ;;
    cut-link) link down "$@" ;;
    heal-link) link up "$@" ;;
    shape-link) shape_link "$@" ;;
    add-store) store_up "$@" ;;
    restart-ctld) restart_ctld "$@" ;;
    *) fail "unknown command $command" ;;
esac
