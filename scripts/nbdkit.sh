#!/bin/bash
# nbdkit.sh FOLDER: builds nbdkit-tarn-plugin.so there, for the libtarn.so that was built there (docs/guide/block.md); 3 where
# nbdkit-plugin-dev is not installed, as it is not needed for anything else.
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$(realpath "$0")")/.."
if ! echo '#include <nbdkit-plugin.h>' | ${CC:-cc} -E -x c - > /dev/null 2>&1; then
    echo "nbdkit.sh: no nbdkit-tarn-plugin.so without nbdkit's header (Debian: nbdkit-plugin-dev)" >&2
    exit 3
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
new=$(mktemp "$folder/.nbdkit-tarn-plugin.XXXXXX")
trap 'rm -f "$new"' EXIT
# The library of this build, cargo's name for it first, as that is never old; or, installed, that of the folder above.
# shellcheck disable=SC2016  # expanded by the loader
${CC:-cc} -std=c11 -O2 -fPIC -shared -Wall -Wextra -Werror -DTARN_VERSION="\"$version\"" -I bindings/c/include -o "$new" \
    plugins/nbdkit/nbdkit-tarn-plugin.c -L "$folder/deps" -L "$folder" -ltarn -Wl,--disable-new-dtags,-rpath,'$ORIGIN/deps:$ORIGIN/..'
chmod 755 "$new"
mv "$new" "$folder/nbdkit-tarn-plugin.so"
