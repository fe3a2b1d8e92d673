#!/bin/bash
# hdf5.sh FOLDER [LIBRARY]: builds libh5fdtarn.so, the file driver for HDF5, in FOLDER/hdf5, which is then what HDF5_PLUGIN_PATH
# names: HDF5 looks at every library there. Beside it is `bench`, the part that `tarn bench hdf5` measures. LIBRARY (FOLDER) is
# where libtarn.so is.
set -euo pipefail
mkdir -p "$1/hdf5"
folder=$(realpath "$1/hdf5") library=$(realpath "${2:-$1}")
cd "$(dirname "$(realpath "$0")")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
new=$(mktemp -d "$folder/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
flags=(-std=c11 -O2 -Wall -Wextra -Werror -D_GNU_SOURCE)
# libtarn.so is beside that folder where it was built, and two above it where it is installed.
# shellcheck disable=SC2016,SC2086  # the loader's $ORIGIN; CFLAGS are several words
${CC:-cc} "${flags[@]}" -fPIC -shared -fvisibility=hidden -DTARN_VERSION="\"$version\"" ${CFLAGS:-} -I bindings/c/include \
    -o "$new/libh5fdtarn.so" plugins/hdf5/*.c -L "$library" -ltarn -Wl,-rpath,'$ORIGIN/..:$ORIGIN/../..'
${CC:-cc} "${flags[@]}" -o "$new/bench" plugins/hdf5/bench/bench.c -ldl
mv "$new"/* "$folder"
