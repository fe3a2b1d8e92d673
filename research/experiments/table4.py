"""Table 4 of Weiland 2018: ten jobs, of which three are a workflow; and what the simulator makes of a workload."""

import json
import os
import re

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


def simulate(bench, cluster, workload, policies):
    """A simulation of one workload by several policies: of each its figures, and Gantt boxes (job, first node, one past the last, from, to)."""
    page = os.path.join(bench.folder, "simulated.html")
    summary = bench.json("sim", "--cluster", cluster, "--workload", workload, "--policy", ",".join(policies), "--report", page)
    with open(page, encoding="utf-8") as file:
        charts = json.loads(re.search(r'id="tarn-run">(.*?)</script>', file.read(), re.DOTALL).group(1))["charts"]
    found = []
    for run, chart in zip(summary["runs"], charts):
        # Jobs of a workflow are named with it.
        boxes = [(chart["names"][name].rpartition("/")[2], first, end, begin / 1e6, stop / 1e6) for name, _, first, end, begin, stop, *_ in chart["boxes"]]
        found.append((run, boxes))
    return found


def gantt(title, boxes, flow, how):
    """A Gantt chart: a series a job, those whose names are in `flow` as the workflow's."""
    series = []
    for job in sorted({b[0] for b in boxes}, key=lambda name: (len(name), name)):
        points = [[node, begin, end] for name, first, last, begin, end in boxes if name == job for node in range(first, last)]
        series.append({"name": job, "of": "here" if job in flow else "peer", "points": points})
    return {"title": title, "kind": "gantt", "x": {"label": "seconds (of the paper)"}, "y": {"label": "node"}, "series": series, "how": [how]}
