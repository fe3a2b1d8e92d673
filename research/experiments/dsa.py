"""What the experiments of storage memory share: queue pairs, a block device, and IOR, each by its rate at a size."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time

from experiment import MIB, need, run
from ior import root
from nodes import served

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
    try:
        partition, socket = os.path.join(folder, "disk"), os.path.join(folder, "socket")
        run([bench.tarn, "partition", "create", partition, f"{mib}MiB"])
        with served([bench.tarn], socket, partition) as uri:
            yield uri
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fio_rate(output, what):
    """GB/s of a phase in fio's JSON, which may have notes before it."""
    return json.loads(output[output.index("{") :])["jobs"][0][what]["bw_bytes"] / 1e9


def devices(uris, what, size, jobs, mib, seconds=0.5, warm=0):
    """GB/s of fio at each of several block devices at once: writes in sequence, reads from anywhere, by so many clients at each, once they are warm."""
    order = "write" if what == "write" else "randread"
    deep = max(1, min(DEPTH, 16 * MIB // size))
    words = ["fio", "--name=sweep", "--output-format=json", "--thread=1", "--ioengine=nbd", f"--rw={order}", f"--bs={size}", f"--size={mib}m", f"--iodepth={deep}"]
    words += [f"--numjobs={jobs}", "--group_reporting=1", "--time_based=1", f"--runtime={seconds}s", f"--ramp_time={warm}s"]
    running = [subprocess.Popen([*words, f"--uri={uri}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for uri in uris]
    rates = []
    for child in running:
        output, error = child.communicate()
        if child.returncode != 0:
            raise SystemExit(f"fio failed: {(error or output).strip()[-2000:]}")
        rates.append(fio_rate(output, what))
    return rates


def device(uri, what, size, jobs, mib):
    """The same of one."""
    return devices([uri], what, size, jobs, mib)[0]


def cannot_attach():
    """Why the block device cannot be made one of the kernel's here; None when it can."""
    if os.geteuid() != 0:
        return "it takes root"
    absent = [program for program in ("nbdfuse", "losetup", "mkfs.ext4") if shutil.which(program) is None]
    if absent:
        return f"it takes {absent[0]}: {HOW}"
    return None if os.path.exists("/dev/fuse") and os.path.exists("/dev/loop-control") else "this kernel has no FUSE or no loop devices"


@contextlib.contextmanager
def loop(file):
    """The kernel's block device over a file."""
    device = run(["losetup", "--find", "--show", "--direct-io=on", file]).strip()
    try:
        yield device
    finally:
        run(["losetup", "--detach", device])


@contextlib.contextmanager
def attached(bench, uri):
    """What a URI serves as a device of the kernel's, by nbdfuse and a loop device: kernels without an NBD client have these."""
    folder = os.path.join(bench.folder, "attached")
    os.makedirs(folder)
    file = os.path.join(folder, "nbd")
    fuse = subprocess.Popen(["nbdfuse", "--connections=4", file, uri])
    try:
        for _ in range(100):
            if os.path.exists(file):
                break
            time.sleep(0.1)
        with loop(file) as device:
            yield device
    finally:
        subprocess.run(["umount", folder], check=False)
        fuse.wait()
        os.rmdir(folder)


@contextlib.contextmanager
def mounted(bench, device):
    """The folder where a new ext4 on a device is mounted."""
    folder = os.path.join(bench.folder, f"mounted-{os.path.basename(device)}")
    os.makedirs(folder)
    try:
        run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", device])
        run(["mount", "-t", "ext4", device, folder])
        yield folder
    finally:
        if os.path.ismount(folder):
            run(["umount", folder])
        os.rmdir(folder)


@contextlib.contextmanager
def plain_file(mib):
    """A file on a tmpfs, with all its memory."""
    file = f"/dev/shm/tarn-plain-{os.getpid()}"
    try:
        with open(file, "wb") as empty:
            os.posix_fallocate(empty.fileno(), 0, mib * MIB)
        yield file
    finally:
        os.unlink(file)


def dd(device, what, mib):
    """GB/s that dd tells of 1 MiB after 1 MiB, past the caches."""
    ends = ["if=/dev/zero", f"of={device}", "oflag=direct", "conv=fsync"] if what == "write" else [f"if={device}", "of=/dev/null", "iflag=direct"]
    # It says so on standard error.
    return dd_rate(run(["bash", "-c", 'dd "$@" 2>&1', "dd", *ends, "bs=1M", f"count={mib}"], env={**os.environ, "LC_ALL": "C"}))


def dd_rate(output):
    """GB/s in what dd says at its end."""
    bytes_, seconds = re.search(r"(\d+) bytes .* copied, ([0-9.e-]+) s", output).groups()
    return int(bytes_) / 1e9 / float(seconds)


def files(ior, api, pattern, size, ranks, mib, parent="/dev/shm"):
    """GB/s of IOR, or its stand-in, in a folder, by default a tmpfs, by phase."""
    folder = os.path.join(parent, f"tarn-ior-{os.getpid()}")
    os.makedirs(folder)
    blocks = max(1, mib * MIB // ranks // size)
    try:
        environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
        words = ior.words(api, pattern, size, blocks, f"{folder}/f")
        output = run(["mpirun", "--oversubscribe", "--bind-to", "none", *root(), "-np", ranks, *words], env=environment)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {what: ranks * blocks * size / 1e9 / taken for what, taken in ior.seconds(output).items()}
