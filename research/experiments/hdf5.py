"""Processes that write one HDF5 file together, each its blocks in turn with the others' (Schürmann 2014, section 6.3)."""

import contextlib
import os
import subprocess
import tempfile

from experiment import MIB, TOP, missing

NEEDS = "a Python with h5py 3.10 or later ($TARN_PYTHON, or what scripts/deps.sh test makes)"
MADE = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target")), "hdf5-python", "new", "bin", "python")
# What a writer writes at a time: the paper's.
BLOCK = 4 * MIB
# Makes the file `x` with room for so many bytes.
MAKES = """
import sys
import h5py
plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
with h5py.File('x', 'w') as file:
    h5py.h5d.create(file.id, b'a', h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple((int(sys.argv[1]),)), plist)
"""
# Says when it is ready, and of each round when it began and ended.
WRITES = f"""
import sys, time
rank, ranks, kind, whole = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
piece = bytes([rank + 1]) * {BLOCK}
if kind == 'hdf5':
    import h5py, numpy
    file = h5py.File('x', 'r+')
    data, piece = file['a'], numpy.frombuffer(piece, 'u1')
    def write(at):
        data[at : at + {BLOCK}] = piece
else:
    import os
    descriptor = os.open('plain', os.O_WRONLY)
    def write(at):
        os.pwrite(descriptor, piece, at)
print('ready', flush=True)
for _ in sys.stdin:
    began = time.monotonic()
    for at in range(rank * {BLOCK}, whole, ranks * {BLOCK}):
        write(at)
    print(began, time.monotonic(), flush=True)
if kind == 'hdf5':
    file.close()
"""


def python():
    """A Python that has h5py."""
    for path in (os.environ.get("TARN_PYTHON"), MADE, "/usr/bin/python3"):
        if path and subprocess.run([path, "-c", "import h5py; assert h5py.version.version_tuple[:2] >= (3, 10)"], capture_output=True, check=False).returncode == 0:
            return path
    missing("needs a Python with h5py 3.10 or later: name it by TARN_PYTHON, or let scripts/deps.sh test make one")


def need_plugin(bench):
    """Ends unless the plug-in for HDF5 is there."""
    if not os.path.isdir(os.path.join(os.path.dirname(bench.tarn), "hdf5")):
        missing("needs the plug-in for HDF5 beside tarn: make build makes it")


@contextlib.contextmanager
def writers(command, folder, ranks, kind, whole, environment=None):
    """Processes that wait to be told to write so many bytes together; the rate of a round of all, in MB/s."""
    words = [[*command, "-c", WRITES, str(rank), str(ranks), kind, str(whole)] for rank in range(ranks)]
    all_of_them, errors = [], []

    def line(at):
        """The next that a writer says."""
        text = all_of_them[at].stdout.readline()
        if text:
            return text
        status = all_of_them[at].wait()
        errors[at].seek(0)
        raise SystemExit(f"{errors[at].read()[-4000:].strip()}\nwriter {at + 1} of {ranks} of one file ({kind}) ended with {status}")

    def once():
        for child in all_of_them:
            # One that is not there any more is told by what it does not say.
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write("go\n")
                child.stdin.flush()
        times = [tuple(map(float, line(at).split())) for at in range(ranks)]
        return whole / 1e6 / (max(end for _, end in times) - min(begin for begin, _ in times))

    try:
        for w in words:
            errors.append(tempfile.TemporaryFile("w+", errors="replace"))
            all_of_them.append(subprocess.Popen(w, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors[-1], text=True))
        for at in range(ranks):
            if line(at) != "ready\n":
                raise SystemExit("a writer of the file did not begin")
        yield once
    finally:
        for child in all_of_them:
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            child.wait()
        for error in errors:
            error.close()
