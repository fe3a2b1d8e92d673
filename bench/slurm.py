"""What the benchmarks on a real Slurm cluster have in common."""

import contextlib
import os
import statistics
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLUSTER = os.path.join(TOP, "tests", "cluster", "slurm-cluster")


def done(command):
    """What a command says; it must succeed."""
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)} failed ({ended.returncode}):\n{(ended.stdout + ended.stderr)[-4000:]}")
    return ended.stdout


@contextlib.contextmanager
def cluster(folder, nodes, memory, tier, options=()):
    """A cluster, which ends with the block; MiB of a node and of its tier; further options. Runs scripts on its login node."""
    command = [CLUSTER, "hold", "--dir", folder, "--nodes", str(nodes), "--memory", str(memory), "--tier", str(tier), *options]
    with open(os.path.join(os.path.dirname(folder), "cluster.log"), "w", encoding="utf-8") as log:
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        if holder.stdout.readline() != "ready\n":
            sys.exit(f"no cluster came up: {log.name}")
        yield lambda script: done([CLUSTER, "exec", "--dir", folder, "--", "bash", "-c", script])
    finally:
        holder.stdin.close()
        holder.wait()


def turns(runs, cases):
    """Medians of the cases, run in turns after one run each that does not count, and all that counts."""
    seconds = {name: [] for name in cases}
    for turn in range(runs + 1):
        for name, case in cases.items():
            taken = case()
            print(f"  {name}: {taken:.2f} s", file=sys.stderr)
            if turn > 0:
                seconds[name].append(taken)
    return {name: statistics.median(taken) for name, taken in seconds.items()}, seconds
