# shellcheck shell=bash
# shellcheck disable=SC2154  # nodes, cpus, ...: the settings, which those who source this have read
# The parts that make a machine a member of the cluster: the files below /etc, and munged. Sourced by inside.sh and node.sh.
network=10.77.0
login_address=$network.254
partition=main
# Ordinary users, with ids that packages and people do not have.
users=(alice:7001 bob:7002)
# A group that they share, as the members of a project do.
project=climate:x:7100:alice,bob

write_users() {
    local user name id
    for user in "${users[@]}"; do
        name=${user%:*} id=${user#*:}
        echo "$name:x:$id:$id:$name:/shared/home/$name:/bin/bash" >> "$1/passwd"
        echo "$name:x:$id:" >> "$1/group"
        # Without a line here `su` to them fails on sid, and with it `sbatch --export=A=b`, for which slurmd calls `su`.
        echo "$name:*:20000::::::" >> "$1/shadow"
        install -d -o "$id" -g "$id" -m 700 "$2/home/$name"
    done
    echo "$project" >> "$1/group"
}

write_hosts() {
    local i
    {
        echo "127.0.0.1 localhost"
        echo "$login_address login"
        for ((i = 1; i <= nodes; i++)); do echo "$network.$i node$i"; done
    } > "$1/hosts"
    echo login > "$1/hostname"
}

write_munge() {
    head -c 1024 /dev/urandom > "$1/munge/munge.key"
    chown munge: "$1/munge/munge.key"
    chmod 400 "$1/munge/munge.key"
}

start_munge() {
    install -d -o munge -g munge -m 755 /run/munge
    setpriv --reuid munge --regid munge --clear-groups munged \
        --pid-file /run/munge/pid --log-file /run/munge/log --seed-file /run/munge/seed
}

# Debian 14's Open MPI is set to use nothing but the loopback interface: a cluster's administrator takes that back.
write_open_mpi() {
    local parameters=$1/openmpi/openmpi-mca-params.conf
    [ ! -f "$parameters" ] || sed -i '/^btl_tcp_if_include *= *lo$/d' "$parameters"
}

default_mpi() {
    if compgen -G '/usr/lib/*/slurm*/mpi_pmix*.so' > /dev/null; then echo pmix; else echo none; fi
}

write_slurm() {
    local i
    # Its slurm.conf is replaced by the one that it is part of.
    [ ! -d /.cluster/etc ] || cp -r /.cluster/etc/. "$1/slurm/"
    {
        slurm_general
        if [ "$cgroups" = none ]; then slurm_loose; else slurm_contained; fi
        cat /.cluster/etc/slurm.conf 2> /dev/null || true
        for ((i = 1; i <= nodes; i++)); do
            echo "NodeName=node$i NodeAddr=$network.$i CPUs=$cpus RealMemory=$memory_mb State=UNKNOWN"
        done
        echo "PartitionName=$partition Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    } > "$1/slurm/slurm.conf"
    [ "$cgroups" = none ] || slurm_cgroup > "$1/slurm/cgroup.conf"
    # Tasks have a /tmp of their own, where the file that PMIx 5 shares is not.
    echo PMIxEnv=PMIX_MCA_gds=hash > "$1/slurm/mpi.conf"
    printf 'AutoBasePath=true\nBasePath=/run/job-tmp\n' > "$1/slurm/job_container.conf"
}

# Short intervals, since tests wait for them: a node is down after SlurmdTimeout without an answer, a job that ignores
# SIGTERM lives KillWait longer. MinJobAge keeps finished jobs for `scontrol show job`.
slurm_general() {
    cat << CONF
ClusterName=tarn
SlurmctldHost=login($login_address)
SlurmUser=slurm
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/run/slurmctld/state
SlurmctldPidFile=/run/slurmctld/pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdPidFile=/run/slurmd.pid
SlurmdLogFile=/var/log/slurm/slurmd.%n.log
SlurmdSpoolDir=/run/slurmd
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=$(default_mpi)
PrologFlags=Alloc,Contain
JobContainerType=job_container/$container
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=500
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MinJobAge=3600
KillWait=3
SlurmdTimeout=10
CONF
}

slurm_contained() {
    printf '%s\n' ProctrackType=proctrack/cgroup TaskPlugin=task/cgroup,task/affinity JobAcctGatherType=jobacct_gather/cgroup
}

slurm_loose() {
    printf '%s\n' ProctrackType=proctrack/linuxproc TaskPlugin=task/none JobAcctGatherType=jobacct_gather/linux
}

# Cores are not constrained: the nodes pretend to more than the machine has.
slurm_cgroup() {
    printf '%s\n' "CgroupPlugin=cgroup/$cgroups" CgroupAutomount=no "CgroupMountpoint=$cg_root" \
        ConstrainRAMSpace=yes ConstrainCores=no
    [ "$cgroups" != v2 ] || echo IgnoreSystemd=yes
}
