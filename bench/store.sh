#!/bin/bash
# store.sh: a slow external store on this machine, shared as a site's is, that no page cache hides: a GlusterFS server in a network
# namespace of its own, with its files on tmpfs; the link to it is shaped, and each of its operations delayed. Needs root.
#
#   store.sh up DIR MBIT US     DIR/mnt is the store: MBIT Mbit/s each way, US microseconds an operation (0: no delay)
#   store.sh fresh DIR          mounts it anew: nothing of it is in this machine's caches
#   store.sh down DIR
set -euo pipefail
# shellcheck source=tests/cluster/gluster.sh
. "$(dirname "$(realpath "$0")")/../tests/cluster/gluster.sh"

fail() {
    printf 'store.sh: %s\n' "$@" >&2
    exit 1
}
[ $# -ge 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
dir=$(realpath -m "$2")
# Several at once: names and addresses by a number that the folder's name gives. Interface names have at most 15 bytes.
tag=$(printf %s "$dir" | cksum | cut -d ' ' -f 1)
name=tarn$((tag % 100000))
net=10.$((64 + tag % 64)).$((tag / 64 % 256))
port=24999

# shape MBIT DEVICE [NAMESPACE]: the burst holds 4 ms, and no less than two of the kernel's 64 KiB packets.
shape() {
    local burst=$(($1 * 500 > 131072 ? $1 * 500 : 131072)) where=()
    [ -z "${3:-}" ] || where=(-n "$3")
    tc "${where[@]}" qdisc add dev "$2" root tbf rate "$1mbit" burst "$burst" latency 20ms
}

attach() {
    glusterfs -f "$dir/client.vol" -l "$dir/client.log" -p "$dir/client.pid" "$dir/mnt"
    for _ in $(seq 100); do
        ! stat "$dir/mnt/.store" > /dev/null 2>&1 || return 0
        sleep 0.1
    done
    fail "the store cannot be mounted:" "$(tail -n 5 "$dir/client.log" "$dir/server.log")"
}

detach() {
    ! mountpoint -q "$dir/mnt" || umount "$dir/mnt"
    [ -s "$dir/client.pid" ] || return 0
    local client
    client=$(cat "$dir/client.pid")
    # Mount namespaces that others have made meanwhile (a test cluster's) may hold the mount, and so keep the client.
    if ! timeout 5 tail -f /dev/null --pid "$client" && grep -qsaF "$dir/client.vol" "/proc/$client/cmdline"; then
        kill "$client"
        timeout 5 tail -f /dev/null --pid "$client" || kill -KILL "$client"
    fi
}

up() {
    command -v glusterfsd ip tc > /dev/null || fail "GlusterFS or iproute2 is missing: scripts/deps.sh openfoam"
    mkdir -p "$dir/mnt" "$dir/brick"
    trap '"$0" down "$dir"' ERR
    mount -t tmpfs -o mode=1777 brick "$dir/brick"
    # Its root has the rights of what it is mounted on.
    touch "$dir/brick/.store"
    ip netns add "$name"
    ip link add "${name}c" type veth peer name "${name}s" netns "$name"
    ip addr add "$net.1/24" dev "${name}c"
    ip link set "${name}c" up
    ip -n "$name" addr add "$net.2/24" dev "${name}s"
    ip -n "$name" link set "${name}s" up
    ip -n "$name" link set lo up
    shape "$1" "${name}c"
    shape "$1" "${name}s" "$name"
    server_graph "$dir/brick" "$port" "$2" > "$dir/server.vol"
    client_graph "$net.2" "$port" > "$dir/client.vol"
    ip netns exec "$name" glusterfsd -f "$dir/server.vol" -l "$dir/server.log" -p "$dir/server.pid"
    attach
}

down() {
    detach || umount -l "$dir/mnt"
    [ ! -s "$dir/server.pid" ] || kill "$(cat "$dir/server.pid")" 2> /dev/null || true
    ip netns del "$name" 2> /dev/null || true
    ip link del "${name}c" 2> /dev/null || true
    for _ in $(seq 50); do
        mountpoint -q "$dir/brick" || break
        umount "$dir/brick" 2> /dev/null || sleep 0.1
    done
    rm -f "$dir"/{client,server}.{pid,vol,log}
}

case $1 in
    up) up "${3:?Mbit/s}" "${4:?microseconds}" ;;
    fresh)
        detach
        attach
        ;;
    down) down ;;
    *) fail "$1: there are up, fresh and down" ;;
esac
