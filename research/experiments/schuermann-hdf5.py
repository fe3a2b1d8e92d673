#!/usr/bin/python3
"""A shared HDF5 file over 1 to 8 partitions of storage memory, beside HDF5's own drivers (Schürmann 2014, section 6.3)."""

import os
import re
import shutil
import tempfile

import hdf5
from experiment import MIB, UNCLEAR, check_bounds, claim, every, factors, main, need, point, run, report_progress, spread, times

ABOUT = {
    "title": "HDF5 on storage memory: one file over 1, 2, 4 and 8 partitions",
    "source": "Schürmann 2014, section 6.3",
    "needs": [hdf5.NEEDS, "the plug-in for HDF5 beside tarn (make build)", "1 GiB of memory"],
    "minutes": {"quick": 0.8, "full": 2.7},
}
# MiB/s of writing by nodes.
PAPER = {1: 1074, 2: 2120, 4: 4349, 8: 7253}
NAME = re.compile(r"seq-(write|read), HDF5 ([\d.]+), (\d+) partitions, .*")

# Of the writers of one file: all of it.
WHOLE = 128 * MIB


def together(bench, path, ranks, partitions, rounds):
    """MB/s of all writers of one file over partitions, and of pwrite(2) to one file, in turns."""
    folder = tempfile.mkdtemp(prefix="tarn-hdf5-", dir="/dev/shm")
    try:
        over = [word for n in range(partitions) for word in ("--partition", f"./p{n}")]
        block = ["--set", f"block={hdf5.BLOCK // MIB}M"] if partitions > 1 else []
        through = [bench.tarn, "h5", "exec", *over, *block]
        run([*through, "--", path, "-c", hdf5.MAKES, WHOLE], cwd=folder)
        with open(os.path.join(folder, "plain"), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, WHOLE)
        shared = [*through, "--set", "share=writers", "--", path]
        with hdf5.writers(shared, folder, ranks, "hdf5", WHOLE) as ours, hdf5.writers([path], folder, ranks, "plain", WHOLE) as plain:
            found = [(ours(), plain()) for _ in range(rounds + 1)]
        # The first round warms up.
        return list(zip(*found[1:]))
    finally:
        shutil.rmtree(folder)


def measure(bench):
    """Writes and reads, by partitions."""
    hdf5.need_plugin(bench)
    need(memory=1024, shm=768, disk=(bench.folder, 16))
    path, rounds, inner = hdf5.python(), bench.choose(2, 5), bench.choose(1, 5)
    ours, plain = {}, {}
    for turn in range(rounds):
        report_progress(f"{turn + 1}/{rounds}")
        results = bench.json("bench", "hdf5", "--case", "seq-write", "--case", "seq-read", "--python", path, "--rounds", str(inner))["results"]
        for result in results:
            match = NAME.fullmatch(result["name"])
            if match and result["against"]["name"] == "sec2":
                key = (match[1], int(match[3]))
                ours.setdefault(key, []).append(result["value"])
                plain.setdefault(key, []).append(result["against"]["value"])
    counts, (turns, each) = bench.choose((1, 2), (1, 2, 4)), bench.choose((2, 2), (3, 5))
    many = {}
    for turn in range(turns):
        for ranks in counts:
            for partitions in PAPER:
                report_progress(f"{turn + 1}/{turns}: {ranks} writers of one file over {partitions} partitions")
                for found, more in zip(many.setdefault((ranks, partitions), ([], [])), together(bench, path, ranks, partitions, each)):
                    found.extend(more)
    over = {what: [times(ours[(what, n)], plain[(what, n)]) for n in PAPER] for what in ("write", "read")}
    ranges = {what: factors([value for values in ranges for value in values]) for what, ranges in over.items()}
    grown = times(ours[("write", 8)], ours[("write", 1)])
    two, beside = times(many[(2, 8)][0], many[(1, 8)][0]), times(*many[(2, 8)])
    paper = PAPER[8] / PAPER[1]
    return {
        "emulated": ["Partitions lie in the memory of one node, in place of flash on 1 to 8 nodes."],
        "differs": [
            "The first table: one process writes and reads hyperslabs of 1 MiB one after the other, in blocks of 1 MiB over the partitions in turn.",
            f"The second, as in the paper: all processes write hyperslabs of {hdf5.BLOCK // MIB} MiB of one file in turn, in blocks of as much over the partitions; {WHOLE // MIB} MiB together, beside pwrite(2) to one file of the same tmpfs. h5py, {turns * each} runs, {each} in each of {turns} turns, after one that does not count.",
            "There is no server between the program and the partitions, which the paper names as what limits it.",
            "Beside it HDF5's own driver for files (sec2), on a file of the same tmpfs.",
        ],
        "rounds": rounds,
        "tables": [
            {
                "title": "MB/s (the paper: MiB/s of its nodes)",
                "columns": ["partitions", "paper, writing", "writing", "sec2", "reading", "sec2"],
                "rows": [[str(n), PAPER[n], *[spread(found[(what, n)]) for what in ("write", "read") for found in (ours, plain)]] for n in PAPER],
            },
            {
                "title": "MB/s of all writers of one file together",
                "columns": ["partitions", *[f"{words}, {ranks} process{'es' if ranks > 1 else ''}" for ranks in counts for words in ("HDF5", "pwrite")]],
                "rows": [[str(n), *[spread(rates) for ranks in counts for rates in many[(ranks, n)]]] for n in PAPER],
            },
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
            claim("an HDF5 file over more nodes is written faster", f"{paper:.1f} times with eight", f"{factors(grown, 2)} with eight partitions of one node, all of which one processor fills (by tarn)", UNCLEAR),
            claim(
                "HDF5 directly on storage memory is faster than its own driver on files of the same memory",
                "in words",
                f"writing {ranges['write']}, reading {ranges['read']} as fast as HDF5's own driver on files of the same memory (by tarn)",
                every(*[check_bounds(values, least=1) for ranges in over.values() for values in ranges]),
            ),
            claim(
                "two processes write one HDF5 file over storage memory faster than one does",
                "in words",
                f"two processes {factors(two)} as fast as one over 8 partitions of one node, {factors(beside, 2)} two that write a plain file",
                check_bounds(two, least=1),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
