#!/bin/bash
# montage-check.sh: the Montage example gives the same bytes in a plain shell with one process and with three, from
# tiles in another directory order, and by tarn on one node and on four, with namespaces and without (where paths
# differ from step to step); and a second run has nothing to do.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# shellcheck source=scripts/common.sh
. scripts/common.sh
tarn_built debug
# Nothing is to be left on the tier.
export TARN_CACHE=0
work=$(mktemp -d "${TMPDIR:-/tmp}/montage-check.XXXXXX")
tier=$(mktemp -d /dev/shm/montage-check.XXXXXX)
trap 'rm -rf "$work" "$tier"' EXIT

example=$work/example
cp -r examples/montage "$example"
"$example/make_tiles.py" --grid 3 --size 160 "$example/raw"
mkdir "$work/shuffled"
for tile in $(find "$example/raw" -name '*.fits' | sort -r); do cp "$tile" "$work/shuffled/"; done

"$example/plain.sh" "$example/raw" "$work/one" 1
"$example/plain.sh" "$work/shuffled" "$work/three" 3
expected=$(sums "$work/one")
same() {
    [ "$(sums "$2")" = "$expected" ] || { echo "montage-check: $1 gives another result than plain.sh" >&2; exit 1; }
}
same "plain.sh with three processes and shuffled tiles" "$work/three"

for how in "--nodes 1" "--nodes 2 --isolation off" "--nodes 4"; do
    rm -rf "$example/results" "$example/.tarn"
    # shellcheck disable=SC2086  # the options are words
    "$tarn" run "$example/workflow.toml" $how --tier "fast=$tier"
    left=$(find "$tier" -mindepth 1 ! -name ledger.lock)
    [ -z "$left" ] || { echo "montage-check: left on the tier: $left" >&2; exit 1; }
    same "tarn run $how" "$example/results"
done
before=$(stat -c '%n %i %Y' "$example"/results/*/*)
"$tarn" run "$example/workflow.toml" --nodes 4 --tier "fast=$tier"
[ "$(stat -c '%n %i %Y' "$example"/results/*/*)" = "$before" ] ||
    { echo "montage-check: a second run wrote the results again" >&2; exit 1; }
same "a second run" "$example/results"
