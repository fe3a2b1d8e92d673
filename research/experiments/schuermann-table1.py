#!/usr/bin/python3
"""Bandwidth, requests a second and latency of queue pairs and of a block device, by threads (Schürmann 2014, Table 1)."""

import statistics

import dsa
from experiment import MIB, check_bounds, claim, every, factors, main, need, report_progress, spread, times

ABOUT = {
    "title": "Direct access and block device: bandwidth, requests a second, latency",
    "source": "Schürmann 2014, section 6.1, Table 1",
    "needs": ["fio and nbdkit (scripts/deps.sh test)", "2 GiB of memory"],
    "minutes": {"quick": 0.3, "full": 1.4},
}
THREADS = (1, 2)
# MB/s or k/s, Blue Gene/Q: one thread, best configuration; Power7+: one thread, best.
PAPER = {
    ("DSA", "write 1 MiB", "MB/s"): (1100, 1100, 2710, 2710),
    ("DSA", "read 1 MiB", "MB/s"): (1240, 2270, 3020, 3020),
    ("DSA", "write 8 KiB", "k/s"): (65, 91, 270, 270),
    ("DSA", "read 8 KiB", "k/s"): (75, 200, 360, 360),
    ("DSA", "read 4 KiB", "k/s"): (85, 180, 600, 700),
    ("block device", "write 1 MiB", "MB/s"): (860, 1000, 1300, 2200),
    ("block device", "read 1 MiB", "MB/s"): (2100, 2200, 3000, 3000),
}
# k/s of 32 bytes in memory, Blue Gene/Q, by threads; Power7+.
PAPER_32 = {"write": ((120, 230, 340), (710,)), "read": ((120, 235, 340), (740, 1060, 1050))}
SIZES = {"1 MiB": MIB, "8 KiB": 8 << 10, "4 KiB": 4 << 10}


def rate(gb_a_second, size, unit):
    """In the unit of the table."""
    return gb_a_second * 1000 if unit == "MB/s" else gb_a_second * 1e6 / size


def published(what):
    """The block device's part of the queue pairs' bandwidth in the paper, by configuration."""
    return [device / queue for device, queue in zip(*(PAPER[(interface, f"{what} 1 MiB", "MB/s")] for interface in ("block device", "DSA")))]


def measure(bench):
    """All cells, in turns."""
    dsa.need_block()
    need(memory=2048, shm=1280, disk=(bench.folder, 16))
    rounds, inner = bench.choose((2, 1), (5, 5))
    mib, found = bench.choose(128, 256), {}

    def add(key, value):
        found.setdefault(key, []).append(value)

    with dsa.block(bench, mib) as uri:
        for turn in range(rounds):
            report_progress(f"{turn + 1}/{rounds}")
            for threads in THREADS:
                for name, size in SIZES.items():
                    for what, (ours, plain) in dsa.phases(bench, size, threads, inner, mib).items():
                        add(("DSA", f"{what} {name}", threads), ours)
                        add(("plain copies", f"{what} {name}", threads), plain)
                for what in ("write", "read"):
                    add(("block device", f"{what} 1 MiB", threads), dsa.device(uri, what, MIB, threads, mib))
    by_dd = {}
    reason = dsa.cannot_attach()
    if reason is None:
        with dsa.block(bench, mib) as uri, dsa.attached(bench, uri) as device, dsa.plain_file(mib) as file, dsa.loop(file) as plain:
            for turn in range(rounds):
                report_progress(f"{turn + 1}/{rounds}: dd")
                for what in ("write", "read"):
                    for of, at in (("partition", device), ("tmpfs", plain)):
                        by_dd.setdefault((what, of), []).append(1000 * dsa.dd(at, what, mib))
    # Lists of what is had here, and by copies without a queue.
    small = {}
    words = ["dsa", "--case", "read-32b-random", "--case", "write-32b-random", "--case", "latency-4k-read"]
    for turn in range(rounds):
        report_progress(f"{turn + 1}/{rounds}: small requests")
        for name, both in bench.figures(*words, "--rounds", str(inner), "--warm", "1", "--requests", "262144", "--mib", str(mib)).items():
            if "threads" in name and "beside" not in name:
                case, threads, *_ = name.split(", ")
                for value, of in zip(both, small.setdefault((case, int(threads.split()[0])), ([], []))):
                    of.append(1000 * value)

    def best(interface, what):
        """Repetitions with the number of threads that is best."""
        return max((found[(interface, what, threads)] for threads in THREADS), key=statistics.median)

    rows = []
    for (interface, what, unit), paper in PAPER.items():
        size = SIZES[what.split(" ", 1)[1]]
        plain = found[("plain copies", what, 1)] if interface == "DSA" else None
        rows.append([f"{interface}, {what}, {unit}", paper[0], paper[1], paper[2], *[spread([rate(v, size, unit) for v in values]) if values else "" for values in (found[(interface, what, 1)], best(interface, what), plain)]])
    rows_32 = [
        [f"{what} 32 bytes, {threads} thread{'s' if threads > 1 else ''}", PAPER_32[what][0][threads - 1], *map(spread, small[(f"{what}-32b-random", threads)])]
        for what in ("write", "read")
        for threads in THREADS
    ]
    rows_dd = [[f"{what} 1 MiB", PAPER[("block device", f"{what} 1 MiB", "MB/s")][0], spread(by_dd[(what, "partition")]), spread(by_dd[(what, "tmpfs")])] for what in ("write", "read") if by_dd]
    latency = spread([1000 / value for value in small[("latency-4k-read", 1)][0]])
    sides = {what: {"one": [found[(i, f"{what} 1 MiB", 1)] for i in ("block device", "DSA")], "best": [best(i, f"{what} 1 MiB") for i in ("block device", "DSA")]} for what in ("write", "read")}
    parts = {(what, which): [device / queue for device, queue in zip(*both)] for what, of in sides.items() for which, both in of.items()}
    costs = {what: times(*of["best"]) for what, of in sides.items()}
    # Percent more or less than queue pairs.
    less = {what: (100 * (statistics.median(parts[(what, "best")]) - 1), 100 * (published(what)[1] - 1)) for what in sides}
    scaled = {what: times(*[small[(f"{what}-32b-random", threads)][0] for threads in (2, 1)]) for what in ("write", "read")}
    return {
        "emulated": ["The medium is memory (a tmpfs, mapped), in place of a card with flash and memory."],
        "differs": [
            "The block device is served by the NBD protocol, to fio and, through FUSE and a loop device, to dd; the paper has a driver in the kernel.",
            "Threads are those of one process, one and two, as there are two processors; the paper's best configurations have up to four.",
            "Beside queue pairs stand the same copies without a queue, which is what memory allows.",
        ],
        "rounds": rounds,
        "tables": [
            {"title": "Table 1a: one thread, and the best number of threads", "columns": ["", "paper, BG/Q, one", "best", "Power7+, one", "here, one", "best", "copies without a queue, one"], "rows": rows},
            {
                "title": "1 MiB by the block device, as a part of what queue pairs give",
                "columns": ["", "paper, BG/Q, one thread", "best of both", "Power7+, one", "best", "here, one thread", "best of both"],
                "rows": [[what, *published(what), *[spread(parts[(what, which)]) for which in ("one", "best")]] for what in sides],
            },
            {"title": "Table 1b: requests of 32 bytes, k/s", "columns": ["", "paper, BG/Q", "here", "copies without a queue"], "rows": rows_32},
            {"title": f"dd on the kernel's device, one thread, MB/s{f' (not measured: {reason})' if reason else ''}", "columns": ["", "paper, BG/Q", "a partition by nbdfuse and a loop device", "a file on a tmpfs by a loop device"], "rows": rows_dd},
            {"title": "Latency of a read of 4 KiB, us", "columns": ["", "paper, a write of 8 KiB of flash", "here"], "rows": [["one request at a time", 490, latency]]},
        ],
        "plots": [
            {
                "title": "Table 1b: how many times as many requests of 32 bytes by two threads",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "times one thread"},
                "series": [
                    {"name": "paper, BG/Q", "of": "paper", "points": [[what, PAPER_32[what][0][1] / PAPER_32[what][0][0]] for what in ("write", "read")]},
                    {"name": "here", "of": "here", "points": [[what, sum(values) / len(values), min(values), max(values)] for what, values in scaled.items()]},
                ],
            }
        ],
        "claims": [
            claim(
                "two threads give at least 1.5 times the requests of one",
                "1.9 times with two",
                ", ".join(f"{what} {factors(values, 2)}" for what, values in scaled.items()) + " (by tarn)",
                every(*[check_bounds(values, least=1.5) for values in scaled.values()]),
            ),
            claim(
                "a block device on top of queue pairs costs bandwidth",
                "0.91 and 0.97 of the best configurations, writing and reading",
                ", ".join(f"{what} {factors(values, 2)} a queue pair's, {less[what][0]:+.0f} % where the paper has {less[what][1]:+.0f} %" for what, values in costs.items())
                + "; the best number of threads of both, over a socket (queue pairs by tarn)",
                every(*[check_bounds(values, most=1) for values in costs.values()]),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
