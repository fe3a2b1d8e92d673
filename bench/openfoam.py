#!/usr/bin/python3
"""examples/openfoam on two nodes of a real Slurm, its case and its result on a slow external store, against OpenFOAM alone on tmpfs.

Prints the results in the form of `tarn bench --json`. What tarn is compared with is the time of plain.sh on tmpfs plus the bytes
that nobody can avoid (the case in, the VTK files out) at the store's rate. The cases take turns; each run has a new cluster and a
newly mounted store, so nothing of it is in a cache. Needs root, and `scripts/deps.sh openfoam`.
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import tempfile

from slurm import TOP, cluster, done, turns

STORE = os.path.join(TOP, "bench", "store.sh")
# MiB of a node, of its job, of its tier; the tier counts against the job.
NODE, JOB, TIER = 6000, 5000, 1500
ALLOCATION = f"salloc -Q -N2 --ntasks-per-node=2 --mem={JOB}"
SECONDS = "started=$(date +%s%N); {} > log 2>&1 || {{ tail -n 40 log >&2; exit 1; }}; echo seconds $(($(date +%s%N) - started))"


def size(folder):
    """Bytes of all files below a folder."""
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def edit(path, *changes):
    """Replaces in a file each first text, a regular expression, by the second."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    for old, new in changes:
        text, found = re.subn(old, new, text, flags=re.MULTILINE)
        if found == 0:
            sys.exit(f"openfoam.py: {path} has no {old}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class Bench:
    """The folders of a measurement."""

    def __init__(self, a, work):
        self.work = work
        self.store = os.path.join(work, "store", "mnt")
        self.shared = os.path.join(work, "cluster", "shared")
        os.makedirs(os.path.join(self.shared, "bin"))
        for name in ("tarn", "tarnd"):
            shutil.copy2(os.path.join(os.path.dirname(a.tarn), name), os.path.join(self.shared, "bin"))
        example = shutil.copytree(os.path.join(TOP, "examples", "openfoam"), os.path.join(self.shared, "example"))
        edit(f"{example}/cavity/system/size", (r"^N .*", f"N {a.size};"), (r"^steps .*", f"steps {a.steps};"))
        paths = (('"cavity"', f'"{self.store}/cavity"'), ('"result"', f'"{self.store}/result"'))
        edit(f"{example}/workflow.toml", *paths, (r"^name = .*", rf'\g<0>\nexternal = "{self.store}/external"'))
        done(["chmod", "-R", "a+rX", self.shared])

    def once(self, script):
        """Seconds that a script says it took, in a new home of alice, without anything of the store in memory."""
        shutil.rmtree(os.path.join(self.shared, "home"), ignore_errors=True)
        for name in ("result", "external", "cavity"):
            shutil.rmtree(os.path.join(self.store, name), ignore_errors=True)
        shutil.copytree(os.path.join(self.shared, "example", "cavity"), os.path.join(self.store, "cavity"))
        os.sync()
        done([STORE, "fresh", os.path.join(self.work, "store")])
        with cluster(os.path.join(self.work, "cluster"), 2, NODE, TIER) as alice:
            output = alice(f"cp -r /shared/example foam && cd foam && {script}")
        return int(re.search(r"^seconds (\d+)$", output, re.MULTILINE).group(1)) / 1e9

    def plain(self, transport=""):
        """OpenFOAM alone, on a tmpfs."""
        command = f"{transport} ./plain.sh /dev/shm/cavity /dev/shm/vtk"
        return self.once("cp -r cavity /dev/shm/ && " + SECONDS.format(command))

    def tarn(self, options=""):
        """The workflow inside an allocation."""
        command = f"tarn run --tier scm=/scm/alice:{TIER - 100}MiB {options} workflow.toml"
        return self.once(f"{ALLOCATION} bash -c '{SECONDS.format(command)}'")


def at_rate(a, bench, rate):
    """The figures at one rate of the store, in Mbit/s."""
    store = os.path.join(bench.work, "store")
    done([STORE, "up", store, str(rate), str(a.latency)])
    try:
        cases = {
            "stage-through": lambda: bench.tarn("--policy stage-through --verify none"),
            "plain": bench.plain,
            "plain, ranks over TCP": lambda: bench.plain("OMPI_MCA_btl=tcp,self"),
            "data": bench.tarn,
        }
        medians, seconds = turns(a.runs, cases)
        unavoidable = size(os.path.join(bench.store, "cavity")) + size(os.path.join(bench.store, "result"))
    finally:
        done([STORE, "down", store])
    data = medians["data"]
    moved = unavoidable * 8 / (rate * 1e6)
    what = f"OpenFOAM, N={a.size}, 4 ranks, 2 nodes, policy data, store at {rate} Mbit/s and {a.latency} us"
    others = {
        f"on tmpfs + {unavoidable} bytes at that rate": medians["plain"] + moved,
        f"on tmpfs with ranks over TCP + {unavoidable} bytes at that rate": medians["plain, ranks over TCP"] + moved,
        "policy stage-through": medians["stage-through"],
    }
    for other, against in others.items():
        print(f"{what}: {data:.2f} s; {other}: {against:.2f} s; ratio {against / data:.2f}", file=sys.stderr)
        yield {
            "name": what,
            "value": data,
            "unit": "s",
            "against": {"name": other, "value": against},
            "ratio": against / data,
            "seconds": seconds,
        }


def main():
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tarn", help="the tarn program, built with --release, tarnd beside it")
    parser.add_argument("--dir", default="/var/tmp", help="where cluster and store get a folder; not /tmp (default /var/tmp)")
    parser.add_argument("--runs", type=int, default=5, help="repetitions that count (default 5)")
    parser.add_argument("--size", type=int, default=60, help="cells along each edge (default 60)")
    parser.add_argument("--steps", type=int, default=10, help="time steps, all of them written (default 10)")
    parser.add_argument("--rates", type=int, nargs="+", default=[400, 800, 1600], help="rates of the store in Mbit/s")
    parser.add_argument("--latency", type=int, default=300, help="delay of each of its operations in microseconds (default 300)")
    a = parser.parse_args()
    a.tarn = os.path.abspath(a.tarn)
    # What is up is taken down then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results = []
    with tempfile.TemporaryDirectory(prefix="bench-openfoam-", dir=a.dir) as work:
        os.chmod(work, 0o755)
        bench = Bench(a, os.path.realpath(work))
        for rate in a.rates:
            results.extend(at_rate(a, bench, rate))
    machine = {"cores": os.cpu_count(), "kernel": os.uname().release}
    print(json.dumps({"schema": 1, "bench": "openfoam", "machine": machine, "results": results}))


if __name__ == "__main__":
    main()
