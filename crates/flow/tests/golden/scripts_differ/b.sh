#!/bin/sh
#TARN name = "two"
#TARN data.x.source = "y"
#TARN data.x.copies = 2
#TARN [[step]]
#TARN in = ["x"]
true
