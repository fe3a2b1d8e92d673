#!/bin/bash
# shim.sh FOLDER: builds libtarnfabric.so there, through which tarnd (--transport) and ranks of programs ($TARN_PHX_TRANSPORT) use
# libfabric; 3 where libfabric-dev is not installed, as it is not needed for anything else.
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$(realpath "$0")")/../transfer/data-plane/shim"
if ! echo '#include <rdma/fabric.h>' | ${CC:-cc} -E -x c - > /dev/null 2>&1; then
    echo "shim.sh: no libtarnfabric.so without libfabric's headers (Debian: libfabric-dev)" >&2
    exit 3
fi
new=$(mktemp "$folder/.libtarnfabric.XXXXXX")
trap 'rm -f "$new"' EXIT
${CC:-cc} -std=c11 -O2 -fPIC -shared -Wall -Wextra -Werror -o "$new" tarnfabric.c -lfabric
chmod 755 "$new"
mv "$new" "$folder/libtarnfabric.so"
