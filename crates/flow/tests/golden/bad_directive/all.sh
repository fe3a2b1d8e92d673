#!/bin/sh
#SBATCH --nodes=four --time=soon
#TARN [[step]]
#TARN run = "hostname"
#TARN nodes = 4
#TARN foreach = [1, 2]
hostname
