# shellcheck shell=bash
# Graphs of an external store that is a GlusterFS server with one brick: for bench/store.sh and store.sh. Sourced.

# volume NAME TYPE BELOW [OPTION...]: a layer of a GlusterFS graph.
volume() {
    printf 'volume %s\n type %s\n' "$1" "$2"
    [ -z "$3" ] || printf ' subvolumes %s\n' "$3"
    [ $# -le 3 ] || printf ' option %s\n' "${@:4}"
    echo end-volume
}

# server_graph BRICK PORT US: each operation takes US microseconds longer.
server_graph() {
    local top=locks
    volume posix storage/posix "" "directory $1"
    volume locks features/locks posix
    if [ "$3" -gt 0 ]; then
        top=delay
        volume delay debug/delay-gen locks "delay-duration $3" "delay-percentage 100" \
            "enable lookup,stat,open,opendir,readdir,readdirp,read,write,flush,fsync,create,mkdir,unlink,rename,truncate,setattr"
    fi
    volume threads performance/io-threads "$top" "thread-count 32"
    volume brick debug/io-stats threads "unique-id brick"
    volume server protocol/server brick "transport-type tcp" "transport.socket.listen-port $2" "auth.addr.brick.allow *"
}

# client_graph HOST PORT
client_graph() {
    volume remote protocol/client "" "transport-type tcp" "remote-host $1" "remote-port $2" "remote-subvolume brick"
    volume behind performance/write-behind remote "cache-size 4MB"
    volume ahead performance/read-ahead behind
    volume open performance/open-behind ahead
}
