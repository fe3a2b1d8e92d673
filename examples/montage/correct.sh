#!/bin/sh
# correct.sh IMAGE MODEL CORRECTED: take an image's background away. All paths are absolute: mBackground looks for the
# image in the table by its name as given, so it runs in the image's folder.
set -eu
cd "$(dirname "$1")"
mBackground -t -n "$(basename "$1")" "$3" "$2/images.tbl" "$2/corrections.tbl"
