#!/usr/bin/python3
"""A shared HDF5 file over 1 to 8 partitions of storage memory, beside HDF5's own drivers (Schürmann 2014, section 6.3)."""

import os
import re
import subprocess

from experiment import TOP, UNCLEAR, claim, main, missing, need, point, say, spread

ABOUT = {
    "title": "HDF5 on storage memory: one file over 1, 2, 4 and 8 partitions",
    "source": "Schürmann 2014, section 6.3",
    "needs": ["a Python with h5py 3.10 or later ($TARN_PYTHON, or what scripts/deps.sh test makes)", "the plug-in for HDF5 beside tarn (make build)", "1 GiB of memory"],
    "minutes": {"quick": 0.6, "full": 3},
}
# MiB/s of writing by nodes.
PAPER = {1: 1074, 2: 2120, 4: 4349, 8: 7253}
MADE = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target")), "hdf5-python", "new", "bin", "python")
NAME = re.compile(r"seq-(write|read), HDF5 ([\d.]+), (\d+) partitions, .*")


def python():
    """A Python that has h5py."""
    for path in (os.environ.get("TARN_PYTHON"), MADE, "/usr/bin/python3"):
        if path and subprocess.run([path, "-c", "import h5py; assert h5py.version.version_tuple[:2] >= (3, 10)"], capture_output=True, check=False).returncode == 0:
            return path
    missing("needs a Python with h5py 3.10 or later: name it by TARN_PYTHON, or let scripts/deps.sh test make one")


def measure(bench):
    """Writes and reads, by partitions."""
    if not os.path.isdir(os.path.join(os.path.dirname(bench.tarn), "hdf5")):
        missing("needs the plug-in for HDF5 beside tarn: make build makes it")
    need(memory=1024)
    path, rounds, inner = python(), bench.choose(1, 5), bench.choose(3, 5)
    ours, plain = {}, {}
    for turn in range(rounds):
        say(f"{turn + 1}/{rounds}")
        results = bench.json("bench", "hdf5", "--case", "seq-write", "--case", "seq-read", "--python", path, "--rounds", str(inner))["results"]
        for result in results:
            match = NAME.fullmatch(result["name"])
            if match and result["against"]["name"] == "sec2":
                key = (match[1], int(match[3]))
                ours.setdefault(key, []).append(result["value"])
                plain.setdefault(key, []).append(result["against"]["value"])
    over = {what: [a / b for n in PAPER for a, b in zip(ours[(what, n)], plain[(what, n)])] for what in ("write", "read")}
    grown = [b / a for a, b in zip(ours[("write", 1)], ours[("write", 8)])]
    paper = PAPER[8] / PAPER[1]
    return {
        "emulated": ["Partitions lie in the memory of one node, in place of flash on 1 to 8 nodes."],
        "differs": [
            "One process writes and reads hyperslabs of 1 MiB one after the other, in blocks of 1 MiB over the partitions in turn; in the paper all processes write together, in blocks of 4 MiB.",
            "There is no server between the program and the partitions, which the paper names as what limits it.",
            "Beside it HDF5's own driver for files (sec2), on a file of the same tmpfs.",
        ],
        "rounds": rounds,
        "tables": [
            {
                "title": "MB/s (the paper: MiB/s of its nodes)",
                "columns": ["partitions", "paper, writing", "writing", "sec2", "reading", "sec2"],
                "rows": [[str(n), PAPER[n], *[spread(found[(what, n)]) for what in ("write", "read") for found in (ours, plain)]] for n in PAPER],
            }
        ],
        "plots": [
            {
                "title": "Writing, by partitions, as many times as with one",
                "kind": "lines",
                "x": {"label": "partitions"},
                "y": {"label": "times"},
                "series": [
                    {"name": "paper (nodes)", "of": "paper", "points": [[n, rate / PAPER[1]] for n, rate in PAPER.items()]},
                    {"name": "here (one node's memory)", "of": "here", "points": [point(n, [b / a for a, b in zip(ours[("write", 1)], ours[("write", n)])]) for n in PAPER]},
                ],
            }
        ],
        "claims": [
            claim("a file over more nodes is written faster", f"{paper:.1f} times with eight", f"{min(grown):.2f} to {max(grown):.2f} times with eight partitions of one node, all of which one processor fills", UNCLEAR),
            claim(
                "HDF5 directly on storage memory exposes its speed to applications",
                "in words",
                f"writing {min(over['write']):.1f} to {max(over['write']):.1f} times, reading {min(over['read']):.1f} to {max(over['read']):.1f} times as fast as HDF5's own driver on files of the same memory",
                min(over["write"] + over["read"]) > 1,
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
