#!/bin/sh
# picture.sh MOSAIC PNG: draw it.
set -eu
mViewer -ct 0 -gray "$1" -1s max gaussian-log -out "$2"
[ -s "$2" ]
