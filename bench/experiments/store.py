"""An external store that is played: bench/store.sh, a GlusterFS server behind a limited link."""

import contextlib
import os
import random
import subprocess
import threading

from experiment import TOP, need, run, say

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
    say(f"an external store at {mbit} Mbit/s")
    run([STORE, "up", path, mbit, latency])
    try:
        yield os.path.join(path, "mnt")
    finally:
        subprocess.run([STORE, "down", path], check=False)


class Neighbour:
    """Another job that uses the external store, as `with` block: it writes for some seconds, computes for some, and so on, by a seed.

    It runs when nobody else wants the processor, since such a job is on other nodes.
    """

    SECONDS = (2, 10)

    def __init__(self, outside, seed):
        self.path, self.random, self.ends = os.path.join(outside, "neighbour"), random.Random(seed), threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        """In turns, whichever comes first."""
        writes = self.random.random() < 0.5
        while not self.ends.is_set():
            seconds = self.random.uniform(*self.SECONDS)
            if writes:
                self.write(seconds)
            else:
                self.ends.wait(seconds)
            writes = not writes

    def write(self, seconds):
        """The same file, for so long."""
        words = ["chrt", "--idle", "0", "timeout", str(seconds), "sh", "-c", 'while dd if=/dev/zero of="$0" bs=1M count=16 conv=fsync; do :; done', self.path]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as writer:
            while writer.poll() is None and not self.ends.wait(0.05):
                pass
            writer.terminate()

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()


def fresh(mounted):
    """Mounts it anew: nothing of it is in this machine's caches."""
    run([STORE, "fresh", os.path.dirname(mounted)])
