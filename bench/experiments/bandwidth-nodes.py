#!/usr/bin/python3
"""Bandwidth of all nodes' tiers together, and of the external store, as nodes are added (Jackson 2019, section 3)."""

import json
import os
import re
import shutil
import statistics

from experiment import MIB, claim, main, missing, need, point, run, say, spread

ABOUT = {
    "title": "Bandwidth of all tiers together as nodes are added",
    "source": "Jackson 2019, section 3",
    "needs": ["python3 in the PATH of steps", "namespaces of its own for steps (an ordinary user's, or root's)", "2 GiB of memory"],
    "minutes": {"quick": 0.8, "full": 4},
}
# A node of the paper's prototype and its store, as examples/machines/nextgenio.toml has them.
CLUSTER = """name = "prototype"
[external]
read = "7 GB/s"
write = "7 GB/s"
client-read = "1.8 GB/s"
client-write = "1 GB/s"
[[island]]
name = "cn"
nodes = {nodes}
cores = 48
link = {{ read = "12.5 GB/s", write = "12.5 GB/s" }}
[[island.tier]]
name = "pmem"
capacity = "3 TB"
read = "3.3 GB/s"
write = "1.5 GB/s"
"""
SIZE = 100_000_000_000
POLICIES = {"tiers": "data", "external store": "easy"}
# What a run is held to: a tier of a node, and the store for all nodes together, bytes a second.
TIER, STORE = 64_000_000, 128_000_000
# Writes or reads so many bytes of a file, no sooner than they would have gone at that rate.
PACED = """
import sys, time
how, path, size, rate = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
began, done = time.monotonic(), 0
with open(path, how) as file:
    while done < size:
        block = min(1 << 20, size - done)
        if how == "wb":
            file.write(bytes(block))
        elif len(file.read(block)) != block:
            sys.exit("it is shorter than it was written")
        done += block
        time.sleep(max(0, began + done / rate - time.monotonic()))
"""


def simulated(bench, nodes):
    """GB/s of all reading and writing together, by where data lie: each node's job writes, and another one reads it."""
    folder = os.path.join(bench.folder, "simulated")
    os.makedirs(folder, exist_ok=True)
    names = [f"d{n}" for n in range(nodes)]
    texts = [f'[data.{name}]\nsize = "{SIZE} B"\n' for name in names]
    texts += [f'[[job]]\nname = "write-{name}"\nworkflow = "{name}"\nnodes = 1\ncompute = "1s"\nout = ["{name}"]\n' for name in names]
    texts += [f'[[job]]\nname = "read-{name}"\nworkflow = "{name}"\nnodes = 1\ncompute = "1s"\nin = ["{name}"]\n' for name in names]
    for name, text in (("cluster", CLUSTER.format(nodes=nodes)), ("workload", "".join(texts))):
        with open(os.path.join(folder, f"{name}.toml"), "w", encoding="ascii") as file:
            file.write(text)
    said = bench.json("sim", "--cluster", f"{folder}/cluster.toml", "--workload", f"{folder}/workload.toml", "--policy", ",".join(POLICIES.values()))
    return {where: 2 * nodes * SIZE / 1e9 / ran["makespan_s"] for where, ran in zip(POLICIES, said["runs"])}


def workflow(where, folder, nodes, size):
    """A step on each node that writes, and one that reads."""
    items = [f"part{n}" for n in range(nodes)]
    rate = TIER if where == "tiers" else STORE / nodes
    place = "$TARN_made" if where == "tiers" else f"{folder}/outside"
    step = {"cores": os.cpu_count(), "foreach": items}
    write = {**step, "name": "write", "run": f"python3 {folder}/paced.py wb {place}/$TARN_ITEM {size} {rate}"}
    read = {**step, "name": "read", "run": f"python3 {folder}/paced.py rb {place}/$TARN_ITEM {size} {rate}"}
    lines = ['name = "bandwidth"']
    if where == "tiers":
        lines += ["[data.made]", f'size = "{nodes * size} B"']
        write["out"] = ["made"]
        read.update({"foreach": "made/*", "max": nodes, "in": ["made/{item}"]})
    else:
        read["after"] = ["write"]
    for one in (write, read):
        lines += ["[[step]]", *[f"{key} = {json.dumps(value)}" for key, value in one.items()]]
    return "\n".join(lines) + "\n"


def executed(bench, where, nodes, size):
    """The same of a real run: from the first step's start to the last one's end, for each of the two; how many steps moved no data."""
    folder = os.path.join(bench.folder, "run")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "outside"))
    with open(os.path.join(folder, "paced.py"), "w", encoding="ascii") as file:
        file.write(PACED)
    path, page = os.path.join(folder, "bandwidth.toml"), os.path.join(folder, "report.html")
    with open(path, "w", encoding="ascii") as file:
        file.write(workflow(where, folder, nodes, size))
    run([bench.tarn, "run", path, "--nodes", nodes, "--oversubscribe", "--report", page], cwd=folder)
    with open(page, encoding="utf-8") as file:
        drawn = json.loads(re.search(r'id="tarn-run">(.*?)</script>', file.read(), re.DOTALL).group(1))
    seconds = 0
    for step in range(len(drawn["steps"])):
        mine = [row for row in drawn["attempts"] if row[0] == step]
        seconds += (max(row[8] for row in mine) - min(row[7] for row in mine)) / 1e6
    return 2 * nodes * size / 1e9 / seconds


def measure(bench):
    """In the simulator and by runs, nodes doubled each time."""
    need(memory=2048)
    if shutil.which("python3") is None:
        missing("needs python3 in the PATH of steps")
    machines = bench.choose((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
    counts, rounds, size = (1, 2, 4, 8), bench.choose(1, 3), bench.choose(64, 128) * MIB
    virtual = {nodes: simulated(bench, nodes) for nodes in machines}
    real = {}
    for turn in range(rounds):
        for nodes in counts:
            for where in POLICIES:
                say(f"{turn + 1}/{rounds}: {nodes} nodes, {where}")
                real.setdefault((where, nodes), []).append(executed(bench, where, nodes, size))
    middle = {key: statistics.median(values) for key, values in real.items()}
    grown = {where: (virtual[machines[-1]][where] / virtual[1][where], middle[(where, counts[-1])] / middle[(where, 1)]) for where in POLICIES}
    most = {where: max(v[where] for v in virtual.values()) for where in POLICIES}
    reached = max(middle[("external store", nodes)] for nodes in counts)
    return {
        "emulated": [
            f"Nodes of the runs are namespaces of this machine. Their steps hold themselves to {TIER // 1000000} MB/s on the node's tier, and to {STORE // 1000000} MB/s of all of them together on the external store, so that two cores can do it for eight nodes.",
            "In the simulator nodes and store have the rates of the paper's prototype (examples/machines/nextgenio.toml).",
        ],
        "differs": [
            "The paper states the principle, and the peak of a node times the number of nodes; it measures no sweep.",
            "So that tiers grow with the nodes is put in. What is shown is that tarn does not stand in the way: each step finds its data on its node, and nothing it does grows with their number.",
        ],
        "rounds": rounds,
        "tables": [
            {"title": "Simulated, GB/s", "columns": ["nodes", *POLICIES], "rows": [[str(nodes), *[virtual[nodes][where] for where in POLICIES]] for nodes in machines]},
            {"title": "Run, GB/s", "columns": ["nodes", *POLICIES], "rows": [[str(nodes), *[spread(real[(where, nodes)]) for where in POLICIES]] for nodes in counts]},
        ],
        "plots": [
            {
                "title": title,
                "kind": "lines",
                "x": {"label": "nodes", "log": True},
                "y": {"label": "GB/s, reading and writing", "log": True},
                "series": [{"name": where, "of": "here" if where == "tiers" else "peer", "points": points(where)} for where in POLICIES],
            }
            for title, points in (
                ("Simulated", lambda where: [[nodes, virtual[nodes][where]] for nodes in machines]),
                ("Run", lambda where: [point(nodes, real[(where, nodes)]) for nodes in counts]),
            )
        ],
        "claims": [
            claim(
                "the bandwidth of the nodes' tiers grows with their number",
                "linearly",
                f"simulated {grown['tiers'][0]:.0f} times with {machines[-1]} nodes, run {grown['tiers'][1]:.1f} times with {counts[-1]}",
                grown["tiers"][0] > 0.95 * machines[-1] and grown["tiers"][1] > 0.8 * counts[-1],
            ),
            claim(
                "that of the external store does not",
                "fixed",
                f"simulated at most {most['external store']:.1f} GB/s, run at most {1000 * reached:.0f} MB/s",
                most["external store"] <= 7.0 * 1.01 and reached <= STORE / 1e9 * 1.05,
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
