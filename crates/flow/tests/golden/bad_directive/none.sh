#SBATCH -N 1
hostname
