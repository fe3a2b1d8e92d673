#!/bin/sh
# correct.sh IMAGE MODEL CORRECTED: take an image's background away.
set -eu
mBackground -t -n "$1" "$3" "$2/images.tbl" "$2/corrections.tbl"
