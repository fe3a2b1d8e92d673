#!/bin/sh
#TARN [[step]]
true
