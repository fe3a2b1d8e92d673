# shellcheck shell=bash
# The abilities of this machine, found out by trying; sourced by slurm-cluster.
programs=(slurmctld slurmd sbatch munged ip tc nsenter setpriv taskset flock pivot_root)

# Each prints why not, and fails.
needs_root() {
    [ "$(id -u)" -eq 0 ] || { echo "run as root: several users, networks and control groups need it"; return 1; }
}

needs_programs() {
    local program
    for program in "${programs[@]}"; do
        command -v "$program" > /dev/null || { echo "$program is not installed: scripts/deps.sh test"; return 1; }
    done
}

needs_namespaces() {
    local error
    error=$(unshare --fork --pid --mount --net --uts --ipc --cgroup --time --boottime -1 --mount-proc \
        sh -c 'mount -t tmpfs x /mnt && mount -t sysfs x /mnt && mount --bind /mnt /tmp' 2>&1) ||
        { echo "namespaces and mounts in them are refused: $error"; return 1; }
}

needs_network() {
    local error
    error=$(unshare --net sh -c 'ip link add name br0 type bridge && ip link add name v0 type veth peer name v1' 2>&1) ||
        { echo "bridge or veth is refused: $error"; return 1; }
}

# Of `--clock file` alone.
faketime='/usr/lib/*/faketime/libfaketimeMT.so.1'
needs_clock() {
    compgen -G "$faketime" > /dev/null || { echo "libfaketime is not installed: scripts/deps.sh test" >&2; return 1; }
}

# Cannot be had everywhere; with the losses without them.
wants_memory() {
    [ "$(cg_version)" != none ] || { echo "no control groups for memory: jobs are neither contained nor killed for memory"; return 1; }
}

wants_shaping() {
    unshare --net sh -c 'ip link add name v0 type veth peer name v1 && tc qdisc add dev v0 root tbf rate 1mbit burst 64k latency 50ms' 2> /dev/null ||
        { echo "the kernel has no tbf queue: shape-link fails"; return 1; }
}

wants_oom() {
    (echo -1 > /proc/self/oom_score_adj) 2> /dev/null ||
        { echo "no CAP_SYS_RESOURCE: slurmstepd cannot save itself when a job's memory is full, and such a job ends without a verdict"; return 1; }
}

wants_pmix() {
    compgen -G '/usr/lib/*/slurm*/mpi_pmix*.so' > /dev/null || { echo "Slurm has no PMIx: MPI programs do not start under srun"; return 1; }
}

wants_fuse() {
    local error
    error=$(unshare --mount sh -c 'mount -t tmpfs -o dev x /mnt && mknod /mnt/fuse c 10 229 && : <> /mnt/fuse' 2>&1) ||
        { echo "no FUSE: nodes have no file system of a user's own: $error"; return 1; }
}

capable() {
    local need
    for need in root programs namespaces network; do "needs_$need" > /dev/null || return; done
}

doctor() {
    local name why status=0
    for name in root programs namespaces network; do
        if why=$("needs_$name"); then echo "ok $name"; else echo "missing $name: $why"; status=1; fi
    done
    [ "$status" -eq 0 ] || return "$status"
    for name in memory oom shaping pmix fuse; do
        if why=$("wants_$name"); then echo "ok $name"; else echo "without $name: $why"; fi
    done
    echo "never cores: nodes pretend to the cores they have; jobs are not bound to cores"
    echo "never clocks: all nodes share the machine's clock"
}
