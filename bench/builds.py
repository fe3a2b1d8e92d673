#!/usr/bin/python3
"""Two builds of tarn side by side: what a change costs in staging, in a whole run that stages, and in commits.

Runs each case with both binaries by turns, the order reversed each round, and prints for each case both medians and the median of the
rounds' ratios (1.00: alike; below 1.00: the new build is slower), in the form of `tarn bench --json`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

FLOW = """
name = "stage"
[data.text]
source = "in"
[data.result]
dest = "out"
[[step]]
name = "copy"
run = "cp -r $TARN_text/. $TARN_result/"
in = ["text"]
out = ["result"]
"""


def output(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"builds.py: {' '.join(command)} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout


def figures(tarn, *options):
    """The results of `tarn bench`: the value of each, where more is faster."""
    printed = output([tarn, "bench", *options, "--json"])
    return {result["name"]: (result["value"], result["unit"]) for result in json.loads(printed)["results"]}


def whole_run(tarn, files, size):
    """Runs a second of a workflow that stages this many files in, copies them and stages them out."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for number in range(files):
            where = os.path.join(folder, "in", str(number % 50))
            os.makedirs(where, exist_ok=True)
            with open(os.path.join(where, str(number)), "wb") as file:
                file.write(os.urandom(size))
        flow = os.path.join(folder, "workflow.toml")
        with open(flow, "w", encoding="utf-8") as file:
            file.write(FLOW)
        os.mkdir(os.path.join(folder, "tier"))
        tier = f"memory={os.path.join(folder, 'tier')}"
        began = time.monotonic()
        output([tarn, "run", flow, "--nodes", "1", "--tier", tier], cwd=folder)
        return {f"a run that stages {files} files of {size >> 10} KiB in and out": (1 / (time.monotonic() - began), "1/s")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="the tarn of the build before")
    parser.add_argument("new", help="the tarn of the build after, with the tarnd that belongs to each beside it")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    cases = [
        lambda tarn: figures(tarn, "stage", "--dir", "/dev/shm", "--case", "small", "--rounds", "1"),
        lambda tarn: whole_run(tarn, 5000, 16 << 10),
        lambda tarn: whole_run(tarn, 8, 64 << 20),
        lambda tarn: figures(tarn, "ckpt", "--case", "commit", "--mib", "512", "--rounds", "1"),
    ]
    rounds = {}
    for number in range(arguments.rounds):
        for case in cases:
            pair = [arguments.old, arguments.new]
            order = pair if number % 2 == 0 else pair[::-1]
            got = {tarn: case(os.path.realpath(tarn)) for tarn in order}
            for name in got[arguments.new]:
                rounds.setdefault(name, []).append((got[arguments.old][name], got[arguments.new][name]))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    results = []
    for name, pairs in rounds.items():
        ratios = sorted(new[0] / old[0] for old, new in pairs)
        results.append(
            {
                "name": name,
                "value": statistics.median(new[0] for _, new in pairs),
                "unit": pairs[0][1][1],
                "against": {"name": "the build before", "value": statistics.median(old[0] for old, _ in pairs)},
                "ratio": statistics.median(ratios),
                "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
            }
        )
    print(json.dumps({"bench": "builds", "schema": 1, "results": results}))


if __name__ == "__main__":
    main()
