#!/usr/bin/python3
"""IOR's two patterns, a file per process and one shared file, on a namespace over the nodes' tiers (Jackson 2019, Table 3)."""

import os
import re
import shutil
import statistics

import cluster
import store
from experiment import MIB, check_bounds, claim, every, factors, main, missing, need, run, report_progress, spread, times
from ior import APIS, Ior, root

ABOUT = {
    "title": "One namespace over the nodes' tiers: a file per process, and a shared file",
    "source": "Jackson 2019, section 6, Table 3",
    "needs": [store.NEEDS, cluster.NEEDS, "Open MPI and its compiler (scripts/deps.sh openfoam)", "6 GiB of memory"],
    "minutes": {"quick": 0.9, "full": 2.8},
}
MBIT, LATENCY = 800, 300
NODES, RANKS = 2, 4
# GB/s: (pattern, phase).
PAPER = {("fpp", "write"): 24, ("shared", "write"): 3, ("fpp", "read"): 27, ("shared", "read"): 7}
DOING = {"write": "writing", "read": "reading"}
WORDS = {"fpp": "a file per process", "shared": "a shared file"}
# The paper's size of a block of the shared file; that of the others is IOR's own way to write large files.
BLOCK = {"fpp": MIB, "shared": 47008}
# All patterns, by POSIX calls and by MPI-IO; what is there afterwards is removed, as it would take the room of the next.
SCRIPT = """#!/bin/bash
set -euo pipefail
folder=$1
shift
one() {{
    echo "TURN $1 $2 $3"
    mpirun "${{@:4}}"
    rm -f "$folder"/ior*
}}
for turn in $(seq 0 {rounds}); do
{lines}
done
# A version that holds nothing would be an error of the step.
touch "$folder/done"
"""
WORKFLOW = """name = "ior"
[data.f]
size = "{size} B"
[[step]]
name = "ior"
nodes = {nodes}
tasks = {ranks}
cores = 2
env = {{ OMPI_MCA_mpi_yield_when_idle = "1" }}
run = "/shared/ior.sh $TARN_f > $HOME/ior.out"
out = ["f:shared"]
"""
TURN = re.compile(r"^TURN (\d+) (\w+) (\w+)$", re.MULTILINE)


def rates(output, ior, bytes_each):
    """Lists of MB/s by API, pattern and phase; the first round warms up."""
    found = {}
    _, *parts = TURN.split(output)
    for turn, api, pattern, part in zip(*[iter(parts)] * 4):
        written = bytes_each // BLOCK[pattern] * BLOCK[pattern] * RANKS
        for what, taken in ior.seconds(part).items():
            if int(turn) > 0:
                found.setdefault((api, pattern, what), []).append(written / 1e6 / taken)
    return found


def shell(path, ior, bytes_each, rounds, program=None):
    """The script, for a place where the program has that path."""
    lines = []
    for api in APIS:
        for pattern, block in BLOCK.items():
            words = ior.words(api, pattern, block, bytes_each // block, "$folder/ior", program)
            quoted = " ".join(f'"{word}"' for word in words)
            lines.append(f'    one "$turn" {api} {pattern} "$@" -np {RANKS} {quoted}')
    with open(path, "w", encoding="ascii") as file:
        file.write(SCRIPT.format(rounds=rounds, lines="\n".join(lines)))
    os.chmod(path, 0o755)
    return path


def plain(bench, ior, folder, bytes_each):
    """On a folder of this machine, by mpirun alone."""
    os.makedirs(folder, exist_ok=True)
    environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
    script = shell(os.path.join(bench.folder, "ior.sh"), ior, bytes_each, 1)
    output = run([script, folder, "--oversubscribe", "--bind-to", "none", *root()], env=environment)
    shutil.rmtree(folder)
    return rates(output, ior, bytes_each)


def shared(alice, folder, tier, turn, ior, bytes_each):
    """On the namespace over two nodes of a cluster, whose folder is /shared there, by a workflow of its own."""
    name = f"run-{turn}"
    own = os.path.join(folder, name)
    os.mkdir(own)
    os.chmod(own, 0o777)
    if not ior.installed:
        shutil.copy2(ior.program, os.path.join(folder, "ior"))
    shell(os.path.join(folder, "ior.sh"), ior, bytes_each, 1, None if ior.installed else "/shared/ior")
    with open(os.path.join(own, "ior.toml"), "w", encoding="ascii") as file:
        file.write(WORKFLOW.format(size=RANKS * bytes_each, nodes=NODES, ranks=RANKS))
    # On tiers on which nothing lies.
    inside = f"srun -N{NODES} -n{NODES} --ntasks-per-node=1 sh -c 'rm -rf /scm/alice/*'; tarn run --tier scm=/scm/alice:{tier - 64}MiB /shared/{name}/ior.toml"
    alice(f'salloc -Q -N{NODES} --ntasks-per-node={RANKS // NODES} --mem={tier + 2000} bash -c "{inside}"')
    return rates(alice("cat ior.out"), ior, bytes_each)


def measure(bench):
    """The namespace, one node's tmpfs, the external store, in turns."""
    store.need_store()
    cluster.need_cluster(bench)
    rounds, bytes_each = bench.choose(2, 3), bench.choose(16, 64) * MIB
    need(memory=6144, shm=1024, disk=(bench.folder, 64))
    if not os.path.exists(os.path.join(os.path.dirname(bench.tarn), cluster.BRICK)):
        missing(f"needs {cluster.BRICK} beside tarn: make build makes it")
    ior = Ior(bench.folder, "scripts/deps.sh openfoam installs it")
    tier = 2 * RANKS * bytes_each // MIB + 256
    places = {}
    with store.store(bench.folder, MBIT, LATENCY) as outside, cluster.slurm(bench, NODES, tier + 2500, tier) as (alice, folder):
        ways = {
            "tiers of two nodes": lambda turn: shared(alice, folder, tier, turn, ior, bytes_each),
            "one tmpfs, no file system in between": lambda _: plain(bench, ior, f"/dev/shm/tarn-ior-{os.getpid()}", bytes_each),
            "external store": lambda _: plain(bench, ior, os.path.join(outside, "ior"), bytes_each // 4),
        }
        for turn in range(rounds):
            for place, way in ways.items():
                report_progress(f"{turn + 1}/{rounds} {place}")
                for key, found in way(turn).items():
                    places.setdefault(place, {}).setdefault(key, []).extend(found)
    here = places["tiers of two nodes"]
    # Like with like: interface, pattern and phase.
    more = {key: times(rates, places["external store"][key]) for key, rates in here.items()}
    least = min(more, key=lambda key: min(more[key]))
    ratio = {what: (here[("posix", "fpp", what)], here[("posix", "shared", what)]) for what in ("write", "read")}
    return {
        "emulated": ["Two nodes are namespaces of this machine: their network is its memory, their tiers are tmpfs.", store.emulated(MBIT, LATENCY)],
        "differs": [
            f"Measured by {ior.name()}: its two patterns, with reads of what the next rank wrote, which is compared.",
            f"{NODES} nodes with {RANKS} ranks instead of 10 with 100; {bytes_each // MIB} MiB a rank (a quarter of that on the external store) instead of 8.2 and 10.4 GB. All share the cores of one machine.",
            "The namespace is GlusterFS over the tiers, where each file lies whole on one node; the paper's is GekkoFS, which cuts files in chunks over all nodes.",
        ],
        "rounds": rounds,
        "tables": [
            {
                "title": "MB/s of all ranks together",
                "columns": ["", "paper (ten nodes)", *[f"{place}, {api}" for place in places for api in ("POSIX", "MPI-IO")]],
                "rows": [
                    [f"{WORDS[pattern]}, {what}", {"value": 1000 * PAPER[(pattern, what)]}, *[spread(found[(api, pattern, what)]) for found in places.values() for api in ("posix", "mpiio")]]
                    for pattern in WORDS
                    for what in ("write", "read")
                ],
            }
        ],
        "plots": [
            {
                "title": "File per process against shared file, POSIX",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "times as fast with a file per process"},
                "series": [
                    {"name": "paper", "of": "paper", "points": [[w, PAPER[("fpp", w)] / PAPER[("shared", w)]] for w in ratio]},
                    {"name": "tiers of two nodes", "of": "here", "points": [[w, statistics.median(a) / statistics.median(b)] for w, (a, b) in ratio.items()]},
                ],
            }
        ],
        "claims": [
            claim(
                "a file per process is faster than a shared file on a file system over the nodes' tiers",
                "8.0 times writing, 3.9 times reading",
                ", ".join(f"{factors(times(a, b))} {DOING[w]}" for w, (a, b) in ratio.items()) + ", by POSIX",
                every(*[check_bounds(times(a, b), least=1) for a, b in ratio.values()]),
            ),
            claim(
                "a file system over the nodes' tiers gives more than the external store, in each pattern, phase and interface",
                "what it is for",
                f"in {sum(min(values) > 1 for values in more.values())} of {len(more)} cases at {MBIT} Mbit/s, {max(max(values) for values in more.values()):.0f} times at most; least {factors(more[least])}: {WORDS[least[1]]}, {least[2]}, {least[0]}",
                every(*[check_bounds(values, least=1) for values in more.values()]),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
