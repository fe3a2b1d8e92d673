"""Table 4 of Weiland 2018: ten jobs, of which three are a workflow; and what the simulator makes of a workload."""

import json
import os
import re
from typing import NamedTuple

# Job, nodes, seconds of reading, computing and writing; which job's output it reads.
JOBS = (
    (1, 4, 10, 50, 30, None),
    (2, 1, 10, 180, 0, None),
    (3, 15, 10, 30, 0, None),
    (4, 1, 20, 400, 10, None),
    (5, 7, 10, 70, 10, None),
    (6, 15, 10, 20, 10, None),
    (7, 4, 30, 180, 120, 1),
    (8, 8, 0, 250, 60, None),
    (9, 4, 10, 10, 30, 7),
    (10, 2, 20, 150, 30, None),
)
FLOW = (1, 7, 9)
NODES = 20
# Time to solution of the workflow, in the paper's seconds.
PAPER = {"unaware": 490, "aware": 280}
# In a chart, the class of a phase in which a job holds its nodes and its program does not run.
IDLE = 2


class Simulation(NamedTuple):
    """What the simulator makes of a workload by a policy, or on a Slurm with a mode of tarn's site service."""

    # Its figures.
    summary: dict
    # Job, first node, one past the last, from, to.
    boxes: list
    # Of each job, when its first command ran, and when its last one had ended.
    commands: dict


def simulate(bench, cluster, workload, policies, modes=()):
    """Simulations of one workload by several policies, and then on a Slurm with several modes of tarn's site service."""
    page = os.path.join(bench.folder, "simulated.html")
    site = ["--site", ",".join(modes)] if modes else []
    summary = bench.json("sim", "--cluster", cluster, "--workload", workload, "--policy", ",".join(policies), *site, "--report", page)
    with open(page, encoding="utf-8") as file:
        charts = json.loads(re.search(r'id="tarn-run">(.*?)</script>', file.read(), re.DOTALL).group(1))["charts"]
    return [simulation(run, chart) for run, chart in zip(summary["runs"], charts)]


def simulation(summary, chart):
    """One of them, from its figures and its chart, whose rows are those of workflow/report/src/site/charts.rs."""
    # Jobs of a workflow are named with it.
    names = [name.rpartition("/")[2] for name in chart["names"]]
    boxes = [(names[name], first, end, begin / 1e6, stop / 1e6) for name, _, first, end, begin, stop, *_ in chart["boxes"]]
    commands = {name: (begin, stop) for name, _, _, begin, stop in boxes}
    for _, _, begin, stop, name, kind in chart["phases"]:
        # A job that holds its nodes while its program does not run: before its first command, or after its last.
        if kind == IDLE:
            first, last = commands[names[name]]
            commands[names[name]] = (stop / 1e6, last) if begin / 1e6 == first else (first, begin / 1e6)
    return Simulation(summary, boxes, commands)


def gantt(title, boxes, flow, how):
    """A Gantt chart: a series a job, those whose names are in `flow` as the workflow's."""
    series = []
    for job in sorted({b[0] for b in boxes}, key=lambda name: (len(name), name)):
        points = [[node, begin, end] for name, first, last, begin, end in boxes if name == job for node in range(first, last)]
        series.append({"name": job, "of": "here" if job in flow else "peer", "points": points})
    return {"title": title, "kind": "gantt", "x": {"label": "seconds (of the paper)"}, "y": {"label": "node"}, "series": series, "how": [how]}
