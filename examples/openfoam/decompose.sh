#!/bin/sh
# decompose.sh MESH PARTS: the mesh in pieces. The other files that the solver needs go to every node: the dictionaries,
# and not the whole mesh.
set -eu
mesh=$1
cd "$2"
cp -r "$mesh/system" .
mkdir constant
find "$mesh/constant" -maxdepth 1 -type f -exec cp {} constant/ \;
ln -s "$mesh/constant/polyMesh" constant/polyMesh
ln -s "$mesh/0" 0
decomposePar
rm 0 constant/polyMesh
