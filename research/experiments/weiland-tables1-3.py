#!/usr/bin/python3
"""Producers and consumers of files over an external store, a local disk and a tier in memory (Weiland 2018, section 4, Tables 1 to 3)."""

import contextlib
import statistics

from experiment import UNCLEAR, check_bounds, claim, every, factors, main, need, report_progress, spread, times
from producers import TARGETS, cell, ends, measured
from store import NEEDS, Neighbour, emulated, need_store, store

ABOUT = {
    "title": "Producer and consumer: external store, disk and tier",
    "source": "Weiland 2018, section 4, Tables 1, 2 and 3",
    "needs": [NEEDS, "4 GiB of memory"],
    "minutes": {"quick": 1.4, "full": 6.8},
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


def isolation(bench, outside, scale, runs):
    """Seconds of a small producer and consumer, alone and beside a neighbour who writes to the external store: by target, lists of runs."""
    found = {}
    for _ in range(runs):
        for way in ("alone", "beside another job"):
            with Neighbour(outside) if way != "alone" else contextlib.nullcontext():
                one = measured(bench, outside, 1, scale, 1, 10)
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


def measure(bench):
    """One pair, 36 pairs, one pair with a neighbour."""
    need_store()
    need(memory=4096, shm=2048, disk=(bench.folder, 4096))
    runs = bench.choose(2, 4)
    scale, small = bench.choose((0.004, 0.0004), (0.02, 0.002))
    with store(bench.folder, MBIT, LATENCY) as outside:
        report_progress("one pair")
        one = measured(bench, outside, 1, scale, runs)
        report_progress("36 pairs")
        many = measured(bench, outside, 36, small, bench.choose(1, 3))
        report_progress("a neighbour")
        apart = isolation(bench, outside, *bench.choose((0.001, 2), (0.01, 9)))
    words = [f"{files} files" for files in SHAPES]
    ratio = {t: [cell(one[(f, t, "without")], "write", "read")["value"] / cell(one[(f, "tier", "without")], "write", "read")["value"] for f in SHAPES] for t in ("external store", "disk")}
    published = {t: [sum(PAPER["without"][t][i]) / sum(PAPER["without"]["tier"][i]) for i in range(3)] for t in ("external store", "disk")}
    tier_faster = {t: [times(*[ends(one[(f, place, "without")], runs, "write", "read") for place in (t, "tier")]) for f in SHAPES] for t in ratio}
    read_again = {t: [times(*[ends(one[(f, t, cache)], runs, "read") for cache in ("without", "with")]) for f in SHAPES] for t in TARGETS.values()}
    fast = "write + read of the fastest pairs, median"
    pairs = {t: [(cell(many[(f // 10, t, "without")], "write", "read"), many[(f // 10, t, "without")][fast]) for f in SHAPES] for t in TARGETS.values()}
    # Of the pairs that run at once: how much longer the slowest takes.
    apart_by = {t: [slow["value"] / quick - 1 for slow, quick in values] for t, values in pairs.items()}
    behind = {"one": [], "36": []}
    for files in SHAPES:
        behind["one"].append(times(*[ends(one[(files, t, "without")], runs, "write", "read") for t in ("external store", "disk")]))
        behind["36"].append(times(*[ends(many[(files // 10, t, "without")], bench.choose(1, 3), "write", "read") for t in ("external store", "disk")]))
    slower = {t: times(apart[(t, "beside another job")], apart[(t, "alone")]) for t in TARGETS.values()}

    published_behind = {
        "one": [sum(a) / sum(b) for a, b in zip(PAPER["without"]["external store"], PAPER["without"]["disk"])],
        "36": [a / b for (a, _), (b, _) in zip(PAPER_PAIRS["external store"], PAPER_PAIRS["disk"])],
    }
    paper_apart = {t: [slow / quick - 1 for slow, quick in values] for t, values in PAPER_PAIRS.items()}

    def percent(parts):
        """A range of shares."""
        return f"{100 * min(parts):.0f} to {100 * max(parts):.0f} %"

    def text(ranges):
        """A range of factors, over all shapes."""
        return factors([value for values in ranges for value in values])

    return {
        "emulated": [emulated(MBIT, LATENCY), Neighbour.DESCRIPTION],
        "differs": [
            f"Files have {scale:g} of the paper's size with one pair, {small:g} with 36 pairs, so that they fit into memory. Seconds are of that size.",
            "The disk is whatever holds --dir; the tier is a tmpfs, as the paper's memory was.",
            "Contents are checked by the consumer here.",
            "The paper's store had other users while its 36 pairs ran; this one has none then.",
            "Embedded only: plain files of processes, and `tarn run`. Producer and consumer as jobs of Slurm are in jackson-table1.",
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
                "rows": [[t, spread(apart[(t, "alone")]), spread(apart[(t, "beside another job")]), statistics.median(apart[(t, "beside another job")]) / statistics.median(apart[(t, "alone")])] for t in TARGETS.values()],
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
            claim(
                "node-local memory is faster than the external file system: five times or more",
                factors(published["external store"]),
                f"{text(tier_faster['external store'])} at {MBIT} Mbit/s (by tarn)",
                every(*[check_bounds(values, least=5) for values in tier_faster["external store"]]),
            ),
            claim("node-local memory is faster than a local disk", factors(published["disk"]), f"{text(tier_faster['disk'])} (by tarn)", every(*[check_bounds(values, least=1) for values in tier_faster["disk"]])),
            claim(
                "data that stay on the node are read again twice as fast as from the external store, or faster",
                factors([a[1] / b[1] for a, b in zip(PAPER["without"]["external store"], PAPER["with"]["external store"])]),
                f"{text(read_again['external store'])} (by tarn)",
                every(*[check_bounds(values, least=2) for values in read_again["external store"]]),
            ),
            claim(
                "the page cache changes times over node-local memory by less than twice",
                factors([a[1] / b[1] for a, b in zip(PAPER["without"]["tier"], PAPER["with"]["tier"])]),
                f"{text(read_again['tier'])} (by tarn)",
                every(*[check_bounds(values, least=0.5, most=2) for values in read_again["tier"]]),
            ),
            claim(
                "what another job does to the external store slows the tier by a quarter at most, and the store by a half or more",
                "isolation, in words",
                f"beside such a job the tier takes {factors(slower['tier'], 2)} as long, the store {factors(slower['external store'], 2)} (by tarn)",
                every(check_bounds(slower["tier"], most=1.25), check_bounds(slower["external store"], least=1.5)),
            ),
            claim(
                "with 36 pairs at once, the external store falls further behind the local disk than with one pair",
                f"{factors(published_behind['one'])} with one pair, {factors(published_behind['36'])} with 36",
                f"{text(behind['one'])} with one pair, {text(behind['36'])} with 36 (by tarn)",
                UNCLEAR if bench.quick else every(*[check_bounds(times(many, one), least=1) for one, many in zip(*behind.values())]),
            ),
            claim(
                "of 36 pairs at once, the slowest is nearer to the fastest on a local disk than on the external store",
                f"{percent(paper_apart['disk'])} longer against {percent(paper_apart['external store'])}",
                f"{percent(apart_by['disk'])} against {percent(apart_by['external store'])}, which nobody else uses; on the tier {percent(apart_by['tier'])} (by tarn)",
                UNCLEAR,
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
