#!/bin/bash
# plain.sh CASE FOLDER: the same case with nothing but OpenFOAM, in FOLDER, which must not exist; mpirun on this machine.
# Its fields and its VTK files are what those of `tarn run workflow.toml` are compared with.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
here=$(dirname "$(realpath "$0")")
# shellcheck source=examples/openfoam/foam.sh
. "$here/foam.sh"
root=()
[ "$(id -u)" -ne 0 ] || root=(--allow-run-as-root)
cp -r "$1" "$2"
cd "$2"
exec > log
blockMesh
decomposePar
mpirun "${root[@]}" --oversubscribe --bind-to none -np "$(find . -maxdepth 1 -name 'processor*' | wc -l)" icoFoam -parallel
reconstructPar
foamToVTK -latestTime
