#!/bin/sh
# model.sh IMAGES FITS CORRECTIONS: from all fits, the background to take away from each image.
set -eu
export LC_ALL=C
images=$1 corrections=$3
set -- "$2"/*.tbl
{
    grep '^|' "$1"
    # In one order, independent of the order in which the fits were made: mBgModel adds them up in floating point.
    grep -hv '^|' "$@" | sort -k 1n,1 -k 2n,2
} > fits.tbl
mBgModel "$images" fits.tbl "$corrections"
rm fits.tbl
