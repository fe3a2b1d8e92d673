#!/bin/sh
# add.sh IMAGES TABLE HEADER MOSAIC: add the images of the folder IMAGES, each pixel by its weight.
set -eu
mAdd -p "$1" "$2" "$3" mosaic.fits
mv mosaic.fits "$4"
rm mosaic_area.fits
