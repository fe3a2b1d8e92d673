#!/bin/sh
#TARN name = "one"
#TARN data.x.source = "x"
#TARN data.x.copies = 2
#TARN [[step]]
#TARN in = ["x"]
true
