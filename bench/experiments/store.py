"""An external store that is played: bench/store.sh, a GlusterFS server behind a limited link."""

import contextlib
import os
import subprocess

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


def fresh(mounted):
    """Mounts it anew: nothing of it is in this machine's caches."""
    run([STORE, "fresh", os.path.dirname(mounted)])
