#!/bin/bash
#TARN name = "foam"
#TARN data.result = { dest = "/lustre/x/out" }
#TARN [[step]]
#TARN in = ["case:gather"]
#TARN out = ["result"]
reconstruct.sh "$TARN_case" "$TARN_result"
