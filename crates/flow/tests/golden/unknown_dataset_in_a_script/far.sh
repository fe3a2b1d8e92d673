#!/bin/sh
#SBATCH -N 2
#TARN data.mesh.source = "mesh"
#TARN [[step]]
#TARN in = ["mash"]
#TARN out = ["mesh:single"]
true
