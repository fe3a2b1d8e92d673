#!/usr/bin/python3
"""The ten jobs of Weiland 2018, Table 4, with and without regard to where data lie: simulated, and run (Figures 8 and 9)."""

import json
import math
import os
import re
import shutil

from experiment import EMULATED, MIB, SIMULATED, TOP, check_bounds, claim, exact, factors, main, missing, need, run, report_progress, spread, times
from table4 import FLOW, JOBS, NODES, PAPER, gantt, simulate

ABOUT = {
    "title": "Ten jobs on twenty nodes, without and with regard to data",
    "source": "Weiland 2018, section 4.1, Table 4, Figures 8 and 9, equation 6",
    "needs": ["namespaces of its own for steps (an ordinary user's, or root's)"],
    "minutes": {"quick": 0.9, "full": 2.5},
}
POLICIES = {"unaware": "greedy:max-wait={}s", "aware": "data"}
# A job overtakes none that has waited so long, in the paper's seconds: that reading gives the paper's 20 s of Job 9.
MAX_WAIT = 300
# A job's limit, which its user says, of the time that Table 4 has for it: starting a step takes time here, and a machine's load.
LIMIT = 2
# Bytes that stand for a second of a job's reading or writing.
SECOND = MIB // 4
# The external store as a job sees it: so many bytes, no sooner than they would have come.
STORE = """
import sys, time
source, target, second, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
began, done = time.monotonic(), 0
with open(source, "rb") as source, open(target, "wb") as target:
    while block := source.read(second):
        target.write(block)
        done += len(block)
        time.sleep(max(0, began + done / second * seconds - time.monotonic()))
"""


def simulated(bench):
    """Gantt boxes (job, first node, one past the last, from, to) and the workflow's time, by way."""
    example = os.path.join(TOP, "examples", "weiland-table4")
    runs = simulate(bench, f"{example}/cluster.toml", f"{example}/workload.toml", [p.format(MAX_WAIT) for p in POLICIES.values()])
    return {way: (boxes, summary["workflows"]["1-7-9"]["time_s"]) for way, (summary, boxes) in zip(POLICIES, runs)}


def workflow(way, folder, scale):
    """The jobs as steps. What the workflow hands on lies on the nodes where data are regarded, else outside, as all other input and output."""
    lines = ['name = "ten"']
    steps = []
    store = f"python3 {folder}/store.py"
    for job, nodes, read, compute, write, before in JOBS:
        commands, ins, outs, after = [], [], [], []
        aware = way == "aware" and job in FLOW
        if aware and before:
            ins.append(f"of_{before}:single")
        elif read:
            commands.append(f"{store} {folder}/outside/{f'of_{before}' if before else f'in_{job}'} $TARN_SCRATCH/in {SECOND} {scale}")
            if before:
                after.append(f"job{before}")
        commands.append(f"sleep {compute * scale}")
        # Whether more of it is read than the next job needs makes no difference to it.
        read_next = next((r for _, _, r, _, _, b in JOBS if b == job), None)
        made = read_next if read_next is not None and aware else write
        if made:
            commands.append(f"head -c {made * SECOND} /dev/zero > $TARN_SCRATCH/made")
        if aware and job != FLOW[-1]:
            lines.append(f"[data.of_{job}]")
            outs.append(f"of_{job}:single")
            commands.append(f"mv $TARN_SCRATCH/made $TARN_of_{job}/made")
        elif write:
            commands.append(f"{store} $TARN_SCRATCH/made {folder}/outside/of_{job} {SECOND} {scale}")
            if read_next:
                # Job 7 writes more than Job 9 reads.
                commands.append(f"truncate -s {read_next * SECOND} {folder}/outside/of_{job}")
        limit = f"{math.ceil(LIMIT * (read + compute + write) * scale)}s"
        keys = {"name": f"job{job}", "nodes": nodes, "cores": os.cpu_count(), "time": limit, "run": " && ".join(commands), "in": ins, "out": outs, "after": after}
        steps.append("[[step]]\n" + "\n".join(f"{k} = {json.dumps(v)}" for k, v in keys.items() if v != []))
    return "\n".join(lines + steps) + "\n"


def executed(bench, way, scale):
    """The same of a real run, times in the paper's seconds."""
    folder = os.path.join(bench.folder, way)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.join(folder, "outside"))
    with open(os.path.join(folder, "store.py"), "w", encoding="ascii") as file:
        file.write(STORE)
    for job, _, read, _, _, _ in JOBS:
        with open(os.path.join(folder, "outside", f"in_{job}"), "wb") as file:
            file.truncate(read * SECOND)
    path = os.path.join(folder, "ten.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(workflow(way, folder, scale))
    page = os.path.join(folder, "report.html")
    policy = POLICIES[way].format(MAX_WAIT * scale)
    run([bench.tarn, "run", path, "--nodes", NODES, "--oversubscribe", "--policy", policy, "--report", page], cwd=folder)
    with open(page, encoding="utf-8") as file:
        drawn = json.loads(re.search(r'id="tarn-run">(.*?)</script>', file.read(), re.DOTALL).group(1))
    return boxes_of(drawn, scale)


def boxes_of(drawn, scale):
    """Gantt boxes of a run's report, and when the workflow's last job had ended."""
    boxes, ended = [], 0
    for _, name, _, nodes, _, _, _, begin, end, *_ in drawn["attempts"]:
        job, begin, end = name.removeprefix("job"), begin / 1e6 / scale, end / 1e6 / scale
        boxes += [(job, node, node + 1, begin, end) for node in nodes]
        if int(job) in FLOW:
            ended = max(ended, end)
    return boxes, ended


def chart(title, boxes, how):
    """A Gantt chart of the ten jobs."""
    return gantt(title, [(f"Job {job}", *box) for job, *box in boxes], [f"Job {job}" for job in FLOW], how)


def measure(bench):
    """Simulates, runs in turns, compares."""
    scale = bench.choose(1 / 40, 1 / 20)
    rounds = bench.choose(2, 3)
    need(memory=1024, shm=512, disk=(bench.folder, 512))
    if shutil.which("python3") is None:
        missing("needs python3 in the PATH of steps")
    virtual = simulated(bench)
    solved, boxes = {way: [] for way in POLICIES}, {}
    for turn in range(rounds):
        for way in POLICIES:
            report_progress(f"{turn + 1}/{rounds} {way}")
            boxes[way], seconds = executed(bench, way, scale)
            solved[way].append(seconds)
    rows = [
        [words, {"value": virtual[way][1], "paper": PAPER[way]}, spread(solved[way])]
        for way, words in (("unaware", "without regard to data (Figure 8)"), ("aware", "with (Figure 9)"))
    ]
    gain = PAPER["unaware"] / PAPER["aware"]
    here = times(solved["unaware"], solved["aware"])
    return {
        "emulated": [
            f"Twenty nodes are namespaces of this machine. A second of the paper takes {scale:g} s. Jobs sleep for as long as they would compute, and read and write the external store "
            f"by a program that takes as long as Table 4 says ({SECOND // 1024} KiB stand for a second)."
        ],
        "differs": [
            "The paper draws a schedule by hand, and does not say why Job 9 waits for 20 s; that it may not overtake Job 6, which has waited for more than 300 s, is the reading that gives it.",
            "In the simulation reading and writing on a node takes no time, as in the paper; in the run it is real.",
        ],
        "how": [SIMULATED, EMULATED],
        "rounds": rounds,
        "tables": [{"title": "Time to solution of the workflow of Jobs 1, 7 and 9, in the paper's seconds", "columns": ["schedule", "simulated", "run"], "rows": rows}],
        "plots": [
            chart("Figure 8, simulated", virtual["unaware"][0], SIMULATED),
            chart("Figure 9, simulated", virtual["aware"][0], SIMULATED),
            chart("Figure 8, run", boxes["unaware"], EMULATED),
            chart("Figure 9, run", boxes["aware"], EMULATED),
        ],
        "claims": [
            claim(
                "in the simulator, keeping the workflow's data on its nodes shortens it from 490 s to 280 s",
                f"{gain:.2f} times",
                f"{virtual['unaware'][1]:.0f} s to {virtual['aware'][1]:.0f} s",
                exact([virtual[w][1] for w in POLICIES] == [PAPER[w] for w in POLICIES]),
                [SIMULATED],
            ),
            claim(
                "in real runs, keeping the workflow's data on its nodes gives nine tenths of that gain or more",
                f"{gain:.2f} times",
                f"{factors(here, 2)} (by tarn)",
                check_bounds(here, least=0.9 * gain),
                [EMULATED],
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
