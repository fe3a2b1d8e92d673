#!/bin/sh
# plain.sh FOLDER RESULT: the same without tarn, two programs at a time, all of it in FOLDER.
set -eu
here=$(dirname "$(realpath "$0")")
mkdir -p "$1/fields" "$1/reduced" "$2"
export GRID="${GRID:-128}" FRAMES="${FRAMES:-64}" OMP_NUM_THREADS=1
seq 8 | xargs -P 2 -I{} "$here/simulate.py" {} "$1/fields/member-{}"
seq 8 | xargs -P 2 -I{} "$here/reduce.py" "$1/fields/member-{}" "$1/reduced/member-{}"
"$here/combine.py" "$1/reduced" "$2"
