#!/bin/sh
#SBATCH -N1
#TARN [[step]]
#SBATCH hetjob
#SBATCH -N2
true
