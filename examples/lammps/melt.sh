#!/bin/sh
# melt.sh RESULT: one attempt of the step. LAMMPS goes on from the newest restart file that is whole, or begins.
set -eu
result=$1
cd "$TARN_CHECKPOINTS"

# LAMMPS writes over the older of two files, so one of them is whole however it ends. It tells a torn one when it reads it.
from=new
# shellcheck disable=SC2045  # two names without spaces
for file in $(ls -t restart_? 2> /dev/null); do
    if lmp -restart2data "$file" state.data -log none -screen none; then
        from=$file
        break
    fi
    rm "$file"
done

attempt=$(printf %04d "$TARN_ATTEMPT")
lmp -in "$TARN_WORKFLOW_DIR/in.melt" -var from "$from" -var steps "$STEPS" -log "log.$attempt"

# What was printed since the beginning, by all attempts; a killed one has printed some steps that the next did again.
cat log.* > "$result/log.lammps"
mv state.data "$result/melt.data"
