"""What the experiments of storage memory share: queue pairs, a block device, and IOR's stand-in, each by its rate at a size."""

import contextlib
import json
import os
import shutil
import subprocess
import time

from experiment import MIB, TOP, need, run

HOW = "scripts/deps.sh test installs it"
# Requests that are under way at the same time, where several are.
DEPTH = 32


def phases(bench, size, threads, rounds, mib=256):
    """GB/s of a queue pair, and of the same copies without one: writes in sequence, reads from anywhere, all threads together."""
    deep = max(1, min(512, 64 * MIB // size))
    signal = min(deep, DEPTH)
    requests = max(64, min(65536, mib * MIB // size))
    words = ["dsa", "--case", "phases", "--write-size", f"{size} B", "--read-size", f"{size} B", "--depth", deep, "--batch", min(deep, 64), "--signal", signal]
    words += ["--requests", requests, "--threads", threads, "--rounds", rounds, "--warm", 1, "--mib", mib]
    found = {}
    for name, (value, against) in bench.figures(*map(str, words)).items():
        what = "write" if name.startswith("phases, write") else "read"
        # M/s of requests.
        found[what] = (value * size / 1000, against * size / 1000)
    return found


def need_block():
    """Ends unless fio and nbdkit are there."""
    need({"fio": HOW, "nbdkit": HOW})


@contextlib.contextmanager
def block(bench, mib):
    """The URI of a partition that is served as a block device."""
    folder = f"/dev/shm/tarn-block-{os.getpid()}"
    os.makedirs(folder, mode=0o700)
    server = None
    try:
        partition, socket = os.path.join(folder, "disk"), os.path.join(folder, "socket")
        run([bench.tarn, "partition", "create", partition, f"{mib}MiB"])
        server = subprocess.Popen([bench.tarn, "block", "serve", "--socket", socket, partition], stdout=subprocess.DEVNULL)
        for _ in range(100):
            if os.path.exists(socket):
                break
            time.sleep(0.1)
        yield f"nbd+unix:///?socket={socket}"
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def device(uri, what, size, jobs, mib, seconds=0.5):
    """GB/s of fio at a block device: writes in sequence, reads from anywhere, by so many clients at once."""
    order = "write" if what == "write" else "randread"
    deep = max(1, min(DEPTH, 16 * MIB // size))
    words = ["--name=sweep", "--output-format=json", "--thread=1", "--ioengine=nbd", f"--uri={uri}", f"--rw={order}", f"--bs={size}", f"--size={mib}m", f"--iodepth={deep}"]
    words += [f"--numjobs={jobs}", "--group_reporting=1", "--time_based=1", f"--runtime={seconds}s"]
    said = run(["fio", *words])
    return json.loads(said[said.index("{") :])["jobs"][0][what]["bw_bytes"] / 1e9


def ior(bench):
    """Compiles IOR's stand-in; its path."""
    need({"mpicc": HOW, "mpirun": HOW})
    program = os.path.join(bench.folder, "ior")
    run(["mpicc", "-O2", "-o", program, os.path.join(TOP, "bench", "experiments", "ior.c")])
    return program


def files(program, api, pattern, size, ranks, mib):
    """GB/s of IOR's stand-in on a tmpfs: (write, read)."""
    folder = f"/dev/shm/tarn-ior-{os.getpid()}"
    os.makedirs(folder)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    blocks = max(1, mib * MIB // ranks // size)
    try:
        environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
        said = run(["mpirun", "--oversubscribe", "--bind-to", "none", *root, "-np", ranks, program, api, pattern, size, blocks, f"{folder}/f"], env=environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = {line.split()[0]: float(line.split()[1]) for line in said.splitlines()}
    return {what: ranks * blocks * size / 1e9 / seconds[what] for what in ("write", "read")}
