#!/bin/bash -l
#SBATCH --job-name=solve -N 4 --ntasks=16 -c 2
#SBATCH --mem=4G --gpus-per-node=a100:2 -t 1-12
#TARN name = "foam"
#TARN data.case.scatter = "processor{rank}"
#TARN [[step]]
#TARN inout = [
#TARN     "case:scatter", # in place
#TARN ]
cd "$TARN_case" && srun pisoFoam -parallel
