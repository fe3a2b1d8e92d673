#!/bin/sh
# solve-srun.sh PARTS: as solve.sh, but srun and PMIx start the ranks (inside a Slurm allocation only). What srun starts does not see
# the data of the step: `tarn exec` to the rank's own node takes it in, with the variables that Slurm gave to the rank.
set -eu
root="\"$(dirname "$1")\""
roots=
for _ in $(seq 2 "$TARN_TASKS"); do roots="$roots $root"; done
cd "$1"
# Where `tarn exec` finds the step on each node.
DOORS=$(while read -r node _; do echo "$node $(tarn exec "$node" -- printenv TARN_EXEC_DIR < /dev/null)"; done < "$TARN_HOSTFILE")
export DOORS
ranks=$(sed 's/ slots=/ /' "$TARN_HOSTFILE" | while read -r node count; do yes "$node" | head -n "$count"; done | paste -s -d ,)
# shellcheck disable=SC2016  # expanded by the shell of each task
srun --overlap --mem=0 --mpi=pmix --cpu-bind=none --ntasks="$TARN_TASKS" --distribution=arbitrary --nodelist="$ranks" \
    sh -c 'TARN_EXEC_DIR=$(echo "$DOORS" | sed -n "s/^$SLURMD_NODENAME //p") exec tarn exec "$SLURMD_NODENAME" -- "$@"' - \
    icoFoam -parallel -roots "($roots)"
