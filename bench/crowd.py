"""How fast slurmctld answers while thousands of jobs are queued, with tarn's controller in `drive` and without it.

The queue stays as it is. The controller is ended and started in turns: a window without it, one with it, one without it, and so on. The two windows without it are the control: they differ by the machine's other load alone. In each window `sinfo` is called again and
again, and in turn with it `sinfo --version`, which starts the same program and does not call slurmctld. slurmctld's own figures of its work
(`sdiag`) are independent of the time that programs take to start.
"""

import json
import math
import re
import statistics
import sys
import time

# Ordinary jobs for each job of a workflow.
ORDINARY = 250
# Seconds before each window: with the controller, after its first reading of all jobs.
SETTLE = 3
WINDOWS = ("before", "drive", "after")

# Submits so many jobs of a script, by as many processes at once.
SUBMIT = """
import subprocess, sys
count, at_once, script = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
line = "for i in $(seq {}); do sbatch -Q {} || exit; done"
shares = [count // at_once + (n < count % at_once) for n in range(at_once)]
running = [subprocess.Popen(["bash", "-c", line.format(share, script)]) for share in shares]
sys.exit(max(one.wait() for one in running))
"""

# Calls sinfo for so many seconds; prints in ms the times of its answers, and of programs that do not call slurmctld.
CALLS = """
import json, subprocess, sys, time
end = time.monotonic() + float(sys.argv[1])
taken = {"sinfo": [], "start": []}
while time.monotonic() < end:
    for name, words in (("sinfo", ["sinfo"]), ("start", ["sinfo", "--version"])):
        began = time.monotonic()
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        taken[name].append(1000 * (time.monotonic() - began))
    time.sleep(0.01)
print(json.dumps(taken))
"""


def rank(samples, share):
    """The sample below which such a share of them is."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def calls_of(text):
    """Of an output of sdiag, how many calls of clients slurmctld has answered, and the seconds that it needed for all."""
    found = re.findall(r"^\s+(REQUEST_\w+)\s*\(\s*\d+\) count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", text, re.M)
    return {name: (int(count), int(microseconds) / 1e6) for name, count, microseconds in found}


def summary(windows):
    """Of each kind of windows: median, p99 and slowest of all answers, and the median of each window's slowest."""
    found = {}
    for kind, of_kind in windows.items():
        answers = [one for window in of_kind for one in window]
        found[kind] = {
            "median": statistics.median(answers),
            "p99": rank(answers, 0.99),
            "slowest": max(answers),
            "slowest of a window": statistics.median(max(window) for window in of_kind),
            "answers": len(answers),
        }
    return found


def results_of(windows, starts, report):
    """The results: each figure with the controller against the same without it, and the control."""
    found = summary(windows)
    # The windows around one of `drive`: what changes slowly counts as much before it as after it.
    found["without"] = summary({"without": windows["before"] + windows["after"]})["without"]
    results = []
    for name in ("median", "p99", "slowest", "slowest of a window"):
        of = {kind: figures[name] for kind, figures in found.items()}
        results.append(report(f"sinfo, {name}, with the controller in drive", of["drive"], "ms", "without it", of["without"]))
        results.append(report(f"ratio of that, {name}", of["drive"] / of["without"], "times", "goal", 1.1))
        results.append(report(f"control: ratio of two windows without it, {name}", of["after"] / of["before"], "times", "equal", 1.0))
    of = summary(starts)
    for name in ("median", "p99"):
        results.append(report(f"a program that does not call slurmctld, {name}, with the controller", of["drive"][name], "ms", "without it", statistics.mean((of["before"][name], of["after"][name]))))
    return results


def fill(site, jobs):
    """Queues the jobs: ordinary ones, which have all nodes or wait for them, and some of workflows."""
    site.alice("cat > ordinary.sh << 'END'\n#!/bin/bash\n#SBATCH -N1 --exclusive -t 600 -o /dev/null\nsleep 36000\nEND")
    lines = '#TARN name = "crowd"\n#TARN data.d$i = {}\n#TARN [[step]]\n#TARN out = ["d$i"]\n'
    site.alice(f"cat > submit.py << 'END'\n{SUBMIT}END")
    site.alice(f"cat > calls.py << 'END'\n{CALLS}END")
    began = time.monotonic()
    of_workflows = max(1, jobs // ORDINARY)
    # First those that get the nodes.
    site.alice("for i in 1 2; do sbatch -Q ordinary.sh; done; until [ $(squeue -h -t R | wc -l) = 2 ]; do sleep 0.2; done")
    site.alice(
        f"for i in $(seq {of_workflows}); do cat > flow.sh << END\n#!/bin/bash\n#SBATCH -N1 --exclusive -t 10 -o /dev/null\n{lines}true\nEND\nsbatch -Q flow.sh || exit; done"
    )
    site.alice(f"/usr/bin/python3 submit.py {jobs - of_workflows} 4 ordinary.sh")
    queued = int(site.alice("squeue -h -t PD -r | wc -l"))
    print(f"  {queued} jobs wait, {of_workflows} of workflows; submitted in {time.monotonic() - began:.0f} s", file=sys.stderr)
    if queued != jobs:
        sys.exit(f"{queued} jobs wait, not {jobs}")


def crowd(site, jobs, rounds, seconds, report):
    """slurmctld's answers with and without tarn's controller."""
    fill(site, jobs)
    site.stop_controller()
    windows = {kind: [] for kind in WINDOWS}
    starts = {kind: [] for kind in WINDOWS}
    own = {kind: [] for kind in WINDOWS}
    for turn in range(rounds + 1):
        for kind in WINDOWS:
            if kind == "drive":
                site.start_controller()
                site.alice("until tarn slurm status | grep -q '; [0-9]* jobs, [1-9][0-9]* with data'; do sleep 0.5; done")
            time.sleep(SETTLE)
            site.root("sdiag --reset")
            taken = json.loads(site.alice(f"/usr/bin/python3 calls.py {seconds}"))
            calls = calls_of(site.root("sdiag"))
            status = site.alice("tarn slurm status | grep ^Slurm").strip() if kind == "drive" else "no controller"
            if kind == "drive":
                site.stop_controller()
            slowest = f"{statistics.median(taken['sinfo']):.1f} ms, slowest {max(taken['sinfo']):.1f} ms"
            print(f"  {kind}: sinfo {len(taken['sinfo'])} times, median {slowest}; {status}", file=sys.stderr)
            # The first round warms up.
            if turn > 0:
                windows[kind].append(taken["sinfo"])
                starts[kind].append(taken["start"])
                own[kind].append(calls)
    site.start_controller()
    results = results_of(windows, starts, report)
    return results + work_of(own, rounds * seconds, report)


def work_of(own, span, report):
    """slurmctld's own account of what its clients cost it."""
    results = []
    for kind in WINDOWS:
        totals = {}
        for window in own[kind]:
            for name, (count, seconds) in window.items():
                before = totals.get(name, (0, 0.0))
                totals[name] = (before[0] + count, before[1] + seconds)
        own[kind] = totals
    spent = {kind: 100 * sum(seconds for _, seconds in totals.values()) / span for kind, totals in own.items()}
    results.append(report("time that slurmctld needs for calls of clients, with the controller", spent["drive"], "%", "without it", (spent["before"] + spent["after"]) / 2))
    for name, (count, seconds) in sorted(own["drive"].items()):
        without = [own[kind].get(name, (0, 0.0)) for kind in ("before", "after")]
        of_one = sum(seconds for _, seconds in without) / max(1, sum(count for count, _ in without))
        results.append(report(f"{name}, {count / span:.2f} a second, mean with the controller", 1000 * seconds / count, "ms", "without it", 1000 * of_one))
    return results
