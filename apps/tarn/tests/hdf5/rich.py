"""Writes an HDF5 file of many kinds of things, and reads it again: rich.py FILE."""

import sys

import h5py
import numpy as np

path = sys.argv[1]
random = np.random.default_rng(7)
field = random.random((300, 400))
words = np.array(["tarn", "a small lake", ""], dtype=object)

with h5py.File(path, "w") as file:
    file["field"] = field
    file["field"].attrs["unit"] = "m/s"
    file.create_dataset("packed", data=field, chunks=(50, 50), compression="gzip", shuffle=True)
    file.create_dataset("rows", (0, 10), maxshape=(None, 10), chunks=(16, 10), dtype="i4")
    file.create_dataset("words", data=words, dtype=h5py.string_dtype())
    file.create_dataset("table", data=np.zeros(5, dtype=[("a", "i8"), ("b", "f4", 3)]))
    file.create_dataset("hole", (1 << 20,), "u1")[-1] = 7
    file.create_dataset("late", (100, 100), "f8")
    for number in range(200):
        file[f"many/{number % 10}/{number}"] = np.arange(number)
    file["link"] = h5py.SoftLink("/field")
    file["shrinks"] = np.ones(1 << 16)

with h5py.File(path, "a") as file:
    rows = file["rows"]
    for number in range(50):
        rows.resize(number + 1, axis=0)
        rows[number] = number
    file["table"]["b"] = np.arange(15).reshape(5, 3)
    file["late"][::7, 3:50:2] = 1
    file.flush()
    file["field"][10] = -1
    del file["shrinks"]

field[10] = -1
with h5py.File(path, "r") as file:
    assert (file["link"][()] == field).all()
    assert file["field"].attrs["unit"] == "m/s"
    assert (np.delete(file["packed"][()] == field, 10, axis=0)).all()
    assert (file["rows"][:, 4] == np.arange(50)).all()
    assert [word.decode() for word in file["words"][()]] == list(words)
    assert (file["table"]["b"][2] == [6, 7, 8]).all()
    assert file["hole"][-1] == 7 and not file["hole"][: (1 << 20) - 1].any()
    assert file["late"][()].sum() == 15 * 24
    assert all((file[f"many/{n % 10}/{n}"][()] == np.arange(n)).all() for n in range(200))
    # Anywhere, some at once.
    places = np.unique(random.integers(0, 300, 40))
    assert (file["field"][places] == field[places]).all()
    assert (file["field"][:, places] == field[:, places]).all()
print(h5py.version.hdf5_version)
