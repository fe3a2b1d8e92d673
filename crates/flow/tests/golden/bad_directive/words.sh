#!/bin/sh
#TARN [[step]
#TARN out = out
hostname
