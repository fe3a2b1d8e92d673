#!/bin/bash
# node.sh: process 1 of a node. `create`, in new namespaces, makes it a member of the cluster; `settle` finds a mount
# namespace from which Slurm can make others; `boot` mounts what is the node's own and starts munged and slurmd.
# shellcheck disable=SC2154  # tier_mb: from the settings
set -euo pipefail
base=/.cluster
here=$(dirname "$(realpath "$0")")
# shellcheck source=tests/cluster/cgroup.sh
. "$here/cgroup.sh"
# shellcheck source=tests/cluster/site.sh
. "$here/site.sh"
# shellcheck source=/dev/null
. "$base/settings"

create() {
    local pid
    # /proc is the cluster's still, and so is this number.
    read -r pid _ < /proc/self/stat
    echo "$pid" > "$base/$node.pid"
    mount -t proc proc /proc
    cg_join "$node"
    hostname "$node"
    # A node has one hardware address in all its lives: others know it from the one before.
    ip link add eth0 address "$(printf '02:00:00:00:00:%02x' "${node#node}")" type veth peer name "$node" netns login
    ip addr add "$network.${node#node}/24" dev eth0
    ip link set lo up
    ip link set eth0 up
    nsenter --net=/run/netns/login ip link set "$node" master cluster up
    exec "$0" settle "$node" "$(taskset -cp $$ | sed 's/.*: //')" $((8 + 2 * $(nproc --all)))
}

# job_container/tmpfs keeps a job's mount namespace by binding it to a file. The kernel refuses (EINVAL) when that
# namespace has a lower number than the one of slurmd, and Linux 6.18 deals numbers in batches, a batch to each CPU.
# So move to a CPU whose numbers are lower, until a namespace made on any CPU can be bound from here.
settle() {
    local all=$1 moves=$2 cpu probe=$base/$node.probe
    [ "$moves" -gt 0 ] || { echo "node.sh: the kernel lets no mount namespace be bound to a file" >&2; exit 1; }
    touch "$probe"
    for cpu in $(seq 0 $(($(nproc --all) - 1))); do
        taskset -c "$cpu" true 2> /dev/null || continue
        taskset -c "$cpu" unshare --mount="$probe" true 2> /dev/null ||
            exec taskset -c "$cpu" unshare --mount --propagation private "$0" settle "$node" "$all" $((moves - 1))
        umount "$probe"
    done
    taskset -cp "$all" $$ > /dev/null
    exec unshare --cgroup "$0" boot "$node"
}

# The emulated devices of a node, beside those of its sysfs: in that, no folder can be made.
play_devices() {
    local entry all=$base/$node.devices
    mkdir -p "$all"
    mount -t tmpfs -o mode=755,size=1m devices "$all"
    for entry in "$1"/* "$base/sys/$node"/*; do
        mkdir -p "$all/${entry##*/}"
        mount --rbind "$entry" "$all/${entry##*/}"
    done
    mount --move "$all" "$1"
}

boot() {
    mkdir -p "$base/$node.sys"
    cg_sysfs "$node" "$base/$node.sys"
    [ ! -d "$base/sys/$node" ] || play_devices "$base/$node.sys"
    # slurmd takes the first mount of control groups that it finds listed for its own: the login node's may not stay below.
    umount -l /sys
    mount --move "$base/$node.sys" /sys
    mount -t tmpfs -o "mode=1777,size=${tier_mb}m" scm /scm
    mount -t tmpfs -o mode=1777,size=1g tmp /tmp
    mount -t tmpfs -o mode=1777,size=1g shm /dev/shm
    mount -t tmpfs -o mode=755,size=1g run /run
    # As udev makes it on a node; this machine's may be for root alone.
    if mknod -m 666 /run/fuse c 10 229 2> /dev/null && [ -e /dev/fuse ]; then
        mount --bind /run/fuse /dev/fuse
    fi
    cg_make init
    cg_join init
    cg_delegate ""
    start_munge
    # -b: the node has started, whatever the uptime of this machine.
    "${by_clock[@]}" slurmd -b < /dev/null > /dev/null
    touch "$base/$node.up"
    sleep infinity &
    wait $!
}

node=$2
case $1 in
    create) create ;;
    settle) settle "$3" "$4" ;;
    boot) boot ;;
esac
