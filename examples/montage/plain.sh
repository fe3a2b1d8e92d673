#!/bin/bash
# plain.sh RAW WORK CORES: the commands of workflow.toml in a plain shell, CORES at a time, everything in the
# folder WORK (which must not exist). It leaves WORK/mosaic/mosaic.fits and WORK/picture/mosaic.png. The results
# and the time are what `tarn run workflow.toml` is compared with.
# shellcheck disable=SC2012,SC2016,SC2154  # plain names; expanded by the shells that `each` starts; declared in a loop
set -euo pipefail
[ $# -eq 3 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
TARN_raw=$(realpath "$1")
work=$(realpath -m "$2")
cores=$3
PATH=$(dirname "$(realpath "$0")"):$PATH
mkdir -p "$(dirname "$work")"
mkdir "$work"
cd "$work"
for data in region projected weights pairs fits model corrected mosaic picture; do
    mkdir "$data"
    declare "TARN_$data=$work/$data"
done
export "${!TARN_@}"

# each COMMAND: run COMMAND for every name on standard input, each in a scratch folder of its own.
each() {
    COMMAND=$1 xargs -P "$cores" -I '{}' sh -c '
        export TARN_ITEM="$1"
        mkdir "scratch-$1" && cd "scratch-$1" && sh -c "$COMMAND" && cd .. && rmdir "scratch-$1"
    ' sh '{}'
}

exec > log
table.sh "$TARN_raw" raw.tbl
mMakeHdr raw.tbl "$TARN_region/region.hdr"
ls "$TARN_raw" | each 'project.sh $TARN_raw/$TARN_ITEM $TARN_region/region.hdr $TARN_projected/$TARN_ITEM $TARN_weights/$TARN_ITEM'
table.sh "$TARN_projected" images.tbl
overlaps.sh images.tbl "$TARN_pairs" 4
ls "$TARN_pairs" | each 'fit.sh $TARN_pairs/$TARN_ITEM $TARN_projected $TARN_region/region.hdr $TARN_fits/$TARN_ITEM'
table.sh "$TARN_projected" "$TARN_model/images.tbl"
model.sh "$TARN_model/images.tbl" "$TARN_fits" "$TARN_model/corrections.tbl"
ls "$TARN_projected" | each 'correct.sh $TARN_projected/$TARN_ITEM $TARN_model $TARN_corrected/$TARN_ITEM'
together.sh "$TARN_corrected" "$TARN_weights" images
table.sh images images.tbl
add.sh images images.tbl "$TARN_region/region.hdr" "$TARN_mosaic/mosaic.fits"
picture.sh "$TARN_mosaic/mosaic.fits" "$TARN_picture/mosaic.png"
