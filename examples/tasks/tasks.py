#!/usr/bin/python3
"""A checkpoint from memory to outside, and an input from outside to the node, while the program computes."""

import os
import sys

import tarn

if len(sys.argv) != 2:
    sys.exit(f"usage: {sys.argv[0]} FOLDER-OUTSIDE")
outside = sys.argv[1]
with open(os.path.join(outside, "input"), "w") as file:
    file.write("the next input\n")

with tarn.connect() as node:
    state = node.memory(8 << 20)
    state.data[:4] = b"data"
    save = node.copy(state, os.path.join(outside, "checkpoint"), verify="readback", replace=True)
    load = node.copy(os.path.join(outside, "input"), tarn.Space("fast", "input"), replace=True)
    total = sum(range(1_000_000))  # the program computes meanwhile
    print("checkpoint saved:", node.wait(save).bytes, "bytes")
    print("input is here:", node.wait(load).bytes, "bytes")
