#!/bin/bash
# hdf5.sh FOLDER [LIBRARY]: builds libh5fdtarn.so, the file driver for HDF5, in FOLDER/hdf5, which is then what HDF5_PLUGIN_PATH names:
# HDF5 looks at every library there. LIBRARY (FOLDER) is where libtarn.so is.
set -euo pipefail
mkdir -p "$1/hdf5"
folder=$(realpath "$1/hdf5") library=$(realpath "${2:-$1}")
cd "$(dirname "$(realpath "$0")")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
new=$(mktemp "$folder/.new.XXXXXX")
trap 'rm -f "$new"' EXIT
# libtarn.so is beside that folder where it was built, and two above it where it is installed.
# shellcheck disable=SC2016  # the loader's $ORIGIN
cc -std=c11 -O2 -fPIC -shared -fvisibility=hidden -Wall -Wextra -Werror -D_GNU_SOURCE -DTARN_VERSION="\"$version\"" -I crates/libtarn/include \
    -o "$new" plugins/hdf5/*.c -L "$library" -ltarn -Wl,-rpath,'$ORIGIN/..:$ORIGIN/../..' -Wl,--no-undefined
chmod 755 "$new"
mv "$new" "$folder/libh5fdtarn.so"
