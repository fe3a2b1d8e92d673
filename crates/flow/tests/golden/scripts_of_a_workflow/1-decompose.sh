#!/bin/bash
# The mesh in pieces.
#SBATCH --time=10
#TARN name = "foam"
#TARN data.mesh.source = "mesh"
#TARN [data.case]
#TARN size = "400 GiB"
#TARN scatter = "processor{rank}"
#TARN [[step]]
#TARN name = "decompose"
#TARN in = ["mesh"]
#TARN out = ["case"]

decompose.sh "$TARN_mesh" "$TARN_case"
