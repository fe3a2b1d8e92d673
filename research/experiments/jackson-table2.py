#!/usr/bin/python3
"""OpenFOAM: decomposition, staging and solver, over an external store and over the tiers of two nodes (Jackson 2019, Table 2)."""

import json
import os
import re
import shutil
import statistics
import time

from experiment import TOP, check_bounds, claim, every, factors, main, need, run, report_progress, spread, times
from store import NEEDS, emulated, fresh, need_store, store

ABOUT = {
    "title": "OpenFOAM: decomposition, staging, solver",
    "source": "Jackson 2019, section 6, Table 2",
    "needs": [NEEDS, "OpenFOAM and Open MPI (scripts/deps.sh openfoam)", "4 GiB of memory"],
    "minutes": {"quick": 0.6, "full": 2.8},
}
LATENCY = 300
RANKS = 4
# Seconds.
PAPER = {"decomposition": (1352, 1323), "data staging": (0, 51), "solver": (747, 95)}
# The solver's own work is little beside what it writes, as on the paper's 20 nodes: equations are solved to this part of their residual.
COARSE = 0.5
# Transfers from node to node, in a run's report.
PEER = "peer"
# The phases on a folder of the external store, each with its seconds.
PLAIN = """set -euo pipefail
. {example}/foam.sh
cd {case}
phase() {{ local name=$1 began; began=$(date +%s%N); shift; "$@" >> {log}; echo "$name $(($(date +%s%N) - began))"; }}
decomposition() {{ blockMesh && decomposePar; }}
solver() {{ mpirun {options} --oversubscribe --bind-to none -np {ranks} icoFoam -parallel; }}
phase decomposition decomposition
phase solver solver
"""


def case(folder, size, steps):
    """The cavity with so many cells along an edge and time steps."""
    shutil.copytree(os.path.join(TOP, "examples", "openfoam", "cavity"), folder)
    path = os.path.join(folder, "system", "size")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"^N .*", f"N {size};", text, flags=re.MULTILINE)
    with open(path, "w", encoding="utf-8") as file:
        file.write(re.sub(r"^steps .*", f"steps {steps};", text, flags=re.MULTILINE))
    path = os.path.join(folder, "system", "fvSolution")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(re.sub(r"relTol [\d.]+|(nCorrectors +)\d", lambda found: f"{found[1]}1" if found[1] else f"relTol {COARSE}", text))


def over_store(bench, folder, size, steps):
    """Seconds of each phase, all of it in a folder of the external store."""
    case(folder, size, steps)
    fresh(os.path.dirname(folder))
    options = "--allow-run-as-root" if os.geteuid() == 0 else ""
    words = {"example": os.path.join(TOP, "examples", "openfoam"), "case": folder, "log": os.path.join(bench.folder, "log"), "options": options, "ranks": RANKS}
    began = time.monotonic()
    output = run(["bash", "-c", PLAIN.format(**words)], env={**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"})
    found = {name: int(ns) / 1e9 for name, ns in re.findall(r"(\w+) (\d+)", output)}
    return {**found, "data staging": 0.0, "all": time.monotonic() - began}


def over_tiers(bench, source, size, steps):
    """The same as a workflow on two nodes, whose case comes from the store and whose decomposition stays on the tiers."""
    case(source, size, steps)
    folder = os.path.join(bench.folder, "foam")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(os.path.join(TOP, "examples", "openfoam"), folder)
    path = os.path.join(folder, "workflow.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    # As the paper's workflow: until the solver has ended.
    text = text[: text.index('[[step]]\nname    = "reconstruct"')]
    text = re.sub(r"\[data\.(fields|vtk)\][^[]*", "", text).replace('"cavity"', json.dumps(source))
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    fresh(os.path.dirname(source))
    page = os.path.join(folder, "report.html")
    run([bench.tarn, "run", path, "--nodes", 2, "--oversubscribe", "--report", page], cwd=folder)
    with open(page, encoding="utf-8") as file:
        drawn = json.loads(re.search(r'id="tarn-run">(.*?)</script>', file.read(), re.DOTALL).group(1))
    # To prepare, to run, to commit what was made.
    took = {row[1]: sum(row[10:13]) / 1e6 for row in drawn["attempts"]}
    peers = [row for row in drawn["transfers"] if drawn["kinds"][row[2]] == PEER]
    if not any(row[10] > 0 for row in peers):
        raise SystemExit(f"{page}: no piece has moved from node to node, so that nothing was staged between decomposition and solver")
    staged = max(row[9] for row in peers) - min(row[7] for row in peers)
    return {"decomposition": took["mesh"] + took["decompose"], "data staging": staged / 1e6, "solver": took["solve"], "all": drawn["end"] / 1e6}


def measure(bench):
    """Both ways in turns, at each rate of the store."""
    need_store()
    how = "scripts/deps.sh openfoam installs it"
    need({"icoFoam": how, "mpirun": how}, memory=4096, shm=2048, disk=(bench.folder, 512))
    rates, rounds = bench.choose(((400,), 2), ((400, 800, 1600), 3))
    size, steps = bench.choose((60, 10), (60, 20))
    ways = {"external store": over_store, "node tiers": over_tiers}
    found = {}
    for rate in rates:
        with store(bench.folder, rate, LATENCY) as outside:
            for turn in range(rounds):
                for way, phases in ways.items():
                    report_progress(f"{turn + 1}/{rounds} {way}, {rate} Mbit/s")
                    # One of its own each: to remove one over such a link takes longer than to run it.
                    folder = os.path.join(outside, f"{phases.__name__}{turn}")
                    for phase, seconds in phases(bench, folder, size, steps).items():
                        found.setdefault((rate, way, phase), []).append(seconds)
    solver = {rate: (found[(rate, "external store", "solver")], found[(rate, "node tiers", "solver")]) for rate in rates}
    gain = {rate: statistics.median(slow) / statistics.median(fast) for rate, (slow, fast) in solver.items()}
    with_staging = {rate: [a + b for a, b in zip(found[(rate, "node tiers", "solver")], found[(rate, "node tiers", "data staging")])] for rate in rates}
    paper = PAPER["solver"][0] / PAPER["solver"][1]
    columns = [f"{way}, {rate} Mbit/s" for rate in rates for way in ways]
    rows = [
        [phase, *[{"value": seconds} for seconds in published], *[spread(found[(rate, way, phase)]) for rate in rates for way in ways]] for phase, published in PAPER.items()
    ] + [["all, as its user waits", "", "", *[spread(found[(rate, way, "all")]) for rate in rates for way in ways]]]
    return {
        "emulated": [*[emulated(rate, LATENCY) for rate in rates], "Two nodes are namespaces of this machine; their tiers are on one tmpfs."],
        "differs": [
            f"Equations are solved to {COARSE:g} of their residual, one correction a step, so that the solver writes as much for what it computes as on the paper's 20 nodes.",
            f"A lid-driven cavity of {size} cells along each edge, {steps} time steps, all written, four ranks on two nodes; the paper has 43 million mesh points, 960 ranks on 20 nodes and Lustre.",
            "Staging on the tiers is what scattering the pieces moves: those of the other node go to it from the node that decomposed, through the memory of one machine; the paper copies them from one node to 20.",
            "Solver and tiers share the cores of one machine, so that the solver's own work is the same on both sides, and larger than on 20 nodes.",
        ],
        "rounds": rounds,
        "tables": [{"title": "Seconds", "columns": ["phase", "paper, Lustre", "paper, B-APM", *columns], "rows": rows}],
        "plots": [
            {
                "title": "The solver: how many times as long on the external store as on the tiers",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "times"},
                "series": [
                    {"name": "paper", "of": "paper", "points": [["its Lustre", paper]]},
                    {"name": "here", "of": "here", "points": [[f"{rate} Mbit/s", value] for rate, value in gain.items()]},
                ],
            }
        ],
        "claims": [
            claim(
                "the solver is faster on the nodes' tiers than on the external file system",
                f"{paper:.1f} times",
                ", ".join(f"{factors(times(*both))} at {rate} Mbit/s" for rate, both in solver.items()) + " (the tiers' by tarn)",
                every(*[check_bounds(times(*both), least=1) for both in solver.values()]),
            ),
            claim(
                "the solver together with the staging before it is faster on the nodes' tiers, too, even if nothing overlaps",
                f"{PAPER['solver'][0] / (PAPER['solver'][1] + PAPER['data staging'][1]):.1f} times",
                ", ".join(f"{factors(times(solver[rate][0], both))} at {rate} Mbit/s" for rate, both in with_staging.items()) + " (the tiers' by tarn)",
                every(*[check_bounds(times(solver[rate][0], with_staging[rate]), least=1) for rate in rates]),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
