#!/usr/bin/python3
"""Bandwidth of all nodes' tiers together, and of the external store, as nodes are added (Jackson 2019, section 3)."""

import json
import os
import re
import shutil

import cluster
from experiment import EMULATED, MIB, SIMULATED, UNCLEAR, check_bounds, claim, every, exact, factors, main, missing, need, point, run, report_progress, spread, times

ABOUT = {
    "title": "Bandwidth of all tiers together as nodes are added",
    "source": "Jackson 2019, section 3",
    "needs": ["python3 in the PATH of steps", "namespaces of its own for steps (an ordinary user's, or root's)", f"for the part on a cluster {cluster.NEEDS}", "4 GiB of memory"],
    "minutes": {"quick": 0.9, "full": 4.4},
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
# Of a node of the cluster, as it pretends.
CORES = 8
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
    simulation = bench.json("sim", "--cluster", f"{folder}/cluster.toml", "--workload", f"{folder}/workload.toml", "--policy", ",".join(POLICIES.values()))
    return {where: 2 * nodes * SIZE / 1e9 / ran["makespan_s"] for where, ran in zip(POLICIES, simulation["runs"])}


def workflow(where, folder, nodes, size, cores):
    """A step on each node of so many cores that writes, and one that reads."""
    items = [f"part{n}" for n in range(nodes)]
    rate = TIER if where == "tiers" else STORE / nodes
    place = "$TARN_made" if where == "tiers" else f"{folder}/outside"
    step = {"cores": cores, "foreach": items}
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


def rate(page, nodes, size):
    """GB/s in a run's report: from the first step's start to the last one's end, for each of the two."""
    with open(page, encoding="utf-8") as file:
        drawn = json.loads(re.search(r'id="tarn-run">(.*?)</script>', file.read(), re.DOTALL).group(1))
    seconds = 0
    for step in range(len(drawn["steps"])):
        mine = [row for row in drawn["attempts"] if row[0] == step]
        seconds += (max(row[8] for row in mine) - min(row[7] for row in mine)) / 1e6
    return 2 * nodes * size / 1e9 / seconds


def written(folder, where, nodes, size, seen=None, cores=os.cpu_count()):
    """Writes program and workflow in a folder, which steps see by another name, perhaps."""
    with open(os.path.join(folder, "paced.py"), "w", encoding="ascii") as file:
        file.write(PACED)
    path = os.path.join(folder, "bandwidth.toml")
    with open(path, "w", encoding="ascii") as file:
        file.write(workflow(where, seen or folder, nodes, size, cores))
    return path


def executed(bench, where, nodes, size):
    """The same of a real run."""
    folder = os.path.join(bench.folder, "run")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "outside"))
    page = os.path.join(folder, "report.html")
    run([bench.tarn, "run", written(folder, where, nodes, size), "--nodes", nodes, "--oversubscribe", "--report", page], cwd=folder)
    return rate(page, nodes, size)


def through_slurm(bench, counts, size, rounds):
    """The same of the tiers in allocations of a real Slurm, lists by number of nodes."""
    tier = size // MIB + 128
    found = {nodes: [] for nodes in counts}
    with cluster.slurm(bench, max(counts), tier + 1500, tier) as (alice, shared):
        for turn in range(rounds):
            for nodes in counts:
                report_progress(f"{turn + 1}/{rounds}: {nodes} nodes of Slurm")
                # Each has its own folder, where its state lies, and tiers on which nothing lies.
                folder = os.path.join(shared, f"run-{turn}-{nodes}")
                os.mkdir(folder)
                os.chmod(folder, 0o777)
                written(folder, "tiers", nodes, size, f"/shared/run-{turn}-{nodes}", CORES)
                inside = f"srun sh -c 'rm -rf /scm/alice/*'; tarn run --tier scm=/scm/alice:{tier - 64}MiB --report bandwidth.html bandwidth.toml"
                alice(f'cd /shared/run-{turn}-{nodes}; salloc -Q -N{nodes} --ntasks-per-node=1 --exclusive --mem={tier + 1000} bash -c "{inside}"')
                found[nodes].append(rate(os.path.join(folder, "bandwidth.html"), nodes, size))
    return found


def measure(bench):
    """In the simulator and by runs, nodes doubled each time."""
    need(memory=4096, shm=2048, disk=(bench.folder, 2048))
    if shutil.which("python3") is None:
        missing("needs python3 in the PATH of steps")
    machines = bench.choose((1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
    counts, rounds, size = bench.choose((1, 8), (1, 2, 4, 8)), bench.choose(2, 3), bench.choose(64, 128) * MIB
    virtual = {nodes: simulated(bench, nodes) for nodes in machines}
    real = {}
    for turn in range(rounds):
        for nodes in counts:
            for where in POLICIES:
                report_progress(f"{turn + 1}/{rounds}: {nodes} nodes, {where}")
                real.setdefault((where, nodes), []).append(executed(bench, where, nodes, size if where == "tiers" else size // bench.choose(2, 1)))
    reason = cluster.cannot(bench)
    slurm = through_slurm(bench, counts, size, rounds) if reason is None else {}
    under_slurm = [{"name": "tiers, under Slurm", "of": "here", "points": [point(nodes, values) for nodes, values in slurm.items()]}] if slurm else []
    most = counts[-1]
    grown = {"run": times(real[("tiers", most)], real[("tiers", 1)]), **({"under Slurm": times(slurm[most], slurm[1])} if slurm else {})}
    simulated_growth = virtual[machines[-1]]["tiers"] / virtual[1]["tiers"]
    outside = max(v["external store"] for v in virtual.values())
    # What each number of nodes reaches of the store's rate.
    reached = [value / (STORE / 1e9) for nodes in counts for value in real[("external store", nodes)]]
    return {
        "emulated": [
            f"Nodes of the runs are namespaces of this machine, also those of Slurm. Their steps hold themselves to {TIER // 1000000} MB/s on the node's tier, and to {STORE // 1000000} MB/s of all of them together on the external store, so that two cores can do it for eight nodes.",
            "In the simulator nodes and store have the rates of the paper's prototype (examples/machines/nextgenio.toml).",
        ],
        "differs": [
            "The paper states the principle, and the peak of a node times the number of nodes; it measures no sweep.",
            "So that tiers grow with the nodes is put in. What is shown is that tarn does not stand in the way: each step finds its data on its node, and nothing it does grows with their number.",
        ],
        "how": [SIMULATED, EMULATED],
        "rounds": rounds,
        "tables": [
            {"title": "Simulated, GB/s", "columns": ["nodes", *POLICIES], "rows": [[str(nodes), *[virtual[nodes][where] for where in POLICIES]] for nodes in machines], "how": [SIMULATED]},
            {"title": "Run, GB/s", "columns": ["nodes", *POLICIES], "rows": [[str(nodes), *[spread(real[(where, nodes)]) for where in POLICIES]] for nodes in counts], "how": [EMULATED]},
            {
                "title": f"In an allocation of a real Slurm, GB/s{f' (not measured: {reason})' if reason else ''}",
                "columns": ["nodes", "tiers"],
                "rows": [[str(nodes), spread(values)] for nodes, values in slurm.items()],
                "how": [EMULATED],
            },
        ],
        "plots": [
            {
                "title": title,
                "kind": "lines",
                "x": {"label": "nodes", "log": True},
                "y": {"label": "GB/s, reading and writing", "log": True},
                "series": [{"name": where, "of": "here" if where == "tiers" else "peer", "points": points(where)} for where in POLICIES] + more,
                "how": [how],
            }
            for title, how, points, more in (
                ("Simulated", SIMULATED, lambda where: [[nodes, virtual[nodes][where]] for nodes in machines], []),
                ("Run", EMULATED, lambda where: [point(nodes, real[(where, nodes)]) for nodes in counts], under_slurm),
            )
        ],
        "claims": [
            claim(
                "in the simulator, the bandwidth of the nodes' tiers grows with their number, and that of the external store does not",
                "linearly; fixed",
                f"{simulated_growth:.0f} times with {machines[-1]} nodes; at most {outside:.1f} GB/s",
                exact(simulated_growth > 0.95 * machines[-1] and outside <= 7.0 * 1.01),
                [SIMULATED],
            ),
            claim(
                "in real runs, the bandwidth of the nodes' tiers grows with their number, to 0.8 of ideal or more",
                "linearly",
                ", ".join(f"{way} {factors(values)}" for way, values in grown.items()) + f" with {most} nodes, whose tiers are held to a rate (by tarn)",
                every(*[check_bounds(values, least=0.8 * most) for values in grown.values()], *([] if slurm else [UNCLEAR])),
                [EMULATED],
            ),
            claim(
                "in real runs, the bandwidth of the external store does not grow beyond its rate",
                "fixed",
                f"{1000 * min(reached) * STORE / 1e9:.0f} to {1000 * max(reached) * STORE / 1e9:.0f} MB/s with 1 to {most} nodes, whose steps were set to {STORE // 1000000} together (by tarn)",
                UNCLEAR,
                [EMULATED],
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
