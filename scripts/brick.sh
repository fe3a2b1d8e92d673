#!/bin/bash
# brick.sh FOLDER: builds libtarnbrick.so there, with which an ordinary user's nodes have one namespace by GlusterFS
# (docs/guide/shared-namespace.md).
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$(realpath "$0")")/../workflow/node/brick"
new=$(mktemp "$folder/.libtarnbrick.XXXXXX")
trap 'rm -f "$new"' EXIT
${CC:-cc} -std=c11 -O2 -fPIC -shared -Wall -Wextra -Werror -o "$new" tarnbrick.c
chmod 755 "$new"
mv "$new" "$folder/libtarnbrick.so"
