#!/usr/bin/python3
"""Storage memory of 1 to 8 nodes at once, from these nodes and from nodes without storage; HDF5 over all of them (Schürmann 2014, Figure 4, section 6.3)."""

import contextlib
import itertools
import statistics

import dsa
import hdf5
import nodes
from experiment import MIB, check_bounds, claim, every, factors, main, need, point, run, report_progress, spread, times

ABOUT = {
    "title": "Storage memory of several nodes, from these and from nodes without it, and HDF5 over them",
    "source": "Schürmann 2014, sections 6.2 (Figure 4) and 6.3",
    "needs": ["root and iproute2, for namespaces and limited links", "fio and nbdkit (scripts/deps.sh test)", hdf5.NEEDS, "the plug-in for HDF5 beside tarn (make build)", "4 GiB of memory"],
    "minutes": {"quick": 1.3, "full": 8},
}
MBIT, MIB_EACH = 200, 64
# Writers of one HDF5 file, on one node without storage.
WRITERS = 8
STORAGE, OTHERS = "from the storage nodes, each the next one's", "from as many nodes without storage"
# How many times as fast with eight times the nodes: Figure 4, and MiB/s of writing HDF5 by nodes.
PAPER, PAPER_HDF5 = 8, {1: 1074, 2: 2120, 4: 4349, 8: 7253}


def at_once(place, pairs, warm, seconds):
    """MB/s of all clients together, by phase, once the network has found the rate of its streams: each has a partition by its name, on a node."""
    found = {}
    with contextlib.ExitStack() as stack:
        uris = [stack.enter_context(place.block(*pair)) for pair in pairs]
        for what in ("write", "read"):
            found[what] = 1000 * sum(dsa.devices(uris, what, MIB, 1, MIB_EACH, seconds, warm))
    return found


def swept(place, counts, rounds, warm, seconds):
    """By where clients are, phase and number of storage nodes."""
    found = {}
    for turn in range(rounds):
        for count in counts:
            report_progress(f"{turn + 1}/{rounds}: {count} storage nodes")
            ways = {OTHERS: [(f"c{n}", f"s{n}:fast/p") for n in range(1, count + 1)]}
            if count > 1:
                ways[STORAGE] = [(f"s{n}", f"s{n % count + 1}:fast/p") for n in range(1, count + 1)]
            for way, pairs in ways.items():
                for what, rate in at_once(place, pairs, warm, seconds).items():
                    found.setdefault((way, what, count), []).append(rate)
    return found


def one_file(bench, place, path, counts, rounds, whole):
    """MB/s of writers of one HDF5 file, by the number of storage nodes that it lies on, in turns."""
    found = {}
    for turn, count in itertools.product(range(rounds), counts):
        report_progress(f"{turn + 1}/{rounds}: HDF5 over {count} storage nodes")
        names = [f"s{n}:fast/h{count}" for n in range(1, count + 1)]
        for name in names:
            place.tarn("c1", "partition", "create", name, f"{whole // count + 16 * MIB} B")
        over = [word for name in names for word in ("--partition", name)]
        block = ["--set", f"block={hdf5.BLOCK // MIB}M"] if count > 1 else []
        through = place.inside("c1", bench.tarn, "h5", "exec", *over, *block)
        environment = place.environment("c1")
        run([*through, "--", path, "-c", hdf5.MAKES, whole], cwd=place.folder, env=environment)
        shared = [*through, "--set", "share=writers", "--", path]
        with hdf5.writers(shared, place.folder, WRITERS, "hdf5", whole, environment) as write:
            # The first round warms up.
            write()
            found.setdefault(count, []).append(write())
        for name in names:
            place.tarn("c1", "partition", "rm", name)
    return found


def measure(bench):
    """Clients of devices, then writers of one file."""
    nodes.need_nodes()
    dsa.need_block()
    need(memory=4096, shm=3072, disk=(bench.folder, 16))
    hdf5.need_plugin(bench)
    path = hdf5.python()
    rounds, warm, seconds, whole = bench.choose((2, 1, 1, 16 * MIB), (3, 2, 4, 128 * MIB))
    counts = bench.choose((1, 8), (1, 2, 4, 8))
    most = max(counts)
    with nodes.nodes(bench, most, most, MBIT, 2 * MIB_EACH + whole // MIB + 64) as place:
        for n in range(1, most + 1):
            place.tarn("c1", "partition", "create", f"s{n}:fast/p", f"{MIB_EACH}MiB")
        found = swept(place, counts, rounds, warm, seconds)
        for n in range(1, most + 1):
            place.tarn("c1", "partition", "rm", f"s{n}:fast/p")
        written = one_file(bench, place, path, counts, rounds, whole)
    link = MBIT / 8
    grown = {what: times(found[(OTHERS, what, most)], found[(OTHERS, what, 1)]) for what in ("write", "read")}
    alike = {what: times(found[(OTHERS, what, most)], found[(STORAGE, what, most)]) for what in ("write", "read")}
    faster = times(written[most], written[1])
    h5 = [statistics.median(written[n]) / statistics.median(written[1]) for n in counts]
    paper_h5 = PAPER_HDF5[most] / PAPER_HDF5[1]
    return {
        "emulated": [
            f"Nodes are network namespaces of this machine on one switch, a tarnd each, storage is memory. The link of each storage node is held to {MBIT} Mbit/s each way, in place of the rate of its flash, "
            "so that two processors can do it for eight nodes. That rates add up is put in; what is shown is that nothing of tarn stands in the way."
        ],
        "differs": [
            "The paper has 8 to 64 storage nodes, and 512 to 4,096 compute nodes; IOR on GPFS. Here clients are fio on block devices of tarn, each of one partition.",
            "What a storage node has itself does not go over its link: so each uses the next one's, which uses the links both ways.",
            f"{WRITERS} processes on one node without storage write one HDF5 file in turns of {hdf5.BLOCK // MIB} MiB; the paper's run on the storage nodes.",
        ],
        "rounds": rounds,
        "tables": [
            {
                "title": "MB/s of 1 MiB of all clients together",
                "columns": ["storage nodes", "their links", *[f"{what} {way}" for way in (OTHERS, STORAGE) for what in ("write", "read")]],
                "rows": [
                    [str(n), n * link, *[spread(found[(way, what, n)]) if (way, what, n) in found else "" for way in (OTHERS, STORAGE) for what in ("write", "read")]]
                    for n in counts
                ],
            },
            {
                "title": "MB/s of the writers of one HDF5 file",
                "columns": ["storage nodes", "their links", "here", "times one", "paper, times one"],
                "rows": [[str(n), n * link, spread(written[n]), times, PAPER_HDF5[n] / PAPER_HDF5[1]] for n, times in zip(counts, h5)],
            },
        ],
        "plots": [
            {
                "title": "Figure 4: all clients together",
                "kind": "lines",
                "x": {"label": "storage nodes"},
                "y": {"label": "MB/s"},
                "series": [
                    *[{"name": f"{what} {way}", "of": "here", "points": [point(n, found[(way, what, n)]) for n in counts if (way, what, n) in found]} for way in (OTHERS, STORAGE) for what in ("write", "read")],
                    {"name": "their links", "of": "peer", "points": [[n, n * link] for n in counts]},
                ],
            },
            {
                "title": "One HDF5 file, as many times as on one node",
                "kind": "lines",
                "x": {"label": "storage nodes"},
                "y": {"label": "times"},
                "series": [
                    {"name": "paper", "of": "paper", "points": [[n, rate / PAPER_HDF5[1]] for n, rate in PAPER_HDF5.items()]},
                    {"name": "here", "of": "here", "points": [[n, times] for n, times in zip(counts, h5)]},
                ],
            },
        ],
        "claims": [
            claim(
                "bandwidth grows with storage nodes: to nine tenths of ideal",
                f"{PAPER} times from 8 to 64 nodes",
                ", ".join(f"{what} {factors(values)}" for what, values in grown.items()) + f" from 1 to {most} nodes, whose links are held",
                every(*[check_bounds(values, least=0.9 * most) for values in grown.values()]),
            ),
            claim(
                "nodes without storage get nine tenths or more of the bandwidth that nodes with storage get",
                "the same for large transfers",
                ", ".join(f"{what} {factors(values, 2)}" for what, values in alike.items()) + f" of it with {most} storage nodes",
                every(*[check_bounds(values, least=0.9) for values in alike.values()]),
            ),
            claim(
                "one HDF5 file over more nodes is written faster: nine tenths of the paper's gain or more",
                f"{paper_h5:.1f} times with eight",
                f"{factors(faster)} with eight nodes, whose links are held",
                check_bounds(faster, least=0.9 * paper_h5),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
