#!/bin/bash
# verbs.sh FOLDER [LIBRARY]: builds libtarnverbs.so, tarn's RDMA device (docs/guide/verbs.md), what it loads to reach storage, and the storage peer in FOLDER/verbs, where
# `tarn verbs` looks for them; 3 where libibverbs-dev is not installed, as it is not needed for anything else. LIBRARY (FOLDER) is where
# libtarn.so is.
set -euo pipefail
if ! echo '#include <infiniband/verbs.h>' | ${CC:-cc} -E -x c - > /dev/null 2>&1; then
    echo "verbs.sh: no libtarnverbs.so without libibverbs' header (Debian: libibverbs-dev)" >&2
    exit 3
fi
mkdir -p "$1/verbs"
folder=$(realpath "$1/verbs") library=$(realpath "${2:-$1}")
cd "$(dirname "$(realpath "$0")")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
new=$(mktemp -d "$folder/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT
# Tools of rdma-core ask for a function in a version that changes with libibverbs' structures: those that there were, and that of the library
# that is installed here.
here=$(nm -D "$("${CC:-cc}" -print-file-name=libibverbs.so)" 2> /dev/null | sed -n 's/.* ibv_query_gid_type@@*IBVERBS_PRIVATE_//p' || true)
private=''
cp plugins/verbs/libtarnverbs.map "$new/map"
for number in $(printf '%s\n' 34 57 59 64 65 "$here" | sort -nu); do
    echo "IBVERBS_PRIVATE_$number { };" >> "$new/map"
    private+=" X($number)"
done
flags=(-std=gnu11 -O2 -Wall -Wextra -Werror -D_GNU_SOURCE "-DTARN_VERSION=\"$version\"" "-DIBVERBS_PRIVATE(X)=$private" -I bindings/c/include)
sources=(plugins/verbs/{ah,area,cq,device,later,load,memory,progress,qp,recv,send,srq,unsupported,wire}.c)
# shellcheck disable=SC2206  # CFLAGS are several words
shared=(-fPIC -shared -fvisibility=hidden ${CFLAGS:-})
${CC:-cc} "${flags[@]}" "${shared[@]}" -o "$new/libtarnverbs.so" "${sources[@]}" -ldl -lpthread \
    -Wl,--version-script="$new/map" -Wl,-soname,libtarnverbs.so
# libtarn.so is beside that folder where it was built, and two above it where it is installed.
# shellcheck disable=SC2016  # the loader's $ORIGIN
${CC:-cc} "${flags[@]}" "${shared[@]}" -o "$new/libtarnverbs-storage.so" plugins/verbs/storage.c \
    -L "$library" -ltarn -Wl,-rpath,'$ORIGIN/..:$ORIGIN/../..'
# shellcheck disable=SC2016
${CC:-cc} "${flags[@]}" -o "$new/verbs-serve" plugins/verbs/serve.c -L "$new" -ltarnverbs -Wl,-rpath,'$ORIGIN'
rm "$new/map"
mv "$new"/* "$folder"
