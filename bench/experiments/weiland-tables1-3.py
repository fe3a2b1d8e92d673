#!/usr/bin/python3
"""Producers and consumers of files over an external store, a local disk and a tier in memory (Weiland 2018, section 4, Tables 1 to 3)."""

import contextlib
import statistics
import subprocess
import threading
import time

from experiment import UNCLEAR, claim, main, need, say, spread
from producers import TARGETS, cell, measured
from store import NEEDS, emulated, need_store, store

ABOUT = {
    "title": "Producer and consumer: external store, disk and tier",
    "source": "Weiland 2018, section 4, Tables 1, 2 and 3",
    "needs": [NEEDS, "4 GiB of memory"],
    "minutes": {"quick": 3, "full": 16},
}
MBIT, LATENCY = 800, 300
SHAPES = (10, 100, 1000)
# Seconds to write and to read, without the page cache and with it, by target and shape.
PAPER = {
    "without": {
        "external store": ((137.77, 153.64), (105.34, 111.34), (102.42, 94.38)),
        "disk": ((34.39, 26.87), (29.05, 25.48), (28.09, 26.35)),
        "tier": ((3.02, 1.95), (2.99, 1.48), (3.16, 1.54)),
    },
    "with": {
        "external store": ((138.94, 5.38), (102.09, 2.18), (102.24, 1.64)),
        "disk": ((34.37, 2.04), (29.11, 1.62), (28.28, 1.80)),
        "tier": ((3.00, 1.62), (3.04, 1.62), (3.25, 1.66)),
    },
}
# Slowest and fastest of 36 pairs.
PAPER_PAIRS = {
    "external store": ((978.25, 790.15), (911.58, 591.07), (906.87, 829.00)),
    "disk": ((152.00, 142.99), (155.63, 138.14), (158.12, 150.78)),
    "tier": ((0.84, 0.77), (1.06, 0.79), (1.03, 0.66)),
}


def single(found, cache):
    """Table 1 or 2."""
    rows = []
    for target in TARGETS.values():
        row = [target]
        for index, files in enumerate(SHAPES):
            figures, paper = found[(files, target, cache)], PAPER[cache][target][index]
            row.append({**cell(figures, "write", "read"), "paper": round(sum(paper), 2)})
        rows.append(row)
    return rows


class Neighbour:
    """Somebody else who writes to the external store all the time."""

    def __init__(self, outside):
        self.stop, self.outside = threading.Event(), outside
        self.thread = threading.Thread(target=self.write)

    def write(self):
        """A file after the other, the same name."""
        while not self.stop.is_set():
            subprocess.run(["dd", "if=/dev/zero", f"of={self.outside}/neighbour", "bs=1M", "count=16", "conv=fsync"], stderr=subprocess.DEVNULL, check=False)

    def __enter__(self):
        self.thread.start()
        time.sleep(1)

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def isolation(bench, outside, runs):
    """Seconds of a small producer and consumer, alone and beside a neighbour who uses the external store: by target, lists of runs."""
    found = {}
    for _ in range(runs):
        for way in ("alone", "beside another job"):
            with Neighbour(outside) if way != "alone" else contextlib.nullcontext():
                one = measured(bench, outside, 1, 0.002, 1, 10)
            for target in TARGETS.values():
                figures = one[(10, target, "without")]
                found.setdefault((target, way), []).append(figures["write, median"] + figures["read, median"])
    return found


def bars(title, found, paper, key):
    """How many times as long as on the tier, here and in the paper, by shape."""
    series = []
    for target in ("external store", "disk"):
        for of, values in (("here", found), ("paper", paper)):
            points = [[shape, value] for shape, value in values(target)]
            series.append({"name": target, "of": of, "points": points})
    return {"title": title, "kind": "bars", "x": {"label": key}, "y": {"label": "times as long as on the tier", "log": True}, "series": series}


def times(lists):
    """A range of ratios as a text."""
    return f"{min(lists):.1f} to {max(lists):.1f} times" if len(lists) > 1 else f"{lists[0]:.1f} times"


def measure(bench):
    """One pair, 36 pairs, one pair with a neighbour."""
    need_store()
    need(memory=4096, disk=(bench.folder, 4096))
    runs = bench.choose(1, 5)
    scale, small = bench.choose((0.01, 0.001), (0.02, 0.002))
    with store(bench.folder, MBIT, LATENCY) as outside:
        say("one pair")
        one = measured(bench, outside, 1, scale, runs)
        say("36 pairs")
        many = measured(bench, outside, 36, small, bench.choose(1, 3))
        say("a neighbour")
        apart = isolation(bench, outside, bench.choose(3, 7))
    words = [f"{files} files" for files in SHAPES]
    ratio = {t: [cell(one[(f, t, "without")], "write", "read")["value"] / cell(one[(f, "tier", "without")], "write", "read")["value"] for f in SHAPES] for t in ("external store", "disk")}
    published = {t: [sum(PAPER["without"][t][i]) / sum(PAPER["without"]["tier"][i]) for i in range(3)] for t in ("external store", "disk")}
    read_again = {t: [one[(f, t, "without")]["read, median"] / one[(f, t, "with")]["read, median"] for f in SHAPES] for t in TARGETS.values()}
    fast = "write + read of the fastest pairs, median"
    pairs = {t: [(cell(many[(f // 10, t, "without")], "write", "read"), many[(f // 10, t, "without")][fast]) for f in SHAPES] for t in TARGETS.values()}
    varies = {key: (max(values) - min(values)) / statistics.median(values) for key, values in apart.items()}
    slower = {t: statistics.median(apart[(t, "beside another job")]) / statistics.median(apart[(t, "alone")]) for t in TARGETS.values()}
    return {
        "emulated": [emulated(MBIT, LATENCY)],
        "differs": [
            f"Files have {scale:g} of the paper's size with one pair, {small:g} with 36 pairs, so that they fit into memory. Seconds are of that size.",
            "The disk is whatever holds --dir; the tier is a tmpfs, as the paper's memory was.",
            "Contents are checked by the consumer here.",
        ],
        "rounds": runs,
        "tables": [
            {"title": "Table 1: one pair without the page cache, seconds to write and read", "columns": ["", *words], "rows": single(one, "without")},
            {"title": "Table 2: one pair with the page cache, seconds", "columns": ["", *words], "rows": single(one, "with")},
            {
                "title": "Table 3: 36 pairs without the page cache, seconds of the slowest, and of the fastest",
                "columns": ["", *[f"{f // 10} files, {w}" for f in SHAPES for w in ("slowest", "fastest")]],
                "rows": [
                    [t, *[cell for (slow, quick), (a, b) in zip(values, PAPER_PAIRS[t]) for cell in ({**slow, "paper": a}, {"value": quick, "paper": b})]]
                    for t, values in pairs.items()
                ],
            },
            {
                "title": "A small pair alone, and beside another job that writes to the external store: seconds",
                "columns": ["", "alone", "beside another job", "times as long"],
                "rows": [[t, spread(apart[(t, "alone")]), spread(apart[(t, "beside another job")]), slower[t]] for t in TARGETS.values()],
            },
        ],
        "plots": [
            bars(
                "Without the page cache: how many times as long as on the tier",
                lambda t: zip(words, ratio[t]),
                lambda t: zip(words, published[t]),
                "",
            ),
            {
                "title": "Alone, and beside another job that writes to the external store",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "seconds to write and read", "log": True},
                "series": [
                    {"name": way, "of": of, "points": [[t, statistics.median(v), min(v), max(v)] for t in TARGETS.values() for v in [apart[(t, way)]]]}
                    for way, of in (("alone", "peer"), ("beside another job", "here"))
                ],
            },
        ],
        "claims": [
            claim("node-local memory is 44 to 59 times as fast as the external file system", times(published["external store"]), f"{times(ratio['external store'])} at {MBIT} Mbit/s", min(ratio["external store"]) > 5),
            claim("it is up to twelve times as fast as a local disk", times(published["disk"]), times(ratio["disk"]), min(ratio["disk"]) > 1 if max(ratio["disk"]) > 1.2 else UNCLEAR),
            claim(
                "data that stay on the node are read again much faster than from the store",
                times([a[1] / b[1] for a, b in zip(PAPER["without"]["external store"], PAPER["with"]["external store"])]),
                times(read_again["external store"]),
                min(read_again["external store"]) > 2,
            ),
            claim("the page cache makes little difference to memory", times([a[1] / b[1] for a, b in zip(PAPER["without"]["tier"], PAPER["with"]["tier"])]), times(read_again["tier"]), max(read_again["tier"]) < 2),
            claim(
                "what other jobs do to the external store does not slow the tier",
                "isolation, in words",
                f"beside such a job the tier takes {slower['tier']:.2f} times as long, the store {slower['external store']:.2f} times",
                True if slower["tier"] < 1.25 and slower["external store"] > 1.5 else UNCLEAR if slower["tier"] < slower["external store"] else False,
            ),
            claim(
                "node-local storage varies less than the shared store",
                "5 to 12 % against 9 to 54 %",
                f"beside such a job, all runs: tier {100 * varies[('tier', 'beside another job')]:.0f} %, store {100 * varies[('external store', 'beside another job')]:.0f} %",
                UNCLEAR if bench.quick else varies[("tier", "beside another job")] < varies[("external store", "beside another job")],
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
