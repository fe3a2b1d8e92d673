#!/usr/bin/python3
"""Sweeps over transfer sizes, processes and partitions, from here and from another node (Schürmann 2014, Figures 2 to 4)."""

import contextlib
import os
import re
import statistics

import dsa
from experiment import MIB, UNCLEAR, check_bounds, claim, every, factors, main, missing, need, point, report_progress, spread, times
from ior import Ior

ABOUT = {
    "title": "Storage memory over transfer sizes, processes and partitions",
    "source": "Schürmann 2014, section 6.2, Figures 2, 3 and 4",
    "needs": ["fio, nbdkit, Open MPI and its compiler (scripts/deps.sh test)", "libtarnfabric.so beside tarn for the other node (make build)", "3 GiB of memory"],
    "minutes": {"quick": 0.7, "full": 4.3},
}
KIB = 1 << 10
FILES = (("posix", "fpp", "POSIX, a file each"), ("posix", "shared", "POSIX, shared file"), ("mpiio", "fpp", "MPI-IO, a file each"), ("mpiio", "shared", "MPI-IO, shared file"))
QUEUE, DEVICE = "queue pair", "block device"
SCALING = re.compile(r"scaling, (\d+) partitions, (\d+) threads")
# What small requests of a block device gain at least by four processes in place of one, reads and writes; requests by eight times the storage nodes.
PAPER_GAIN, PAPER_GROWN = 2.5, 8
REMOTE = re.compile(r"remote-(\w+), (\w+), .*, 32 at the same time.*")


def swept(bench, ior, uri, size, number, mib):
    """GB/s by interface and phase, with transfers of that size and so many processes (threads of the queue pair, clients of the device)."""
    found = {(QUEUE, what): ours for what, (ours, _) in dsa.phases(bench, size, number, 1, mib).items()}
    for what in ("write", "read"):
        found[(DEVICE, what)] = dsa.device(uri, what, size, number, mib)
    for api, pattern, words in FILES:
        for what, rate in dsa.files(ior, api, pattern, size, number, mib).items():
            found[(words, what)] = rate
    return found


def lines(title, x, found, interfaces, what, requests=False):
    """A series an interface: GB/s, or thousands of requests a second where x is their size."""
    series = []
    for interface in interfaces:
        of = sorted((at, rates) for (name, phase, at), rates in found.items() if (name, phase) == (interface, what))
        points = [point(at, [rate * (1e6 / at if requests else 1) for rate in rates]) for at, rates in of]
        series.append({"name": interface, "of": "here" if interface in (QUEUE, DEVICE) else "peer", "points": points})
    return {"title": title, "kind": "lines", "x": {"label": x, "log": True}, "y": {"label": "thousands a second" if requests else "GB/s", "log": True}, "series": series}


def partitions(bench, rounds):
    """Millions of reads of 4 KiB a second by partitions and threads, a list of rounds each."""
    found = {}
    for _ in range(rounds):
        for name, (value, _) in bench.figures("dsa", "--case", "scaling", "--rounds", "1", "--warm", "1", "--requests", "131072", "--mib", "512").items():
            match = SCALING.match(name)
            if match:
                found.setdefault((int(match[1]), int(match[2])), []).append(value)
    return found


def other_node(bench, rounds):
    """Thousands of requests of 4 KiB a second at a partition of another node, and of libfabric alone, by provider and direction: a list of rounds each."""
    found = {}
    for _ in range(rounds):
        for name, both in bench.figures("dsa", "--case", "remote-tcp", "--case", "remote-shm", "--rounds", "1", "--warm", "1").items():
            match = REMOTE.match(name)
            if match:
                for value, of in zip(both, found.setdefault((match[1], match[2]), ([], []))):
                    of.append(value)
    return found


def file_systems(bench, ior, rounds, mib):
    """GB/s of IOR on an ext4 over the block device, and over a plain file on a tmpfs, in turns."""
    found = {}
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(dsa.attached(bench, stack.enter_context(dsa.block(bench, 4 * mib))))
        plain = stack.enter_context(dsa.loop(stack.enter_context(dsa.plain_file(4 * mib))))
        folders = {name: stack.enter_context(dsa.mounted(bench, at)) for name, at in (("here", device), ("peer", plain))}
        for turn in range(rounds):
            report_progress(f"{turn + 1}/{rounds}: file systems")
            for api, pattern, words in FILES:
                for of, folder in folders.items():
                    for what, rate in dsa.files(ior, api, pattern, MIB, 4, mib, folder).items():
                        found.setdefault((words, what, of), []).append(rate)
    return found


def measure(bench):
    """The three figures."""
    dsa.need_block()
    if not os.path.exists(os.path.join(os.path.dirname(bench.tarn), "libtarnfabric.so")):
        missing("needs libtarnfabric.so beside tarn, for the other node: make build makes it")
    need(memory=3072, shm=1536, disk=(bench.folder, 64))
    ior = Ior(bench.folder, dsa.HOW)
    rounds, mib = bench.choose(1, 3), bench.choose(32, 128)
    sizes = bench.choose((4 * KIB, MIB), (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB))
    numbers = bench.choose((1, 4), (1, 2, 4, 8))
    by_size, by_number, small = {}, {}, {}
    with dsa.block(bench, mib) as uri:
        for turn in range(rounds):
            for size in sizes:
                report_progress(f"{turn + 1}/{rounds}: transfers of {size // KIB} KiB")
                for (name, what), rate in swept(bench, ior, uri, size, 1, mib).items():
                    by_size.setdefault((name, what, size), []).append(rate)
            for number in numbers:
                report_progress(f"{turn + 1}/{rounds}: {number} processes")
                # Of one process it is known from the sweep over sizes.
                more = swept(bench, ior, uri, MIB, number, mib) if number > 1 else {(name, what): by_size[(name, what, size)][turn] for name, what, size in by_size if size == MIB}
                for (name, what), rate in more.items():
                    by_number.setdefault((name, what, number), []).append(rate)
                for what in ("write", "read"):
                    small.setdefault((DEVICE, what, number), []).append(dsa.device(uri, what, 4 * KIB, number, mib) * 1e6 / (4 * KIB))
                for what, (rate, _) in dsa.phases(bench, 4 * KIB, number, 1, mib).items():
                    small.setdefault((QUEUE, what, number), []).append(rate * 1e6 / (4 * KIB))
    reason = dsa.cannot_attach()
    on_disk = file_systems(bench, ior, rounds, mib) if reason is None else {}
    report_progress("partitions")
    scaling = partitions(bench, rounds)
    report_progress("another node")
    remote = other_node(bench, rounds)
    interfaces = (QUEUE, DEVICE, *[words for *_, words in FILES])
    four = {(name, what): times(small[(name, what, 4)], small[(name, what, 1)]) for name in (QUEUE, DEVICE) for what in ("write", "read")}
    alike = {}
    for what in ("write", "read") if on_disk else ():
        rates = [on_disk[(words, what, "here")] for *_, words in FILES]
        alike[what] = times(max(rates, key=statistics.median), min(rates, key=statistics.median))
    beyond = times(small[(QUEUE, "read", 1)], small[(DEVICE, "read", 1)])
    threads = max(t for _, t in scaling)
    grown = times(scaling[(8, threads)], scaling[(1, threads)])
    ideal = f"reads, eight times the storage, {threads} threads"
    part = {key: times(ours, alone) for key, (ours, alone) in remote.items()}
    plots = [lines(f"Figure 2: {what} over transfer sizes, one process", "bytes a transfer", by_size, interfaces, what) for what in ("write", "read")]
    plots += [lines(f"Figure 2: {what} requests over transfer sizes", "bytes a transfer", by_size, (QUEUE, DEVICE), what, True) for what in ("write", "read")]
    plots += [lines(f"Figure 3: {what} of 1 MiB over processes", "processes", by_number, interfaces, what) for what in ("write", "read")]
    plots += [
        {
            "title": "Figure 3: requests of 4 KiB over processes",
            "kind": "lines",
            "x": {"label": "processes"},
            "y": {"label": "thousands a second", "log": True},
            "series": [{"name": f"{name}, {what}", "of": "here", "points": [point(n, small[(name, what, n)]) for n in numbers]} for name in (QUEUE, DEVICE) for what in ("write", "read")],
        },
        {
            "title": "Figure 4: reads of 4 KiB over partitions",
            "kind": "lines",
            "x": {"label": "partitions"},
            "y": {"label": "millions a second"},
            "series": [{"name": f"{t} thread{'s' if t > 1 else ''}", "of": "here", "points": [point(p, scaling[(p, t)]) for p in (1, 2, 4, 8)]} for t in sorted({t for _, t in scaling})],
        },
        {
            "title": "Figures 3 and 4: how many times as many requests of 4 KiB",
            "kind": "bars",
            "x": {"label": ""},
            "y": {"label": "times"},
            "series": [
                {"name": "paper (four processes: more than that)", "of": "paper", "points": [*[[f"{DEVICE}, {what}, four processes", PAPER_GAIN] for what in ("write", "read")], [ideal, PAPER_GROWN]]},
                {
                    "name": "here",
                    "of": "here",
                    "points": [
                        *[point(f"{name}, {what}, four processes", [b / a for a, b in zip(small[(name, what, 1)], small[(name, what, 4)])]) for name, what in four],
                        point(ideal, [b / a for a, b in zip(scaling[(1, threads)], scaling[(8, threads)])]),
                    ],
                },
            ],
        },
    ]
    return {
        "emulated": [
            "The medium is memory (a tmpfs), in place of flash cards; the file system that POSIX and MPI-IO use in Figures 2 and 3 is that tmpfs itself, in place of GPFS; in the table it is an ext4 on the block device.",
            "Figure 4: partitions lie on one node, in place of 8 to 64; the node without a tier is a process in a network namespace of its own, over libfabric's software providers.",
        ],
        "differs": [
            f"POSIX and MPI-IO are measured by {ior.name()}. The block device is served by NBD to fio. Processes of the queue pair are threads.",
            "There are as many processors as `nproc` says, which all processes, media and servers share.",
        ],
        "rounds": rounds,
        "tables": [
            {
                "title": f"IOR on an ext4, four processes, transfers of 1 MiB, GB/s{f' (not measured: {reason})' if reason else ''}",
                "columns": ["", "on the block device of a partition", "on a loop device of a file on a tmpfs"],
                "rows": [[f"{words}, {what}", *(spread(on_disk[(words, what, of)]) for of in ("here", "peer"))] for *_, words in FILES for what in ("write", "read") if on_disk],
            },
            {
                "title": "Figure 4: thousands of requests of 4 KiB a second, 32 at a time, at a partition of another node",
                "columns": ["", "here", "libfabric alone", "ratio"],
                "rows": [[f"{what} by {provider}", spread(ours), spread(alone), statistics.median(ours) / statistics.median(alone)] for (provider, what), (ours, alone) in remote.items()],
            }
        ],
        "plots": plots,
        "claims": [
            claim(
                "large transfers by POSIX and MPI-IO, to one file and to many, are much alike: the fastest has less than twice the slowest",
                "fairly equivalent",
                ", ".join(f"{what} {factors(values)}" for what, values in alike.items()) + ", by four processes, 1 MiB, on an ext4 on the block device" if alike else f"not measured: {reason}",
                every(*[check_bounds(values, most=2) for values in alike.values()]) if alike else UNCLEAR,
            ),
            claim(
                "four processes give more than 2.5 times the small requests of one, reading and writing, by queue pair and by block device",
                "more than 2.5 times with four processes (block device)",
                ", ".join(f"{name} {what} {factors(values)}{' (by tarn)' if name == QUEUE else ''}" for (name, what), values in four.items()),
                every(*[check_bounds(four[(DEVICE, what)], least=PAPER_GAIN) for what in ("write", "read")]),
            ),
            claim(
                "queue pairs serve more small requests than a block device",
                "a reason to look for other ways",
                f"{factors(beyond)} as many (queue pairs by tarn)",
                check_bounds(beyond, least=1),
            ),
            claim("bandwidth and requests grow ideally with storage nodes", "8 times from 8 to 64 nodes", f"{factors(grown, 2)} from 1 to 8 partitions of one node, which share its memory (by tarn)", UNCLEAR),
            claim(
                "requests from nodes without storage get nine tenths or more of what libfabric alone gives",
                "the same bandwidth, 40 % of small requests",
                ", ".join(f"{what} by {provider} {factors(values, 2)}" for (provider, what), values in part.items()) + " what libfabric alone has (by tarn)" if part else "not measured: libfabric has no provider here",
                every(*[check_bounds(values, least=0.9) for values in part.values()]) if part else UNCLEAR,
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
