"""The part of `tarn bench hdf5` with an unmodified h5py: bench.py DRIVER FILE MIB OPERATIONS, as bench.c."""

import random
import sys
import time

import h5py
import numpy

MIB = 1 << 20
SMALL = 4096
driver, path = sys.argv[1:3]
size, operations = int(sys.argv[3]) * MIB, int(sys.argv[4])
options = {"driver": "core", "backing_store": False} if driver == "core" else {}
if driver == "nosieve":
    options = {"rdcc_nbytes": 0}
buffer = numpy.full(MIB, 7, "u1")
file = data = None


def pieces(write, length, count, anywhere):
    part = buffer[:length]
    for i in range(count):
        at = random.randrange(size // length) * length if anywhere else i * length
        if write:
            data[at : at + length] = part
        else:
            data.read_direct(part, numpy.s_[at : at + length])


def opened(mode):
    global file, data
    file = h5py.File(path, mode, **options)
    data = file.create_dataset("data", (size,), "u1") if mode == "w" else file["data"]


def closed():
    global file
    if file:
        file.close()
        file = None


def create():
    opened("w")
    pieces(True, MIB, size // MIB, False)
    file.flush()


def flushed(*arguments):
    pieces(*arguments)
    file.flush()


WORDS = {
    "seq-write": lambda: flushed(True, MIB, size // MIB, False),
    "seq-read": lambda: pieces(False, MIB, size // MIB, False),
    "random-write": lambda: flushed(True, SMALL, operations, True),
    "random-read": lambda: pieces(False, SMALL, operations, True),
    "create": create,
    "open": lambda: opened("r+"),
    "close": closed,
}

for line in sys.stdin:
    begun = time.perf_counter()
    WORDS[line.strip()]()
    print(f"{time.perf_counter() - begun:.9f}", flush=True)
closed()
