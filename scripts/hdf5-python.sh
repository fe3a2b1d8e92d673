#!/bin/bash
# hdf5-python.sh FOLDER: Pythons with the HDF5 that PyPI has, for the tests and the benchmark of the file driver: FOLDER/old (h5py
# 3.10 with HDF5 1.14.2; from Python 3.13 on, which that does not know, h5py 3.12.1 with 1.14.4, and from 3.14 on 3.15 with
# 1.14.6), FOLDER/new (h5py 3.16 with 2.0, netCDF4 1.7.5 with 2.2); and FOLDER/before, h5py 3.9 with 1.12 for old's Python, which
# loads no drivers (no Python from 3.13 on has one: it stays empty). Existing ones stay. They take some 300 MB.
set -euo pipefail
mkdir -p "$1"
cd "$1"
exec 9> .lock
flock 9

# made NAME PACKAGE...: a virtual environment, which is there when it is whole.
made() {
    local name=$1
    shift
    [ ! -d "$name" ] || return 0
    rm -rf ".$name"
    /usr/bin/python3 -m venv ".$name"
    ".$name/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "$@" >&2
    mv ".$name" "$name"
}

minor=$(/usr/bin/python3 -c 'import sys; print(sys.version_info.minor)')
if [ "$minor" -ge 14 ]; then
    made old h5py==3.15.0 numpy==2.3.4
elif [ "$minor" -eq 13 ]; then
    made old h5py==3.12.1 numpy==2.2.6
else
    made old h5py==3.10.0 numpy==1.26.4
fi
[ "$minor" -lt 13 ] || mkdir -p before
made new h5py==3.16.0 netCDF4==1.7.5
if [ ! -d before ]; then
    rm -rf .before
    old/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --no-deps --target .before h5py==3.9.0 >&2
    mv .before before
fi
