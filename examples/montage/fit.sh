#!/bin/sh
# fit.sh PAIRS PROJECTED HEADER FITS: fit a plane to the difference of each pair of images.
set -eu
mkdir differences
mDiffFitExec -n -p "$2" "$1" "$3" differences "$4"
rm -r differences
# mDiffFitExec succeeds even if every fit has failed.
pairs=$(grep -vc '^|' "$1")
fits=$(grep -vc '^|' "$4") || true
[ "$pairs" -eq "$fits" ] || { echo "fit.sh: $fits of $pairs pairs of $1 could be fitted" >&2; exit 1; }
