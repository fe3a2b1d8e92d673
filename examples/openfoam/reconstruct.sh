#!/bin/sh
# reconstruct.sh MESH PARTS FIELDS: the pieces as one; only the fields are new.
set -eu
cd "$3"
ln -s "$1/system" "$1/constant" "$2"/processor* .
reconstructPar
rm system constant processor*
