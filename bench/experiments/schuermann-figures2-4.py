#!/usr/bin/python3
"""Sweeps over transfer sizes, processes and partitions, from here and from another node (Schürmann 2014, Figures 2 to 4)."""

import contextlib
import re
import statistics

import dsa
from experiment import MIB, UNCLEAR, claim, main, need, point, say, spread

ABOUT = {
    "title": "Storage memory over transfer sizes, processes and partitions",
    "source": "Schürmann 2014, section 6.2, Figures 2, 3 and 4",
    "needs": ["fio, nbdkit, Open MPI and its compiler (scripts/deps.sh test)", "libtarnfabric.so beside tarn for the other node (make build)", "3 GiB of memory"],
    "minutes": {"quick": 1.2, "full": 9},
}
KIB = 1 << 10
FILES = (("posix", "fpp", "POSIX, a file each"), ("posix", "shared", "POSIX, shared file"), ("mpiio", "fpp", "MPI-IO, a file each"), ("mpiio", "shared", "MPI-IO, shared file"))
QUEUE, DEVICE = "queue pair", "block device"
SCALING = re.compile(r"scaling, (\d+) partitions, (\d+) threads")
REMOTE = re.compile(r"remote-(\w+), (\w+), .*, 32 at the same time.*")


def swept(bench, program, uri, size, number, mib):
    """GB/s by interface and phase, with transfers of that size and so many processes (threads of the queue pair, clients of the device)."""
    found = {(QUEUE, what): ours for what, (ours, _) in dsa.phases(bench, size, number, 1, mib).items()}
    for what in ("write", "read"):
        found[(DEVICE, what)] = dsa.device(uri, what, size, number, mib)
    for api, pattern, words in FILES:
        for what, rate in dsa.files(program, api, pattern, size, number, mib).items():
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
    """Millions of reads of 4 KiB a second by partitions and threads, and what another node's give."""
    found = {}
    for name, (value, _) in bench.figures("dsa", "--case", "scaling", "--rounds", str(rounds), "--warm", "1", "--requests", "131072", "--mib", "512").items():
        match = SCALING.match(name)
        if match:
            found[(int(match[1]), int(match[2]))] = value
    return found


def other_node(bench, rounds):
    """Thousands of requests of 4 KiB a second at a partition of another node: beside libfabric alone, by provider and direction."""
    found = {}
    for name, (value, against) in bench.figures("dsa", "--case", "remote-tcp", "--case", "remote-shm", "--rounds", str(rounds), "--warm", "1").items():
        match = REMOTE.match(name)
        if match:
            found[(match[1], match[2])] = (value, against)
    return found


def file_systems(bench, program, rounds, mib):
    """GB/s of IOR's stand-in on an ext4 over the block device, and over a plain file on a tmpfs, in turns."""
    found = {}
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(dsa.attached(bench, stack.enter_context(dsa.block(bench, 4 * mib))))
        plain = stack.enter_context(dsa.loop(stack.enter_context(dsa.plain_file(4 * mib))))
        folders = {name: stack.enter_context(dsa.mounted(bench, at)) for name, at in (("here", device), ("peer", plain))}
        for turn in range(rounds):
            say(f"{turn + 1}/{rounds}: file systems")
            for api, pattern, words in FILES:
                for of, folder in folders.items():
                    for what, rate in dsa.files(program, api, pattern, MIB, 4, mib, folder).items():
                        found.setdefault((words, what, of), []).append(rate)
    return found


def measure(bench):
    """The three figures."""
    dsa.need_block()
    need(memory=3072)
    program = dsa.ior(bench)
    rounds, mib = bench.choose(1, 3), bench.choose(64, 128)
    sizes = bench.choose((4 * KIB, 64 * KIB, MIB), (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB))
    numbers = bench.choose((1, 2, 4), (1, 2, 4, 8))
    by_size, by_number, small = {}, {}, {}
    with dsa.block(bench, mib) as uri:
        for turn in range(rounds):
            for size in sizes:
                say(f"{turn + 1}/{rounds}: transfers of {size // KIB} KiB")
                for (name, what), rate in swept(bench, program, uri, size, 1, mib).items():
                    by_size.setdefault((name, what, size), []).append(rate)
            for number in numbers:
                say(f"{turn + 1}/{rounds}: {number} processes")
                for (name, what), rate in swept(bench, program, uri, MIB, number, mib).items():
                    by_number.setdefault((name, what, number), []).append(rate)
                for what in ("write", "read"):
                    small.setdefault((DEVICE, what, number), []).append(dsa.device(uri, what, 4 * KIB, number, mib) * 1e6 / (4 * KIB))
                for what, (rate, _) in dsa.phases(bench, 4 * KIB, number, 1, mib).items():
                    small.setdefault((QUEUE, what, number), []).append(rate * 1e6 / (4 * KIB))
    reason = dsa.cannot_attach()
    on_disk = file_systems(bench, program, rounds, mib) if reason is None else {}
    say("partitions")
    scaling = partitions(bench, rounds + 1)
    say("another node")
    remote = other_node(bench, rounds + 1)
    interfaces = (QUEUE, DEVICE, *[words for *_, words in FILES])
    four = {name: [b / a for a, b in zip(small[(name, "read", 1)], small[(name, "read", 4)])] for name in (QUEUE, DEVICE)}
    middle = {key: statistics.median(rates) for key, rates in by_size.items()}
    alike = [middle[(words, "read", MIB)] for *_, words in FILES]
    threads = max(t for _, t in scaling)
    grown = scaling[(8, threads)] / scaling[(1, threads)]
    part = {key: ours / alone for key, (ours, alone) in remote.items()}
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
            "series": [{"name": f"{t} thread{'s' if t > 1 else ''}", "of": "here", "points": [[p, scaling[(p, t)]] for p in (1, 2, 4, 8)]} for t in sorted({t for _, t in scaling})],
        },
    ]
    return {
        "emulated": [
            "The medium is memory (a tmpfs), in place of flash cards; the file system that POSIX and MPI-IO use in Figures 2 and 3 is that tmpfs itself, in place of GPFS; in the table it is an ext4 on the block device.",
            "Figure 4: partitions lie on one node, in place of 8 to 64; the node without a tier is a process in a network namespace of its own, over libfabric's software providers.",
        ],
        "differs": [
            "IOR is played by a stand-in (bench/experiments/ior.c). The block device is served by NBD to fio. Processes of the queue pair are threads.",
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
                "rows": [[f"{what} by {provider}", ours, alone, part[(provider, what)]] for (provider, what), (ours, alone) in remote.items()],
            }
        ],
        "plots": plots,
        "claims": [
            claim("large transfers by POSIX and MPI-IO, to one file and to many, are much alike", "fairly equivalent", f"reads of 1 MiB: {min(alike):.1f} to {max(alike):.1f} GB/s", max(alike) < 2 * min(alike)),
            claim(
                "small requests gain by concurrency",
                "more than 2.5 times with four processes (block device)",
                ", ".join(f"{name} {statistics.median(values):.1f} times" for name, values in four.items()),
                True if statistics.median(four[DEVICE]) > 2.5 else UNCLEAR,
            ),
            claim(
                "small requests by queue pairs are beyond those of a block device",
                "a reason to look for other ways",
                f"{statistics.median(small[(QUEUE, 'read', 1)]) / statistics.median(small[(DEVICE, 'read', 1)]):.0f} times as many",
                statistics.median(small[(QUEUE, "read", 1)]) > statistics.median(small[(DEVICE, "read", 1)]),
            ),
            claim("bandwidth and requests grow ideally with storage nodes", "8 times from 8 to 64 nodes", f"{grown:.2f} times from 1 to 8 partitions of one node, which share its memory", UNCLEAR),
            claim(
                "from nodes without storage the same bandwidth is had",
                "the same bandwidth, 40 % of small requests",
                ", ".join(f"{what} by {provider} {100 * value:.0f} % of what the network gives" for (provider, what), value in part.items()),
                True if min(part.values()) > 0.9 else UNCLEAR if max(part.values()) > 0.9 else False,
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
