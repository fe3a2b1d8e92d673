#!/bin/sh
# vtk.sh: the last of $TARN_fields as VTK files.
set -eu
cd "$TARN_vtk"
ln -s "$TARN_mesh/system" "$TARN_mesh/constant" "$TARN_fields"/[0-9]* .
foamToVTK -latestTime -name cavity
rm system constant [0-9]*
mv cavity/* .
rmdir cavity
