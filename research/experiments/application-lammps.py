#!/usr/bin/python3
"""LAMMPS that is killed once: restart files on the node's tier and tarn, or on the external store and a script."""

import glob
import os
import re
import shutil
import signal
import subprocess
import time

from experiment import TOP, check_bounds, claim, exact, factors, main, need, report_progress, spread, times
from store import NEEDS, emulated, need_store, store

ABOUT = {
    "title": "Application: LAMMPS that is killed, and goes on from its restart files",
    "source": "Fernando 2016, section I; Jackson 2019, section 2.1 (going on after a failure)",
    "needs": [NEEDS, "LAMMPS (scripts/deps.sh test)", "1 GiB of memory"],
    "minutes": {"quick": 0.6, "full": 3.4},
}
MBIT, LATENCY = 200, 1000
# Unit cells of a side, of four atoms each: two restart files of some 3 MB.
CELLS = 20
EXAMPLE = os.path.join(TOP, "examples", "lammps")
# Steps from one restart file to the next, as the example has it.
INTERVAL = 100
# LAMMPS is killed when this restart file is whole.
KILLED_AFTER = "restart_b"
# The same script as tarn's step runs, begun again as long as it fails, as a user's script would.
PLAIN = """attempt=0
until attempt=$((attempt + 1)); TARN_ATTEMPT=$attempt sh "$TARN_WORKFLOW_DIR/melt.sh" "$RESULT"; do
    [ $attempt -lt 5 ] || exit 1
done
"""


def thermo(log):
    """Thermodynamic output by time step, of what was printed twice the later."""
    lines = [line.split() for line in log.splitlines()]
    return {int(words[0]): words for words in lines if len(words) == 6 and words[0].isdigit()}


def again(log):
    """The step from which LAMMPS went on after it was killed, and how many it did again; None where it went on from no restart file, or more than once."""
    parts = [thermo(part) for part in log.split("Reading restart file")]
    if len(parts) != 2 or not all(parts):
        return None
    return min(parts[1]), max(parts[0]) - min(parts[1])


def kill(folder):
    """Kills the LAMMPS that writes below a folder, once two restart files are there."""
    for _ in range(6000):
        for process in glob.glob("/proc/[0-9]*"):
            try:
                with open(f"{process}/comm", encoding="ascii") as file:
                    name = file.read().strip()
                inside = os.readlink(f"{process}/cwd")
            except OSError:
                continue
            if name == "lmp" and inside.startswith(folder) and os.path.exists(f"{process}/cwd/{KILLED_AFTER}"):
                os.kill(int(os.path.basename(process)), signal.SIGKILL)
                return
        time.sleep(0.01)
    raise SystemExit("LAMMPS wrote no restart file")


def rewrite(path, pattern, by):
    """What matches a pattern, once, in a file of the example becomes something else."""
    with open(path, encoding="utf-8") as file:
        text, times = re.subn(pattern, by, file.read())
    assert times == 1, f"{path}: {pattern}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def once(bench, where, steps, killed):
    """Seconds until the result is there, and what LAMMPS has said; restart files on a tier by tarn, or in a folder of the store."""
    work = os.path.join(bench.folder, "melt")
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(EXAMPLE, work)
    path = os.path.join(work, "workflow.toml")
    rewrite(path, r'STEPS = "\d+"', f'STEPS = "{steps}"')
    rewrite(path, r'(checkpoints = )"4 MiB"', r'\1"64 MiB"')
    rewrite(os.path.join(work, "in.melt"), "0 8 0 8 0 8", " ".join(["0", str(CELLS)] * 3))
    tier = f"/dev/shm/tarn-lammps-{os.getpid()}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    try:
        if where is None:
            os.makedirs(tier)
            files, result = tier, os.path.join(work, "result")
            words = [bench.tarn, "run", path, "--tier", f"scm={tier}"]
        else:
            files, result = os.path.join(where, "checkpoints"), os.path.join(where, "result")
            for folder in (files, result):
                shutil.rmtree(folder, ignore_errors=True)
                os.makedirs(folder)
            environment.update(TARN_CHECKPOINTS=files, TARN_WORKFLOW_DIR=work, RESULT=result, STEPS=str(steps))
            words = ["sh", "-c", PLAIN]
        began = time.monotonic()
        child = subprocess.Popen(words, env=environment, cwd=work, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if killed:
            kill(files)
        _, stderr = child.communicate()
        seconds = time.monotonic() - began
        if child.returncode != 0:
            raise SystemExit(f"{words[0]} failed ({child.returncode}): {stderr.strip()[-2000:]}")
        with open(os.path.join(result, "log.lammps"), encoding="utf-8") as file:
            return seconds, file.read()
    finally:
        shutil.rmtree(tier, ignore_errors=True)


def measure(bench):
    """Both ways, killed and not, in turns."""
    need_store()
    need({"lmp": "scripts/deps.sh test installs it"}, memory=1024, shm=512, disk=(bench.folder, 64))
    rounds, steps = bench.choose(1, 3), bench.choose(400, 800)
    ways = {(where, killed): [] for where in ("store", "tier") for killed in (False, True)}
    outputs, resumed = {}, []
    with store(bench.folder, MBIT, LATENCY) as outside:
        for turn in range(rounds):
            for (where, killed), seconds in ways.items():
                report_progress(f"{turn + 1}/{rounds} {where}{', killed' if killed else ''}")
                taken, log = once(bench, outside if where == "store" else None, steps, killed)
                seconds.append(taken)
                outputs[(where, killed, turn)] = thermo(log)
                if killed:
                    resumed.append(again(log))
    expected = outputs[("store", False, 0)]
    whole = all(sorted(output) == sorted(expected) for output in outputs.values())
    last = max(expected)
    # It may print what it did since the restart file twice.
    went_on = all(found is not None and found[0] >= INTERVAL and 0 <= found[1] <= INTERVAL for found in resumed)
    where_from = ", ".join(sorted({"the beginning" if found is None else f"step {found[0]}" for found in resumed}))
    apart_by = max(abs(float(output[last][1]) / float(expected[last][1]) - 1) for output in outputs.values())
    beside = times(ways[("store", False)], ways[("tier", False)])
    lost = {where: [k - u for k, u in zip(ways[(where, True)], ways[(where, False)])] for where in ("store", "tier")}
    return {
        "emulated": [emulated(MBIT, LATENCY), "The tier is a tmpfs of the one node that runs."],
        "differs": [
            f"A melt of {4 * CELLS**3:,} atoms, {steps} steps, a restart file every {INTERVAL}, on one core.",
            "LAMMPS is killed by SIGKILL when it has written two restart files. Without tarn a script begins it again at once; a batch job would wait in a queue.",
        ],
        "rounds": rounds,
        "tables": [
            {
                "title": "Seconds until the result is there",
                "columns": ["", "left alone", "killed once", "the kill costs"],
                "rows": [
                    ["restart files on the external store, a script", spread(ways[("store", False)]), spread(ways[("store", True)]), spread(lost["store"])],
                    ["on the node's tier, by tarn", spread(ways[("tier", False)]), spread(ways[("tier", True)]), spread(lost["tier"])],
                ],
            }
        ],
        "plots": [
            {
                "title": "LAMMPS, seconds",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "seconds"},
                "series": [
                    {"name": words, "of": of, "points": [["left alone" if not killed else "killed once", *list(spread(ways[(where, killed)]).values())[:3]] for killed in (False, True)]}
                    for where, words, of in (("store", "external store, a script", "peer"), ("tier", "tier, by tarn", "here"))
                ],
            }
        ],
        "claims": [
            claim("a program that is killed continues from its restart file and computes what it would have computed", "in words", f"on from {where_from}; {'every line' if whole else 'not every line'} of output is there; temperature after {last} steps apart by {apart_by:.0e} at most", exact(went_on and whole and apart_by < 1e-3)),
            claim(
                "restart files on the node cost less than on the external store",
                "in words",
                f"{factors(beside, 2)} the time, tarn's own included",
                check_bounds(beside, least=1),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
