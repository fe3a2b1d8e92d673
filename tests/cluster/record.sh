#!/bin/bash
# record.sh DIR: brings up a cluster, gives it jobs and nodes in many states, and writes into DIR what Slurm's programs answer
#     when tarn reads it: the recordings of services/slurm/tests/recorded. Needs root, and the example `snapshot` of tarn-slurm
#     (`cargo build -p tarn-slurm --example snapshot`; SNAPSHOT names another). In another release's root:
#     scripts/suite.sh trixie run tests/cluster/record.sh DIR
set -euo pipefail
here=$(dirname "$(realpath "$0")")
checkout=$(dirname "$(dirname "$here")")
[ $# -eq 1 ] || {
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}
recorded=$(realpath -m -- "$1")
snapshot=$(realpath -e -- "${SNAPSHOT:-${CARGO_TARGET_DIR:-$checkout/target}/debug/examples/snapshot}")
work=$(mktemp -d /var/tmp/slurm-record.XXXXXX)
cluster=$work/cluster
mkdir -p "$work/etc" "$recorded"

cleanup() {
    "$here/slurm-cluster" down --dir "$cluster" 2> /dev/null || true
    rm -rf "${work:?}"
}
trap cleanup EXIT

cat > "$work/etc/slurm.conf" << 'CONF'
Licenses=solver:4,viewer:2
BurstBufferType=burst_buffer/lua
CONF
echo Directive=TARN > "$work/etc/burst_buffer.conf"
for function in job_process pools job_teardown setup data_in test_data_in real_size paths pre_run post_run data_out \
    test_data_out get_status; do
    echo "function slurm_bb_$function(...) return slurm.SUCCESS, \"\" end"
done > "$work/etc/burst_buffer.lua"

"$here/slurm-cluster" up --dir "$cluster" --nodes 6 --etc "$work/etc"
root() { "$here/slurm-cluster" exec --dir "$cluster" --user root -- timeout 60 "$@"; }
alice() { "$here/slurm-cluster" exec --dir "$cluster" --user alice -- timeout 60 "$@"; }
# submit OPTION...: a job that sleeps; prints its number.
submit() { alice sbatch --parsable --mem=200 -o /dev/null "$@" --wrap 'sleep 3000'; }

# The cluster waits for its nodes in one partition: the others come later.
root scontrol create partition=short 'nodes=node[1-2]' maxtime=02:00:00 prioritytier=10 oversubscribe=force:2
root scontrol create partition=closed nodes=node3 state=down hidden=yes
root scontrol update "nodename=node[1-4]" availablefeatures=fast,big activefeatures=fast,big
root scontrol update nodename=node1 'extra=12G free | NodeName=node9'
root scontrol update nodename=node5 state=drain "reason=disk | bad"$'\n'"node9 NodeName=node9 State=IDLE"
# A node whose slurmd lives would come back by itself.
"$here/slurm-cluster" kill-node --dir "$cluster" node6
root scontrol update nodename=node6 state=down reason=power

running=$(submit -N2 -t 60 -J running)
submit -N1 --exclusive -t 30 -w node3 -J exclusive > /dev/null
submit -L solver:4 -t 90 -J licensed > /dev/null
sleep 3
submit -L solver:1,viewer:1 -J waits-for-a-licence > /dev/null
submit -H --array=0-9:3%2 -J held-array > /dev/null
submit --array=1-2 -t 10 -J array > /dev/null
submit -d "afterok:$running" -J dependent > /dev/null
submit --begin=now+2days -J later > /dev/null
submit -x node1,node3 -N1 --exclusive -J excludes > /dev/null
submit -w node2 -H -t UNLIMITED -J required > /dev/null
submit -p short,main -H --nice=100 -C 'fast&big' -N1-3 -J constrained > /dev/null
submit -w node6 -J on-a-node-that-is-down > /dev/null
submit -H -J $'a|b\nJobId=99 UserId=root(0)' --comment $'x|y\nJobId=98' > /dev/null
submit -H -J '{"job_id": 97}, "é' --comment '"jobs":[' > /dev/null
marked=$(submit -H -J marked)
root scontrol update "jobid=$marked" 'admincomment=[tarn nice=5]' prefer=big
# A list of jobs that is longer than its column.
many=$running
for ((i = 0; i < 12; i++)); do many+=:$(submit -H -J many); done
submit -d "afterany:$many" -J depends-on-many > /dev/null
printf '#!/bin/sh\n#TARN read /a|b\nsleep 1\n' > "$work/script"
chmod -R a+rX "$work"
alice sbatch --parsable -H --mem=200 -o /dev/null -J staged "$work/script" > /dev/null
alice sbatch --parsable -H --mem=100 -J het -n1 : --mem=200 -n2 --wrap 'sleep 3000' > /dev/null || true
root scontrol create reservation ReservationName=upkeep StartTime=now+3600 Duration=120 Nodes=node4 Users=root Flags=MAINT,IGNORE_JOBS > /dev/null
root scontrol create reservation ReservationName=class StartTime=now+7200 Duration=60 Nodes=node2 Users=alice Flags=FLEX > /dev/null
submit --reservation=class -t 10 -J in-a-reservation > /dev/null
sleep 5

root "$snapshot" fields "$recorded" > "$work/fields"
root "$snapshot" json "$recorded" > "$work/json"
head -n 1 "$work/fields" "$work/json"
