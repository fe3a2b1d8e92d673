#!/bin/sh
#TARN data.raw.source = "raw"
#TARN data.sum.dest = "sum"
#TARN [[step]]
#TARN in = ["raw"]
#TARN out = ["sum"]
# TARN retries = 2
sum "$TARN_raw" > "$TARN_sum/sum"
#TARN data.sum.tier = "pmem"
