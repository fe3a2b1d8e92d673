#!/bin/sh
#TARN [[step]]
#TARN name = "a"
#TARN [[step]]
#TARN name = "b"
hostname
