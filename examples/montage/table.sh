#!/bin/sh
# table.sh DIR TABLE: list the images of DIR in a Montage table. mImgtbl lists in directory order, which differs
# from place to place; here the rows are sorted by name and counted again. The names are relative to DIR, so that
# the table holds wherever DIR is when it is read.
set -eu
export LC_ALL=C
unsorted=$PWD/$(mktemp table.XXXXXX)
trap 'rm -f "$unsorted"' EXIT
(cd "$1" && mImgtbl . "$unsorted")
{
    grep '^[\\|]' "$unsorted"
    # The name is the last column; the counter fills the first seven characters.
    grep -v '^[\\|]' "$unsorted" | awk '{ print $NF "\t" $0 }' | sort | cut -f 2- |
        awk '{ printf "%7d%s\n", NR - 1, substr($0, 8) }'
} > "$2"
