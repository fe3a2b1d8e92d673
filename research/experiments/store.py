"""An external store that is played: bench/store.sh, a GlusterFS server behind a limited link."""

import contextlib
import os
import subprocess
import sys
import time

from experiment import TOP, need, run, report_progress

STORE = os.path.join(TOP, "bench", "store.sh")
NEEDS = "root, GlusterFS and iproute2 for the external store (scripts/deps.sh openfoam)"


def need_store():
    """Ends unless a store can be played here."""
    how = "scripts/deps.sh openfoam installs it"
    need({"glusterfs": how, "glusterfsd": how, "tc": how, "ip": how}, root=True)


def emulated(mbit, latency):
    """What is to be said of it."""
    return (
        f"The external store is a GlusterFS server in a network namespace of this machine, on memory, behind a link of {mbit} Mbit/s each way, each of its operations delayed by {latency} us. "
        "That rate decides how far it is from the node's tiers; nothing else of a parallel file system is played."
    )


@contextlib.contextmanager
def store(folder, mbit, latency):
    """Its mounted folder, for as long as it is there."""
    path = os.path.join(folder, "store")
    report_progress(f"an external store at {mbit} Mbit/s")
    try:
        run([STORE, "up", path, mbit, latency])
        yield os.path.join(path, "mnt")
    finally:
        subprocess.run([STORE, "down", path], check=False)


class Neighbour:
    """Another job that writes to the external store all the time, as `with` block.

    It runs when nobody else wants the processor, since such a job is on other nodes.
    """

    DESCRIPTION = (
        "The other job is a process of this machine that writes to the store all the time. It has the processor only when nobody else wants it (SCHED_IDLE), as such a job is on other nodes; "
        "the store's server and client share the processors with what is measured."
    )
    # Longer than any experiment may take.
    SECONDS = 3600

    def __init__(self, outside):
        self.path, self.writer = os.path.join(outside, "neighbour"), None

    def __enter__(self):
        words = ["chrt", "--idle", "0", "timeout", str(self.SECONDS), "sh", "-c", 'while dd if=/dev/zero of="$0" bs=1M count=16 conv=fsync; do :; done', self.path]
        self.writer = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while not (os.path.exists(self.path) and os.path.getsize(self.path) > 0):
            self.check()
            time.sleep(0.05)

    def check(self):
        """Ends if it writes no more."""
        if self.writer.poll() is not None:
            sys.exit(f"the other job, which writes to the store, has ended with {self.writer.returncode}: is the store full?")

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.check()
        finally:
            self.writer.terminate()
            self.writer.wait()
            os.remove(self.path)


def fresh(mounted):
    """Mounts it anew: nothing of it is in this machine's caches."""
    run([STORE, "fresh", os.path.dirname(mounted)])
