#!/bin/bash
# spank.sh FOLDER: builds spank_tarn.so there, for the Slurm whose header is installed (docs/admin/site.md); 3 where there is none, as it is not
# needed for anything else.
set -euo pipefail
folder=$(realpath "$1")
cd "$(dirname "$(realpath "$0")")/.."
# CFLAGS, several words: -I of a Slurm that is installed elsewhere.
# shellcheck disable=SC2086
if ! echo '#include <slurm/spank.h>' | ${CC:-cc} ${CFLAGS:-} -E -x c - > /dev/null 2>&1; then
    echo "spank.sh: no spank_tarn.so without Slurm's header slurm/spank.h (Debian: libslurm-dev)" >&2
    exit 3
fi
new=$(mktemp "$folder/.spank_tarn.XXXXXX")
trap 'rm -f "$new"' EXIT
flags=(-std=c11 -O2 -Wall -Wextra -Werror -D_GNU_SOURCE -fPIC -shared -fvisibility=hidden)
# shellcheck disable=SC2086
${CC:-cc} "${flags[@]}" ${CFLAGS:-} -o "$new" plugins/slurm/{spank_tarn,jobmount,jobfile}.c
chmod 755 "$new"
mv "$new" "$folder/spank_tarn.so"
