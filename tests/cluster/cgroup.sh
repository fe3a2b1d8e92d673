# shellcheck shell=bash
# Control groups of either version, behind one set of functions; sourced by the other scripts of this folder.
# A GROUP is a path below the root of the hierarchies as the caller sees them.
cg_root=/sys/fs/cgroup
# The hierarchies of version 1 that Slurm's plugins want.
cg_hierarchies=(memory freezer cpuset devices cpuacct)

# Prints v1, v2, or none where nothing can contain a job's processes and its memory.
cg_version() {
    local hierarchy
    if [ -e "$cg_root/cgroup.controllers" ]; then
        if grep -qw memory "$cg_root/cgroup.controllers"; then echo v2; else echo none; fi
        return
    fi
    for hierarchy in "${cg_hierarchies[@]}"; do
        [ -e "$cg_root/$hierarchy/cgroup.procs" ] || { echo none; return; }
    done
    echo v1
}

# cg_folders GROUP [ROOT]: its folder in each hierarchy.
cg_folders() {
    local root=${2:-$cg_root} hierarchy
    case $(cg_version) in
        v1) for hierarchy in "${cg_hierarchies[@]}"; do echo "$root/$hierarchy/$1"; done ;;
        v2) echo "$root/$1" ;;
    esac
}

# cg_make GROUP, below a group that exists.
cg_make() {
    local folder setting
    for folder in $(cg_folders "$1"); do
        mkdir -p "$folder"
        # Version 1 lets nobody into a cpuset that is empty.
        for setting in cpuset.cpus cpuset.mems; do
            [ ! -e "$folder/cgroup.clone_children" ] || [ ! -e "$folder/$setting" ] || cat "$folder/../$setting" > "$folder/$setting"
        done
    done
}

# cg_delegate GROUP: version 2 gives a group only the controllers that its parent, itself without processes, hands down.
cg_delegate() {
    local controllers controller
    [ "$(cg_version)" = v2 ] || return 0
    read -ra controllers < "$cg_root/$1/cgroup.controllers"
    for controller in "${controllers[@]}"; do
        case $controller in cpuset | cpu | memory | pids) echo "+$controller" > "$cg_root/$1/cgroup.subtree_control" ;; esac
    done
}

# Moves the calling shell.
cg_join() {
    local folder
    for folder in $(cg_folders "$1"); do echo 0 > "$folder/cgroup.procs"; done
}

# cg_remove GROUP: it and all below it, once their processes are gone; fails when some stay.
cg_remove() {
    local folder tries
    for folder in $(cg_folders "$1"); do
        for tries in {1..50}; do
            find "$folder" -depth -type d -exec rmdir {} + 2> /dev/null || true
            [ -d "$folder" ] || break
            [ "$tries" -lt 50 ] || return 1
            sleep 0.1
        done
    done
}

# cg_sysfs GROUP TARGET: a sysfs of this network namespace, with the hierarchies in it as seen from inside GROUP.
cg_sysfs() {
    local version hierarchy
    version=$(cg_version)
    mount -t sysfs sysfs "$2"
    case $version in
        v1)
            mount -t tmpfs -o mode=755,size=1m cgroup "$2/fs/cgroup"
            for hierarchy in "${cg_hierarchies[@]}"; do
                mkdir "$2/fs/cgroup/$hierarchy"
                mount --bind "$cg_root/$hierarchy/$1" "$2/fs/cgroup/$hierarchy"
            done
            ;;
        v2) mount --bind "$cg_root/$1" "$2/fs/cgroup" ;;
    esac
}
