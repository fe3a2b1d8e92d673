#!/usr/bin/python3
"""The Montage example for real against its simulation (`tarn sim --calibrate`), on one node and on as many as the machine has cores.

Every run is also replayed (`tarn sim --replay`) and must agree. Prints the results in the form of `tarn bench --json`: simulated
makespans beside the real ones, medians; and on stderr each step's and each way's difference, of the last run.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from montage import EXAMPLE, timed


def calibrated(tarn, work, options):
    """One run from nothing, replayed and calibrated: the parsed JSON."""
    for made in ("results", ".tarn"):
        shutil.rmtree(os.path.join(work, made), ignore_errors=True)
    timed([tarn, "run", f"{work}/workflow.toml", *options])
    recorded = [tarn, "sim", "--state", f"{work}/.tarn"]
    timed([*recorded, "--replay", "montage-1"])
    completed = subprocess.run([*recorded, "--calibrate", "montage-1", "--json"], capture_output=True, text=True, check=True)
    return json.loads(completed.stdout)


def show(name, calibration):
    """The differences of one run, in percent."""
    policy = calibration["policies"][0]
    rows = [(s["step"], s["run"]) for s in policy["steps"]] + list(policy["bytes"].items())
    differences = ((row, pair["difference_percent"]) for row, pair in rows)
    text = ", ".join(f"{row} {d:+.1f}" for row, d in differences if d is not None)
    print(f"{name}: {text} (percent)", file=sys.stderr)


def measure(a, work):
    """All results."""
    cores = os.cpu_count() or 1
    cases = [("1 node", ["--nodes", "1"]), (f"{cores} nodes", ["--nodes", str(cores)])]
    for rate in a.rates:
        cases.append((f"{cores} nodes, external store emulated at {rate} MB/s", [*cases[1][1], "--external-rate", f"{rate} MB/s"]))
    for name, options in cases:
        runs = [calibrated(a.tarn, work, options) for _ in range(a.runs)]
        show(name, runs[-1])
        makespans = [run["policies"][0]["makespan"] for run in runs]
        real, simulated = (statistics.median(m[side] for m in makespans) for side in ("real", "simulated"))
        worst = max((m["difference_percent"] for m in makespans), key=abs)
        print(f"{name}: {simulated:.2f} s simulated; {real:.2f} s real; farthest off {worst:+.1f} %", file=sys.stderr)
        against = {"name": "real", "value": real}
        yield {"name": f"montage, {name}, simulated", "value": simulated, "unit": "s", "against": against, "ratio": real / simulated}


def main():
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tarn", help="the tarn program, built with --release")
    parser.add_argument("--dir", default=".", help="where the tiles and the results lie (default: here)")
    parser.add_argument("--runs", type=int, default=5, help="repetitions (default 5)")
    parser.add_argument("--rates", type=int, nargs="*", default=[50, 200], help="emulated rates in MB/s")
    a = parser.parse_args()
    a.tarn = os.path.abspath(a.tarn)
    with tempfile.TemporaryDirectory(prefix="bench-calibrate-", dir=a.dir) as work:
        work = os.path.abspath(work)
        shutil.copytree(EXAMPLE, work, dirs_exist_ok=True)
        subprocess.run([f"{work}/make_tiles.py", f"{work}/raw"], check=True)
        results = list(measure(a, work))
    machine = {"cores": os.cpu_count(), "kernel": os.uname().release}
    print(json.dumps({"schema": 1, "bench": "calibrate", "machine": machine, "results": results}))


if __name__ == "__main__":
    main()
