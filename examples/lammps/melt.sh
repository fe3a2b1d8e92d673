#!/bin/sh
# melt.sh RESULT: one attempt of the step. LAMMPS resumes from the newest restart file that is whole, or begins.
set -eu
result=$1
cd "$TARN_CHECKPOINTS"

# LAMMPS notices a torn file when it reads it. Each attempt writes restart_a first, so the file that it resumes from becomes
# restart_b. None is removed: a whole one cannot be read either when memory runs out, say.
from=new
# shellcheck disable=SC2045  # two names without spaces
for file in $(ls -t restart_? 2> /dev/null); do
    if lmp -restart2data "$file" /dev/null -log none -screen none; then
        [ "$file" = restart_b ] || mv -f "$file" restart_b
        from=restart_b
        break
    fi
done

attempt=$(printf %04d "$TARN_ATTEMPT")
lmp -in "$TARN_WORKFLOW_DIR/in.melt" -var from "$from" -var steps "$STEPS" -log "log.$attempt"

# The output since the beginning, by all attempts; a killed one has printed some steps that the next did again.
cat log.* > "$result/log.lammps"
mv state.data "$result/melt.data"
