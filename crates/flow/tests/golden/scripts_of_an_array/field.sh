#!/bin/sh
#SBATCH --array=0-8:4%2
#TARN data.raw.source = "raw"
#TARN data.fields.dest = "fields"
#TARN [[step]]
#TARN in = ["raw"]
#TARN out = ["fields"]
field "$TARN_raw" "$SLURM_ARRAY_TASK_ID" > "$TARN_fields/$SLURM_ARRAY_TASK_ID"
