# kills.py ROUNDS SEED: writers that append rows, flush, say so, and are killed at any moment. Each row that was flushed must be there. Prints how
# many rounds were whole, how many left a file that is shorter than its superblock says, and in how many HDF5 finds no way to rows for another
# reason: a kill in the middle of a later flush leaves a part of its writes, with HDF5's own driver too.
import os
import random
import sys
import time

import h5py

WIDTH = 1000
rounds = int(sys.argv[1])
random.seed(int(sys.argv[2]))
whole, short, other, reasons = 0, 0, 0, set()


def write(name, pipe):
    with h5py.File(name, "a") as file:
        data, row = file["x"], 0
        while True:
            data.resize(row + 1, 0)
            data[row] = row
            file.flush()
            os.write(pipe, b".")
            row += 1


for number in range(rounds):
    name = f"k{number}.h5"
    with h5py.File(name, "w") as file:
        file.create_dataset("x", (0, WIDTH), maxshape=(None, WIDTH), chunks=(1, WIDTH), dtype="f8")
    read_end, write_end = os.pipe()
    writer = os.fork()
    if writer == 0:
        os.close(read_end)
        write(name, write_end)
    os.close(write_end)
    # Not before it writes, so that each round is one of a kill amid that.
    flushed = len(os.read(read_end, 1))
    time.sleep(random.uniform(0, 0.1))
    os.kill(writer, 9)
    os.waitpid(writer, 0)
    while more := os.read(read_end, 1 << 16):
        flushed += len(more)
    os.close(read_end)
    assert flushed > 0, "the writer ended by itself"
    try:
        with h5py.File(name, "r") as file:
            data = file["x"]
            lost = [row for row in range(flushed) if row >= data.shape[0] or (data[row] != row).any()]
            if lost:
                raise OSError(f"{len(lost)} of {flushed} rows that were flushed, from {lost[0]} on")
        whole += 1
    except (OSError, KeyError, RuntimeError) as e:
        short, other = short + ("truncated file" in str(e)), other + ("truncated file" not in str(e))
        reasons.add(str(e))
    # As many files as there are rounds would fill a tier.
    with h5py.File(name, "w"):
        pass
print(whole, short, other, "; ".join(sorted(reasons)))
