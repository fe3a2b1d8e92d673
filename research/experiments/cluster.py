"""A real Slurm on this machine, its nodes namespaces, for experiments: bench/slurm.py."""

import contextlib
import os
import shutil
import sys

from experiment import TOP, missing

sys.path.insert(1, os.path.join(TOP, "bench"))
from slurm import Site, cluster, configuration  # noqa: E402

# Of the shared namespace.
BRICK = "libtarnbrick.so"
NEEDS = "root, Slurm and munge for the cluster (scripts/deps.sh test)"


def cannot(bench):
    """Why a cluster cannot be made here; None when it can."""
    absent = [program for program in ("slurmctld", "slurmd", "munged", "tc") if shutil.which(program) is None]
    if absent:
        return f"needs {absent[0]}: scripts/deps.sh test installs it"
    if os.geteuid() != 0:
        return "needs root, for namespaces, mounts and limited links: run it with sudo"
    if os.path.realpath(bench.folder).startswith("/tmp/"):
        return "needs a folder outside /tmp, as the cluster's nodes have a /tmp of their own: name another with --dir"
    return None


def need_cluster(bench):
    """Ends unless a cluster can be made here."""
    reason = cannot(bench)
    if reason is not None:
        missing(reason)


@contextlib.contextmanager
def slurm(bench, nodes, memory, tier, options=()):
    """Scripts of an ordinary user on its login node, and the folder that all nodes see as /shared, with tarn in /shared/bin."""
    folder = os.path.join(bench.folder, "cluster")
    os.chmod(bench.folder, 0o755)
    with cluster(folder, nodes, memory, tier, options) as alice:
        shared = os.path.join(folder, "shared")
        os.makedirs(os.path.join(shared, "bin"), exist_ok=True)
        for name in ("tarn", "tarn-bench", "tarnd", BRICK):
            built = os.path.join(os.path.dirname(bench.tarn), name)
            if os.path.exists(built):
                shutil.copy2(built, os.path.join(shared, "bin"))
        yield alice, shared


@contextlib.contextmanager
def site(bench, nodes, memory, tier):
    """The same as a site, with tarn's controller and a tarnd on each node."""
    etc = configuration(bench.tarn, os.path.join(bench.folder, "root"))
    with slurm(bench, nodes, memory, tier, ["--etc", etc]) as (alice, shared):
        yield Site(os.path.dirname(shared), alice, nodes)
