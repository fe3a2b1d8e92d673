#!/usr/bin/python3
"""The Montage example on four nodes against the same commands in a plain shell, and `data` against `stage-through`.

Prints the results in the form of `tarn bench --json`. The raw tiles lie in DIR, all that is made on tmpfs, for both; the
cases take turns, medians are given. Emulated rates hold back tarn's own movement to and from the external store.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "examples", "montage")
NODES = 4


def timed(command, **options):
    """Seconds that a command takes; it must succeed."""
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"montage.py: {' '.join(command)} failed ({done.returncode}):\n{done.stderr[-4000:]}")
    return time.monotonic() - started


def plain(work, cores):
    """The commands in a plain shell, on tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as tmpfs:
        return timed([f"{work}/plain.sh", f"{work}/raw", f"{tmpfs}/work", str(cores)])


def by_tarn(tarn, work, *options):
    """The workflow, from nothing: no state, no results."""
    for made in ("results", "external", ".tarn"):
        shutil.rmtree(os.path.join(work, made), ignore_errors=True)
    os.mkdir(os.path.join(work, "external"))
    return timed([tarn, "run", f"{work}/workflow.toml", "--nodes", str(NODES), *options])


def turns(runs, cases):
    """Medians of the cases, run in turns after one run each that does not count."""
    seconds = [[] for _ in cases]
    for turn in range(runs + 1):
        for case, times in zip(cases, seconds):
            taken = case()
            if turn > 0:
                times.append(taken)
    return [statistics.median(times) for times in seconds]


def prepare(work, grid, size):
    """The example with its tiles, and a place for what stage-through puts out."""
    shutil.copytree(EXAMPLE, work, dirs_exist_ok=True)
    subprocess.run([f"{work}/make_tiles.py", f"{work}/raw", "--grid", str(grid), "--size", str(size)], check=True)
    path = os.path.join(work, "workflow.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write('external = "external"\n' + text)


def measure(a, work):
    """All results."""
    cores = os.cpu_count() or 1
    shell, tarn = turns(a.runs, [lambda: plain(work, cores), lambda: by_tarn(a.tarn, work)])
    yield f"montage {a.grid}x{a.grid} x {a.size} px, {NODES} nodes, tmpfs", tarn, f"plain shell, {cores} processes, tmpfs", shell
    for rate in a.rates:
        at = ["--external-rate", f"{rate} MB/s"]
        data, through = turns(
            a.runs,
            [lambda: by_tarn(a.tarn, work, *at), lambda: by_tarn(a.tarn, work, "--policy", "stage-through", "--verify", "none", *at)],
        )
        yield f"montage, policy data, external store emulated at {rate} MB/s", data, "policy stage-through", through


def main():
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tarn", help="the tarn program, built with --release")
    parser.add_argument("--dir", default=".", help="where the tiles and the results lie (default: here)")
    parser.add_argument("--runs", type=int, default=5, help="repetitions that count (default 5)")
    parser.add_argument("--grid", type=int, default=4, help="tiles along each side (default 4)")
    parser.add_argument("--size", type=int, default=600, help="pixels along each side of a tile (default 600)")
    parser.add_argument("--rates", type=int, nargs="*", default=[50, 100, 200, 500, 1000, 2000], help="emulated rates in MB/s")
    a = parser.parse_args()
    a.tarn = os.path.abspath(a.tarn)
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-montage-", dir=a.dir) as work:
        work = os.path.abspath(work)
        prepare(work, a.grid, a.size)
        for name, value, other, against in measure(a, work):
            ratio = against / value
            print(f"{name}: {value:.2f} s; {other}: {against:.2f} s; ratio {ratio:.2f}", file=sys.stderr)
            figure = {"name": name, "value": value, "unit": "s", "against": {"name": other, "value": against}, "ratio": ratio}
            results.append(figure)
    machine = {"cores": os.cpu_count(), "kernel": os.uname().release}
    print(json.dumps({"schema": 1, "bench": "montage", "machine": machine, "results": results}))


if __name__ == "__main__":
    main()
