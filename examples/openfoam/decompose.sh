#!/bin/sh
# decompose.sh: the mesh of $TARN_mesh in pieces. What the solver needs beside its piece goes to every node: dictionaries,
# and not the whole mesh.
set -eu
cd "$TARN_parts"
cp -r "$TARN_mesh/system" .
mkdir constant
find "$TARN_mesh/constant" -maxdepth 1 -type f -exec cp {} constant/ \;
ln -s "$TARN_mesh/constant/polyMesh" constant/polyMesh
ln -s "$TARN_mesh/0" 0
decomposePar
rm 0 constant/polyMesh
