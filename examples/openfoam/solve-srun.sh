#!/bin/sh
# solve-srun.sh PARTS: as solve.sh, but srun and PMIx start the ranks (inside a Slurm allocation only). A process that srun starts
# does not see the data of the step: `tarn enter` takes each rank in, with the variables that Slurm gave to it.
set -eu
root="\"$(dirname "$1")\""
roots=
for _ in $(seq 2 "$TARN_TASKS"); do roots="$roots $root"; done
cd "$1"
ranks=$(sed 's/ slots=/ /' "$TARN_HOSTFILE" | while read -r node count; do yes "$node" | head -n "$count"; done | paste -s -d ,)
srun --overlap --mem=0 --mpi=pmix --cpu-bind=none --ntasks="$TARN_TASKS" --distribution=arbitrary --nodelist="$ranks" \
    tarn enter icoFoam -parallel -roots "($roots)"
