#!/bin/sh
# overlaps.sh IMAGES PAIRS N: from a table of images, the pairs that overlap, dealt out into at most N tables.
set -eu
export LC_ALL=C
mOverlaps "$1" overlaps.tbl
grep '^|' overlaps.tbl > top
grep -v '^|' overlaps.tbl | sort -k 1n,1 -k 2n,2 > rows
[ -s rows ] || { echo "overlaps.sh: no two images overlap" >&2; exit 1; }
awk -v n="$3" -v folder="$2" '
    FNR == NR { top = top $0 "\n"; next }
    { table = sprintf("%s/%02d.tbl", folder, (FNR - 1) % n) }
    FNR <= n { printf "%s", top > table }
    { print > table }
' top rows
rm overlaps.tbl top rows
