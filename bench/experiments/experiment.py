"""What the experiments share: how they are called, what they need, and the form of their results (docs/evidence/README.md)."""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys

TOP = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
MIB = 1 << 20
HOLDS, FAILS, UNCLEAR = "holds", "fails", "unclear"


class Bench:
    """What an experiment is given."""

    def __init__(self, tarn, folder, quick):
        self.tarn, self.folder, self.quick = tarn, folder, quick

    def choose(self, quick, full):
        """A size or a number of repetitions."""
        return quick if self.quick else full

    def json(self, *words):
        """What tarn prints with --json, as one value."""
        return json.loads(run([self.tarn, "--json", *words]))

    def figures(self, *words):
        """The results of a `tarn bench` by their names: value, and that of what it stands beside."""
        results = self.json("bench", *words)["results"]
        return {r["name"]: (r["value"], r.get("against", {}).get("value")) for r in results}


def say(text):
    """Tells who waits what goes on."""
    print(text, file=sys.stderr, flush=True)


def missing(text):
    """Ends, as the experiment cannot run here."""
    say(text)
    sys.exit(3)


def run(command, **options):
    """What a command prints; it must succeed, and what it says is told when it does not."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        last = said.splitlines()[-1] if said else f"it ended with {done.returncode}"
        sys.exit(f"{said[-4000:]}\n{' '.join(map(str, command[:4]))} failed: {last}")
    return done.stdout


def need(programs=None, root=False, memory=0, disk=(None, 0)):
    """Ends unless all is there: programs with how each is got, root's rights, MiB of memory, MiB on the disk of a folder."""
    for program, how in (programs or {}).items():
        if shutil.which(program) is None:
            missing(f"needs {program}: {how}")
    if root and os.geteuid() != 0:
        missing("needs root, for namespaces, mounts and limited links: run it with sudo")
    with open("/proc/meminfo", encoding="ascii") as file:
        available = next(int(line.split()[1]) // 1024 for line in file if line.startswith("MemAvailable:"))
    if available < memory:
        missing(f"needs {memory} MiB of free memory, {available} are there")
    folder, mib = disk
    if folder is not None and shutil.disk_usage(folder).free < mib * MIB:
        missing(f"needs {mib} MiB on the disk of {folder}: name another folder with --dir")


def spread(values, paper=None):
    """A cell of a table: the median of repetitions, with the least and the greatest."""
    values = list(values)
    cell = {"value": statistics.median(values)}
    if len(values) > 1:
        cell.update(low=min(values), high=max(values))
    if paper is not None:
        cell["paper"] = paper
    return cell


def point(at, values):
    """A point of a plot: the median of repetitions, with the least and the greatest."""
    values = list(values)
    return [at, statistics.median(values)] + ([min(values), max(values)] if len(values) > 1 else [])


def claim(text, paper, here, verdict):
    """What a paper claims, and whether it holds here; a truth value stands for holds and fails."""
    verdict = {True: HOLDS, False: FAILS}.get(verdict, verdict)
    return {"claim": text, "paper": paper, "here": here, "verdict": verdict}


def apart(low, high):
    """Whether all repetitions of the one are below all of the other."""
    return max(low) < min(high)


def main(about, measure):
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(description=about["title"])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("about", help="what it is and needs, as JSON")
    words = commands.add_parser("measure", help="measure, and print the results as JSON")
    words.add_argument("--tarn", required=True, help="the release build's tarn, tarnd beside it")
    words.add_argument("--dir", required=True, help="where it may have files, on a disk")
    words.add_argument("--quick", action="store_true", help="small sizes, few repetitions")
    a = parser.parse_args()
    if a.command == "about":
        print(json.dumps(about))
        return
    # What is set up is taken down then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(os.path.abspath(a.tarn), os.path.abspath(a.dir), a.quick)
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    found = measure(bench)
    print(json.dumps({"schema": 1, "experiment": name, "title": about["title"], "source": about["source"], **found}))
