#!/usr/bin/python3
"""A dataset that one node has made comes to eight others over limited links, against the same to one other, on a real Slurm.

Prints the results in the form of `tarn bench --json`: the speed at which all have it, of that at which one has it, both from the
runs' logs, from the order of the first transfer to the end of the last. All nodes share one machine, so beside them stands what
it can do at most: as many bytes written to the nodes' tiers by `dd`, on all nodes at once. The cases take turns. Needs root.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time

from slurm import CLUSTER, cluster, done, turns

NODES = 8
WORKFLOW = """name = "broadcast"
[data.cake]
[[step]]
name = "bake"
run = "head -c {bytes} /dev/zero | openssl enc -aes-128-ctr -pass pass:cake -nosalt -out $TARN_cake/cake 2> /dev/null"
out = ["cake"]
[[step]]
name = "eat"
run = "true"
nodes = {nodes}
in = ["cake"]
"""


def seconds(log):
    """From the order of the first transfer between nodes to the end of the last."""
    orders, ends = {}, {}
    with open(log, encoding="utf-8") as file:
        # Each line has a checksum and a record, but for the first, which names the format.
        records = [json.loads(line[line.index("{"):]) for line in file if "{" in line]
        for record in records:
            for action in record.get("actions", []):
                if action["do"] == "transfer" and action["kind"] == "peer":
                    orders[action["id"]] = record["now"]
            if record.get("event") == "transfer-done":
                ends[record["id"]] = record["now"]
    return (max(ends[i] for i in orders) - min(orders.values())) / 1e9, len(orders)


class Bench:
    """The folders of a measurement, and a cluster."""

    def __init__(self, a, work, alice):
        self.shared, self.alice, self.bytes = os.path.join(work, "cluster", "shared"), alice, a.mib << 20
        self.tier = a.mib * 5 // 4
        os.makedirs(os.path.join(self.shared, "bin"), exist_ok=True)
        for name in ("tarn", "tarnd"):
            shutil.copy2(os.path.join(os.path.dirname(a.tarn), name), os.path.join(self.shared, "bin"))

    def to(self, others):
        """The dataset comes to so many other nodes."""
        text = WORKFLOW.format(bytes=self.bytes, nodes=others + 1)
        self.alice(f"rm -rf b && mkdir b && cat > b/workflow.toml << 'END'\n{text}END")
        run = f"tarn run --tier scm=/scm/alice:{self.tier}MiB workflow.toml"
        output = self.alice(f"cd b && salloc -Q --exclusive -N{others + 1} --mem={self.tier + 1000} bash -c '{run}' 2>&1 && ls $PWD/.tarn/runs/*/events.log")
        log = output.split()[-1]
        taken, copies = seconds(log.replace("/shared", self.shared, 1))
        if copies != others:
            sys.exit(f"broadcast.py: {copies} copies were made for {others} nodes")
        return taken


    def plain(self):
        """As many bytes as come to all, written to their tiers by `dd` on all nodes at once."""
        one = f"dd if=/dev/zero of=/scm/alice/plain bs=1M count={self.bytes >> 20} status=none; date +%s%N; rm /scm/alice/plain"
        # The first node is the source in a run. All begin at a moment that lies ahead.
        script = f"sleep $(( $1 - $(date +%s) )); [ $SLURM_PROCID = 0 ] || {{ mkdir -p /scm/alice; {one}; }}"
        start = int(time.time()) + 4
        ends = self.alice(f"salloc -Q --exclusive -N{NODES + 1} --mem={self.tier + 1000} srun --mpi=none bash -c '{script}' bash {start}").split()
        return max(map(int, ends)) / 1e9 - start


def main():
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tarn", help="the tarn program, built with --release, tarnd beside it")
    parser.add_argument("--dir", default="/var/tmp", help="where the cluster gets a folder; not /tmp (default /var/tmp)")
    parser.add_argument("--runs", type=int, default=3, help="repetitions that count (default 3)")
    parser.add_argument("--mib", type=int, default=1024, help="size of the dataset in MiB (default 1024)")
    parser.add_argument("--rate", type=int, default=1000, help="rate of each node's link in Mbit/s (default 1000)")
    a = parser.parse_args()
    a.tarn = os.path.abspath(a.tarn)
    # What is up is taken down then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="bench-broadcast-", dir=a.dir) as work:
        os.chmod(work, 0o755)
        folder = os.path.join(os.path.realpath(work), "cluster")
        with cluster(folder, NODES + 1, a.mib * 2 + 2000, a.mib * 3 // 2) as alice:
            for node in range(1, NODES + 2):
                done([CLUSTER, "shape-link", "--dir", folder, f"node{node}", str(a.rate)])
            bench = Bench(a, os.path.realpath(work), alice)
            medians, taken = turns(a.runs, {f"to {NODES}": lambda: bench.to(NODES), "to 1": lambda: bench.to(1), "plain": bench.plain})
    speed = {name: (a.mib << 20) / 1e6 / median for name, median in medians.items()}
    result = {
        "name": f"broadcast-8 ({a.mib} MiB from a node to {NODES} others, links of {a.rate} Mbit/s)",
        "value": speed[f"to {NODES}"],
        "unit": "MB/s",
        "against": {"name": "the same to one other", "value": speed["to 1"]},
        "ratio": speed[f"to {NODES}"] / speed["to 1"],
        "ceiling": {"name": f"{NODES} x dd to the tiers at once, on this machine", "value": speed["plain"]},
        "seconds": taken,
    }
    print(f"{result['name']}: {result['value']:.0f} MB/s; to one: {speed['to 1']:.0f} MB/s; ratio {result['ratio']:.2f}", file=sys.stderr)
    print(f"{result['ceiling']['name']}: {speed['plain']:.0f} MB/s each", file=sys.stderr)
    machine = {"cores": os.cpu_count(), "kernel": os.uname().release}
    print(json.dumps({"schema": 1, "bench": "broadcast", "machine": machine, "results": [result]}))


if __name__ == "__main__":
    main()
