#!/bin/sh
# solve.sh PARTS: icoFoam on all nodes of the step. Each has only its own pieces, so every rank gets the path of its piece:
# it is the same everywhere, but OpenFOAM wants it named for each rank but the first.
set -eu
root="\"$(dirname "$1")\""
roots=
for _ in $(seq 2 "$TARN_TASKS"); do roots="$roots $root"; done
cd "$1"
mpirun -x WM_PROJECT_DIR -np "$TARN_TASKS" icoFoam -parallel -roots "($roots)"
