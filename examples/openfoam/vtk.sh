#!/bin/sh
# vtk.sh MESH FIELDS VTK: the last of the fields as VTK files.
set -eu
cd "$3"
ln -s "$1/system" "$1/constant" "$2"/[0-9]* .
foamToVTK -latestTime -name cavity
rm system constant [0-9]*
mv cavity/* .
rmdir cavity
