#!/bin/sh
# reconstruct.sh: the pieces of $TARN_parts as one; only the fields are new.
set -eu
cd "$TARN_fields"
ln -s "$TARN_mesh/system" "$TARN_mesh/constant" "$TARN_parts"/processor* .
reconstructPar
rm system constant processor*
