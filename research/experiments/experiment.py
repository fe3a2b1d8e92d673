"""What the experiments share: how they are called, what they need, and the form of their results (research/evidence/README.md)."""

import argparse
import errno
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
# How figures came about, where an experiment, a table, a plot or a claim says it by the key `how`: a list of these.
SIMULATED, EMULATED, MODELLED = "simulated", "emulated", "modelled"
FULL = (errno.ENOSPC, errno.EDQUOT)
# What one round alone must go beyond what a claim asks for, as nothing tells its spread.
SINGLE = 2


class Bench:
    """What an experiment is given."""

    def __init__(self, tarn, folder, quick, options=None):
        self.tarn, self.folder, self.quick, self.options = tarn, folder, quick, options

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


def report_progress(text):
    """Tells who waits what goes on."""
    print(text, file=sys.stderr, flush=True)


def missing(text):
    """Ends, as the experiment cannot run here."""
    report_progress(text)
    sys.exit(3)


def run(command, **options):
    """What a command prints; it must succeed, and what it says is told when it does not."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        for full in map(os.strerror, FULL):
            if full in output:
                missing(f"{output[-4000:]}\n{no_room(' '.join(map(str, command[:4])), full)}")
        last = output.splitlines()[-1] if output else f"it ended with {done.returncode}"
        sys.exit(f"{output[-4000:]}\n{' '.join(map(str, command[:4]))} failed: {last}")
    return done.stdout


def no_room(who, why):
    """What is needed where a disk, or memory, is full."""
    return f"needs more room than there is, on the disk of its files or in memory ({who}: {why}): name another folder with --dir, or free some"


def number(path):
    """The number in a file; None where there is none: no such file, or no limit."""
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def group_memory(own="/proc/self/cgroup", root="/sys/fs/cgroup"):
    """Bytes that the control groups above this process leave to it, versions 2 and 1; None if they set no limit. Files that are only cached count as free."""
    left = []
    with open(own, encoding="ascii") as file:
        groups = [line.rstrip("\n").split(":", 2) for line in file]
    for _, controllers, path in groups:
        if controllers == "":
            tops, limit, used, cached = (root, os.path.join(root, "unified")), "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            tops, limit, used, cached = (os.path.join(root, "memory"),), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for folder in (os.path.join(top, *parts[:depth]) for top in tops for depth in range(len(parts) + 1)):
            most, use = number(os.path.join(folder, limit)), number(os.path.join(folder, used))
            if most is not None and use is not None:
                with open(os.path.join(folder, "memory.stat"), encoding="ascii") as file:
                    left.append(most - use + next((int(line.split()[1]) for line in file if line.startswith(f"{cached} ")), 0))
    return min(left, default=None)


def free_memory(meminfo="/proc/meminfo", group=group_memory):
    """MiB that can be had: what the machine has available, or what control groups leave of it."""
    with open(meminfo, encoding="ascii") as file:
        available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    left = group()
    return max(0, min(available, available if left is None else left)) // MIB


def need(programs=None, root=False, memory=0, shm=0, disk=(None, 0)):
    """Ends unless all is there: programs with how each is got, root's rights, MiB of memory, MiB in /dev/shm (part of that memory), MiB on the disk of a folder."""
    for program, how in (programs or {}).items():
        if shutil.which(program) is None:
            missing(f"needs {program}: {how}")
    if root and os.geteuid() != 0:
        missing("needs root, for namespaces, mounts and limited links: run it with sudo")
    free = free_memory()
    if free < memory:
        missing(f"needs {memory} MiB of free memory, {free} are there")
    free = shutil.disk_usage("/dev/shm").free // MIB if shm else 0
    if free < shm:
        missing(f"needs {shm} MiB in /dev/shm, {free} are free: remove what is not used, or enlarge it (mount -o remount,size=...)")
    folder, mib = disk
    free = shutil.disk_usage(folder).free // MIB if folder is not None else 0
    if free < mib:
        missing(f"needs {mib} MiB on the disk of {folder}, {free} are free: name another folder with --dir")


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


def times(more, less):
    """How many times as much repetitions of the one are as those of the other, taken in turns: the least and the most that any two of them give, one factor if there is one round."""
    more, less = list(more), list(less)
    if not more or len(more) != len(less):
        raise ValueError("two things are compared by as many repetitions of each")
    return [more[0] / less[0]] if len(more) == 1 else [min(more) / max(less), max(more) / min(less)]


def check_bounds(values, least=None, most=None):
    """The verdict on what a claim asks for: `holds` if every repetition gives that, `fails` if none does, else `unclear`. One round alone must be so by a factor of two."""
    values = list(values)
    room = SINGLE if len(values) == 1 else 1
    verdicts = []
    if least is not None:
        verdicts.append(HOLDS if min(values) >= least * room else FAILS if max(values) < least / room else UNCLEAR)
    if most is not None:
        verdicts.append(HOLDS if max(values) <= most / room else FAILS if min(values) > most * room else UNCLEAR)
    return every(*verdicts)


def every(*verdicts):
    """Of a claim with several parts."""
    if not verdicts:
        raise ValueError("a claim asks for something")
    return FAILS if FAILS in verdicts else UNCLEAR if UNCLEAR in verdicts else HOLDS


def some(*verdicts):
    """Of a claim that speaks of the best case ("up to")."""
    if not verdicts:
        raise ValueError("a claim asks for something")
    return HOLDS if HOLDS in verdicts else UNCLEAR if UNCLEAR in verdicts else FAILS


def exact(so):
    """Of what is computed or compared, and has no spread: bytes that are the same each time, a model's value."""
    return HOLDS if so else FAILS


def factors(values, digits=1):
    """A range of factors, as a text."""
    low, high = (f"{value:.{digits}f}" for value in (min(values), max(values)))
    return f"{low} times" if low == high else f"{low} to {high} times"


def claim(text, paper, here, verdict, how=None):
    """What a paper claims, and whether it holds here: by `check_bounds`, `every`, `some` or `exact`, or UNCLEAR where nothing here can tell. `how` where its figures came about otherwise than the experiment's."""
    if verdict not in (HOLDS, FAILS, UNCLEAR):
        raise ValueError(f"{verdict!r} is no verdict")
    return {"claim": text, "paper": paper, "here": here, "verdict": verdict, **({} if how is None else {"how": how})}


def main(about, measure, options=None):
    """Does what the command line asks for. `options` adds those that the experiment has of its own."""
    parser = argparse.ArgumentParser(description=about["title"])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("about", help="what it is and needs, as JSON")
    words = commands.add_parser("measure", help="measure, and print the results as JSON")
    words.add_argument("--tarn", required=True, help="the release build's tarn, tarnd beside it")
    words.add_argument("--dir", required=True, help="where it may have files, on a disk")
    words.add_argument("--quick", action="store_true", help="small sizes, few repetitions")
    if options is not None:
        options(words)
    a = parser.parse_args()
    if a.command == "about":
        print(json.dumps(about))
        return
    # What is set up is taken down then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(os.path.abspath(a.tarn), os.path.abspath(a.dir), a.quick, a)
    name = os.path.splitext(os.path.basename(sys.argv[0]))[0]
    try:
        found = measure(bench)
    except OSError as e:
        if e.errno not in FULL:
            raise
        missing(no_room(e.filename or name, e.strerror))
    print(json.dumps({"schema": 1, "experiment": name, "title": about["title"], "source": about["source"], **found}))
