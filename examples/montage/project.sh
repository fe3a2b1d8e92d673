#!/bin/sh
# project.sh TILE HEADER IMAGE WEIGHTS: bring a tile onto the mosaic's grid. mProjectPP leaves the weights beside
# the image; they go to a place of their own, because the fits need only the images.
set -eu
mProjectPP "$1" image.fits "$2"
mv image.fits "$3"
mv image_area.fits "$4"
