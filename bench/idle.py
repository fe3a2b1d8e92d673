#!/usr/bin/python3
"""What tarnd takes of each node while a run waits for a long step, on two nodes of a real Slurm.

Prints the results in the form of `tarn bench --json`: CPU in percent of a core (goal: 0.1) and resident memory (goal: 20 MiB). Needs root.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time

from slurm import CLUSTER, cluster, done

WORKFLOW = """name = "idle"
[[step]]
name = "wait"
run = "sleep {seconds}"
nodes = 2
"""
# Seconds after the start that do not count.
START = 5
NODES = ["node1", "node2"]


# Run on a node; the clock is that of the process's CPU time, see clock_getcpuclockid(3).
LOOK = """
import subprocess, time
pid = int(subprocess.check_output(["pgrep", "-x", "tarnd"]))
status = open(f"/proc/{pid}/status").read().split()
print(time.clock_gettime((~pid << 3) | 2), int(status[status.index("VmRSS:") + 1]) / 1024)
"""


def taken(folder, node):
    """CPU seconds of a node's tarnd so far, and its resident memory in MiB."""
    seconds, resident = done([CLUSTER, "exec", "--dir", folder, "--node", node, "--user", "root", "--", "/usr/bin/python3", "-c", LOOK]).split()
    return float(seconds), float(resident)


def main():
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tarn", help="the tarn program, built with --release, tarnd beside it")
    parser.add_argument("--dir", default="/var/tmp", help="where the cluster gets a folder; not /tmp (default /var/tmp)")
    parser.add_argument("--seconds", type=int, default=60, help="how long to look (default 60)")
    a = parser.parse_args()
    # What is up is taken down then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="bench-idle-", dir=a.dir) as work:
        os.chmod(work, 0o755)
        folder = os.path.join(os.path.realpath(work), "cluster")
        with cluster(folder, 2, 4000, 1024) as alice:
            os.makedirs(os.path.join(folder, "shared", "bin"), exist_ok=True)
            for name in ("tarn", "tarnd"):
                shutil.copy2(os.path.join(os.path.dirname(os.path.abspath(a.tarn)), name), os.path.join(folder, "shared", "bin"))
            text = WORKFLOW.format(seconds=a.seconds + 2 * START)
            alice(f"mkdir b && cat > b/workflow.toml << 'END'\n{text}END")
            alice("cd b && (salloc -Q --exclusive -N2 --mem=2000 tarn run --tier scm=/scm/alice:512MiB workflow.toml > log 2>&1 &)")
            time.sleep(START)
            before, began = [taken(folder, node) for node in NODES], time.monotonic()
            time.sleep(a.seconds)
            after, span = [taken(folder, node) for node in NODES], time.monotonic() - began
    percent = statistics.median(100 * (b[0] - a[0]) / span for a, b in zip(before, after))
    resident = max(mib for _, mib in after)
    what = "tarnd of a run that waits for a step"
    results = [
        {"name": f"{what}, CPU", "value": percent, "unit": "% of a core", "against": {"name": "goal", "value": 0.1}},
        {"name": f"{what}, resident memory", "value": resident, "unit": "MiB", "against": {"name": "goal", "value": 20}},
    ]
    for result in results:
        print(f"{result['name']}: {result['value']:.3f} {result['unit']}", file=sys.stderr)
    machine = {"cores": os.cpu_count(), "kernel": os.uname().release}
    print(json.dumps({"schema": 1, "bench": "idle", "machine": machine, "results": results}))


if __name__ == "__main__":
    main()
