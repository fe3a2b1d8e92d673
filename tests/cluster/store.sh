# shellcheck shell=bash
# shellcheck disable=SC2154  # base, nodes: of inside.sh and the settings
# An external store of the cluster: a GlusterFS server on the login node, its files on a tmpfs, that all nodes mount at /store. Each node
# has a network of its own with it, whose link is held to a rate; no page cache hides it. Sourced by inside.sh.
# shellcheck source=tests/cluster/gluster.sh
. "$here/gluster.sh"
store_port=24998
store_mib=4096

# store_up MBIT US: so many Mbit/s to and from each node, each operation US microseconds longer.
store_up() {
    local i pids=()
    settings "$base"
    [[ ${1:-} =~ ^[1-9][0-9]*$ && ${2:-} =~ ^[0-9]+$ ]] || fail "the store needs whole Mbit/s and microseconds: '${1:-}' '${2:-}'"
    command -v glusterfsd glusterfs tc > /dev/null || fail "GlusterFS or iproute2 is missing: scripts/deps.sh test"
    [ ! -d "$base/store" ] || fail "the cluster has a store already"
    mkdir -p /store "$base/store/brick"
    echo "$1" > "$base/store/mbit"
    mount -t tmpfs -o "mode=1777,size=${store_mib}m" brick "$base/store/brick"
    # Its root has the rights of what it is mounted on.
    touch "$base/store/brick/.store"
    server_graph "$base/store/brick" "$store_port" "$2" > "$base/store/server.vol"
    glusterfsd -f "$base/store/server.vol" -l /var/log/slurm/store.log -p /run/store.pid
    mount_store login 127.0.0.1
    for ((i = 1; i <= nodes; i++)); do
        store_at "node$i" &
        pids+=($!)
    done
    for i in "${pids[@]}"; do wait "$i" || fail "a node has no store; see store-node*.log in the cluster's log folder"; done
}

# store_at NODE: its link to the store, and the mount.
store_at() {
    local number=${1#node} pid mbit
    pid=$(node_pid "$1")
    mbit=$(cat "$base/store/mbit")
    # The remains of the node's earlier life.
    ip link del "s$number" 2> /dev/null || true
    ip link add "s$number" type veth peer name store netns "$pid"
    ip addr add "10.78.$number.1/30" dev "s$number"
    ip link set "s$number" up
    nsenter -t "$pid" -n ip addr add "10.78.$number.2/30" dev store
    nsenter -t "$pid" -n ip link set store up
    limit "$mbit" "s$number"
    limit "$mbit" store nsenter -t "$pid" -n
    (mount_store "$1" "10.78.$number.1")
}

# mount_store PLACE HOST: a client of the server at HOST, in that place's namespaces.
mount_store() {
    client_graph "$2" "$store_port" > "$base/store/$1.vol"
    local client=(glusterfs --direct-io-mode=enable -f "$base/store/$1.vol" -l "/var/log/slurm/store-$1.log" /store)
    if [ "$1" = login ]; then
        "${client[@]}"
        wait_for 20 [ -e /store/.store ] || fail "the store cannot be mounted; see store*.log in the cluster's log folder"
    else
        "$base/lib/inside.sh" enter "$1" root "${client[@]}"
        wait_for 20 "$base/lib/inside.sh" enter "$1" root stat /store/.store
    fi
}
