#!/bin/sh
# together.sh IMAGES WEIGHTS FOLDER: the images with their weights beside them, as mAdd wants them.
set -eu
mkdir "$3"
for image in "$1"/*.fits; do
    name=$(basename "$image" .fits)
    ln -s "$image" "$3/$name.fits"
    ln -s "$2/$name.fits" "$3/${name}_area.fits"
done
