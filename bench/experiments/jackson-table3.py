#!/usr/bin/python3
"""IOR's two patterns, a file per process and one shared file, on a namespace over the nodes' tiers (Jackson 2019, Table 3)."""

import os
import re
import shutil
import statistics

import cluster
import store
from experiment import MIB, TOP, UNCLEAR, apart, claim, main, missing, need, run, say, spread

ABOUT = {
    "title": "One namespace over the nodes' tiers: a file per process, and a shared file",
    "source": "Jackson 2019, section 6, Table 3",
    "needs": [store.NEEDS, cluster.NEEDS, "Open MPI and its compiler (scripts/deps.sh openfoam)", "6 GiB of memory"],
    "minutes": {"quick": 1.2, "full": 6},
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
folder=$1 bytes=$2 rounds=$3 ranks=$4
shift 4
for round in $(seq 0 "$rounds"); do
    for api in posix mpiio; do
        for pattern in fpp:{fpp} shared:{shared}; do
            block=${{pattern#*:}}
            mpirun "$@" -np "$ranks" {program} $api ${{pattern%:*}} "$block" $((bytes / block)) "$folder/ior" | sed "s/^/$round $api ${{pattern%:*}} /"
            rm -f "$folder"/ior*
        done
    done
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
run = "/shared/ior.sh $TARN_f {bytes} {rounds} {ranks} > $HOME/ior.out"
out = ["f:shared"]
"""
LINE = re.compile(r"(\d+) (\w+) (\w+) (write|read) ([\d.]+)")


def rates(said, bytes_each):
    """Lists of MB/s by API, pattern and phase; the first round warms up."""
    found = {}
    for turn, api, pattern, what, seconds in LINE.findall(said):
        if int(turn) > 0:
            written = bytes_each // BLOCK[pattern] * BLOCK[pattern] * RANKS
            found.setdefault((api, pattern, what), []).append(written / 1e6 / float(seconds))
    return found


def shell(path, program):
    """The script, for a place where the program has that path."""
    with open(path, "w", encoding="ascii") as file:
        file.write(SCRIPT.format(program=program, **BLOCK))
    os.chmod(path, 0o755)
    return path


def plain(bench, folder, bytes_each, rounds):
    """On a folder of this machine, by mpirun alone."""
    os.makedirs(folder, exist_ok=True)
    words = ["--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
    environment = {**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"}
    script = shell(os.path.join(bench.folder, "ior.sh"), os.path.join(bench.folder, "ior"))
    said = run([script, folder, bytes_each, rounds, RANKS, *words], env=environment)
    shutil.rmtree(folder)
    return rates(said, bytes_each)


def shared(bench, bytes_each, rounds):
    """On the namespace over two nodes of a cluster."""
    tier = 2 * RANKS * bytes_each // MIB + 256
    with cluster.slurm(bench, NODES, tier + 2500, tier) as (alice, folder):
        shutil.copy2(os.path.join(bench.folder, "ior"), folder)
        shell(os.path.join(folder, "ior.sh"), "/shared/ior")
        with open(os.path.join(folder, "ior.toml"), "w", encoding="ascii") as file:
            file.write(WORKFLOW.format(size=RANKS * bytes_each, nodes=NODES, ranks=RANKS, bytes=bytes_each, rounds=rounds))
        alice(f"salloc -Q -N{NODES} --ntasks-per-node={RANKS // NODES} --mem={tier + 2000} tarn run --tier scm=/scm/alice:{tier - 64}MiB /shared/ior.toml")
        return rates(alice("cat ior.out"), bytes_each)


def measure(bench):
    """The namespace, one node's tmpfs, the external store."""
    store.need_store()
    cluster.need_cluster(bench)
    how = "scripts/deps.sh openfoam installs it"
    need({"mpicc": how, "mpirun": how}, memory=6144)
    if not os.path.exists(os.path.join(os.path.dirname(bench.tarn), cluster.BRICK)):
        missing(f"needs {cluster.BRICK} beside tarn: make build makes it")
    real = shutil.which("ior")
    run(["mpicc", "-O2", "-o", os.path.join(bench.folder, "ior"), os.path.join(TOP, "bench", "experiments", "ior.c")])
    rounds = bench.choose(1, 5)
    bytes_each = bench.choose(16, 64) * MIB
    say("a namespace over two nodes")
    places = {"tiers of two nodes": shared(bench, bytes_each, rounds)}
    say("one tmpfs")
    places["one tmpfs, no file system in between"] = plain(bench, f"/dev/shm/tarn-ior-{os.getpid()}", bytes_each, rounds)
    with store.store(bench.folder, MBIT, LATENCY) as outside:
        places["external store"] = plain(bench, os.path.join(outside, "ior"), bytes_each // 4, rounds)
    here = places["tiers of two nodes"]
    # Like with like: interface, pattern and phase.
    more = {key: statistics.median(rates) / statistics.median(places["external store"][key]) for key, rates in here.items()}
    least = min(more, key=more.get)
    ratio = {what: (here[("posix", "fpp", what)], here[("posix", "shared", what)]) for what in ("write", "read")}
    return {
        "emulated": ["Two nodes are namespaces of this machine: their network is its memory, their tiers are tmpfs.", store.emulated(MBIT, LATENCY)],
        "differs": [
            f"IOR {'is installed, and not used: its stand-in' if real else 'is not packaged for this system: a stand-in'} (bench/experiments/ior.c) has its two patterns, with reads of what the next rank wrote, and comparison of what is read.",
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
                    {"name": "tiers of two nodes", "of": "here", "points": [[w, sorted(a)[len(a) // 2] / sorted(b)[len(b) // 2]] for w, (a, b) in ratio.items()]},
                ],
            }
        ],
        "claims": [
            claim(
                "a file per process is faster than a shared file on a file system over the nodes' tiers",
                "8.0 times writing, 3.9 times reading",
                ", ".join(f"{min(a) / max(b):.1f} to {max(a) / min(b):.1f} times {DOING[w]}" for w, (a, b) in ratio.items()),
                True if all(apart(b, a) for a, b in ratio.values()) else UNCLEAR,
            ),
            claim(
                "such a file system gives more than the external store",
                "what it is for",
                f"in {sum(value > 1 for value in more.values())} of {len(more)} cases at {MBIT} Mbit/s, {max(more.values()):.0f} times at most; least {more[least]:.1f} times: {WORDS[least[1]]}, {least[2]}, {least[0]}",
                True if min(more.values()) > 1 else UNCLEAR if statistics.median(more.values()) > 1 else False,
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
