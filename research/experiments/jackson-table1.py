#!/usr/bin/python3
"""A producer and a consumer of ten files, over an external store and over the node's tier, embedded and through Slurm (Jackson 2019, Table 1)."""

import json
import os
import shutil
import statistics
import time

import cluster
import store
from experiment import MIB, UNCLEAR, check_bounds, claim, every, factors, main, need, report_progress, spread, times
from producers import BY_TARN, cell, ends, measured

ABOUT = {
    "title": "Producer and consumer, with data kept on the node between jobs",
    "source": "Jackson 2019, section 6, Table 1",
    "needs": [store.NEEDS, cluster.NEEDS, "8 GiB of memory"],
    "minutes": {"quick": 1.1, "full": 9.3},
}
MBIT, LATENCY = 800, 300
FILES = 10
# Seconds.
PAPER = {"store": {"write": 197, "read": 112}, "tier": {"write": 133, "read": 60}}
ROLES = {"write": "producer", "read": "consumer"}
# What a job writes or reads, and where it says how long that took.
JOB = "/shared/bin/tarn-bench __io {role} --files {files} --size {size} --seed {seed} --cache {cache} --dir {folder} --report {role}{pair}.json"
# MiB of the jobs of a node, together.
MEMORY = 3000
# Past the cache go whole pages.
PAGE = 4096


def words(pairs, cache):
    """A case, as a text."""
    return f"{pairs} pair{'s' if pairs > 1 else ''}, {cache} the cache"


def script(role, lines, pair, memory, **known):
    """A job of the workflow."""
    head = "".join(f"#TARN {line}\n" for line in lines)
    # What is written to a tier in memory counts as the job's.
    return f"#!/bin/bash\n#SBATCH -o {role}{pair}.out --mem={memory}\n{head}{JOB.format(role=role, files=FILES, pair=pair, **known)}\n"


def jobs(outside, name, tier, size, **known):
    """Producer and consumer as two jobs, with data on the external store or kept on the node."""
    if not tier:
        return {role: script(role, [], size=size, folder=f"{outside}/{name}", **known) for role in ROLES}
    made = [f'name = "{name}"', f'data.made = {{ size = "{FILES * size} B" }}', "[[step]]", 'out = ["made"]']
    read = [f'name = "{name}"', "data.made = {}", "[[step]]", 'in = ["made"]']
    return {role: script(role, lines, size=size, folder="$TARN_made", **known) for role, lines in (("write", made), ("read", read))}


def once(place, outside, tier, size, turn, pairs, cache):
    """Seconds of the slowest producer, of the slowest consumer, and from the submission to the end of the last job."""
    names = {pair: f"{'tier' if tier else 'store'}{turn}-{pairs}-{cache}-{pair}" for pair in range(pairs)}
    for pair, name in names.items():
        known = {"pair": pair, "memory": MEMORY // pairs, "seed": 100 * turn + pair + 1, "cache": cache}
        for role, text in jobs(outside, name, tier, size // pairs // PAGE * PAGE, **known).items():
            place.alice(f"rm -f {role}{pair}.json; cat > {role}{pair}.sh << 'END'\n{text}END")
    # Without tarn each on a node of its own, as in the paper.
    submit = "tarn submit write{0}.sh read{0}.sh" if tier else "a=$(sbatch --parsable -w node1 write{0}.sh); sbatch -Q -d afterok:$a -w node2 read{0}.sh"
    began = time.monotonic()
    # The pairs know nothing of each other, and are submitted at the same time.
    place.alice("set -e\n" + "\n".join(f"({submit.format(pair)}) & pids+=($!)" for pair in names) + '\nfor pid in "${pids[@]}"; do wait "$pid"; done')
    place.alice('until [ -z "$(squeue -h -u alice -t PD,R,CG,CF,SO -o %T)" ]; do ! squeue -h -u alice -o %r | grep NeverSatisfied || { tail -n 2 write*.out >&2; exit 1; }; sleep 0.1; done')
    wall = time.monotonic() - began
    seconds = {role: [json.loads(place.alice(f"cat {role}{pair}.json || {{ cat {role}{pair}.out >&2; false; }}"))["seconds"] for pair in names] for role in ROLES}
    if tier:
        place.alice("\n".join(f"tarn slurm end {name} || true" for name in names.values()))
    else:
        for name in names.values():
            shutil.rmtree(os.path.join(outside, name))
    return [max(taken) for taken in seconds.values()] + [wall]


def through_slurm(bench, outside, size, cases, beside_rounds):
    """Producers, consumers, all: lists of runs by case and by whether they are on the tier. The same of the first case beside another job that uses the store."""
    found, beside = {}, {False: [], True: []}
    os.chmod(outside, 0o1777)
    with cluster.site(bench, 2, 4000, max(1024, 3 * FILES * size // MIB)) as place:
        for turn in range(max(cases.values()) + 1):
            for at, (case, rounds) in enumerate(cases.items()):
                # The first round warms up.
                if turn > rounds or (turn == 0 and at > 0):
                    continue
                for tier in (False, True):
                    report_progress(f"through Slurm, {words(*case)}, {turn}/{rounds}, {'tier' if tier else 'store'}")
                    ran = once(place, outside, tier, size, turn, *case)
                    if turn > 0:
                        found.setdefault((case, tier), []).append(ran)
        for turn in range(beside_rounds):
            for tier, runs in beside.items():
                report_progress(f"beside another job, {turn + 1}/{beside_rounds}, {'tier' if tier else 'store'}")
                with store.Neighbour(outside):
                    runs.append(once(place, outside, tier, size, 1000 + turn, *next(iter(cases))))
    return {key: list(zip(*runs)) for key, runs in found.items()}, {tier: list(zip(*runs)) for tier, runs in beside.items()}


def sums(runs):
    """Of producers and consumers together."""
    return [a + b for a, b, *_ in zip(*runs)]


def measure(bench):
    """Embedded, then through Slurm."""
    store.need_store()
    cluster.need_cluster(bench)
    need(memory=8192, shm=2048, disk=(bench.folder, 1024))
    rounds, mib, many, many_rounds = bench.choose((2, 16, 2, 1), (5, 32, 5, 3))
    # Through Slurm, with how many rounds each. One is enough where the factor is far beyond two.
    cases = {(1, "without"): rounds, (1, "with"): bench.choose(1, 5)}
    cases.update({} if bench.quick else {(many, cache): many_rounds for cache in ("without", "with")})
    with store.store(bench.folder, MBIT, LATENCY) as outside:
        report_progress("embedded")
        # Ten files a pair, all pairs together as many bytes as one.
        embedded = {1: measured(bench, outside, 1, mib * MIB / 1e9, rounds, FILES), many: measured(bench, outside, many, mib * MIB / many / 1e8, many_rounds, 10 * FILES)}
        slurm, beside = through_slurm(bench, outside, mib * MIB, cases, bench.choose(0, rounds))

    def row(key, place, role, case):
        pairs, cache = case
        here, tier = embedded[pairs], key == "tier"
        return [
            f"{words(*case)}: {ROLES[role]}, {place}",
            {"value": PAPER[key][role]} if case == (1, "without") else "",
            cell(here[(FILES, "tier" if tier else "external store", cache)], role),
            cell(here[(FILES, BY_TARN, None)], role) if tier and cache == "without" else "",
            spread(slurm[(case, tier)][list(ROLES).index(role)]) if case in cases else "",
        ]

    places = {"store": "external store", "tier": "node tier"}
    gain = {case: times(sums(slurm[(case, False)]), sums(slurm[(case, True)])) for case in cases}
    here = {
        (pairs, cache): times(*[ends(found[(FILES, place, cache)], rounds if pairs == 1 else many_rounds, "write", "read") for place in ("external store", "tier")]) for pairs, found in embedded.items() for cache in ("without", "with")
    }
    # With the cache, the store's consumer reads this one machine's memory: the paper's two nodes do not.
    walls = {case: times(slurm[(case, False)][2], slurm[(case, True)][2]) for case in cases if case[1] == "without"}
    paper = sum(PAPER["store"].values()) / sum(PAPER["tier"].values())
    first = (1, "without")
    alone = {tier: sums(slurm[(first, tier)]) for tier in beside}
    shared = {tier: sums(found) for tier, found in beside.items()}
    slower = {tier: times(values, alone[tier]) for tier, values in shared.items() if values}
    vary = {tier: 100 * (max(values) / min(values) - 1) for tier, values in alone.items()}
    middle = statistics.median(sums(slurm[(first, False)])) / statistics.median(sums(slurm[(first, True)]))
    only = " (embedded only, with --quick)" if bench.quick else ""
    return {
        "emulated": [store.emulated(MBIT, LATENCY), "Two nodes are namespaces of this machine, with a Slurm of their own; the tier is a tmpfs."]
        + ([store.Neighbour.DESCRIPTION] if slower else []),
        "differs": [
            f"{FILES} files of {mib} MiB instead of 20 GB; {many} pairs{only} have {FILES} files of {mib / many:g} MiB each, and the slowest pair counts. The tier is memory here, and was Optane memory there; the store is much further from it than their Lustre was.",
            "Without the cache, caches are dropped or passed over on both. With it, the consumer on another node finds in this machine's memory what the producer has written, as all nodes are one machine. The consumer compares what it reads.",
            "Under Slurm with tarn, the two jobs are one workflow: the second gets the node that has the data. Without, they are on two nodes, as in the paper.",
        ],
        "rounds": rounds,
        "tables": [
            {
                "title": "Seconds to write and to read ten files",
                "columns": ["", "paper (its sizes)", "embedded, plain files", "by tarn run", "jobs of Slurm"],
                "rows": [row(key, place, role, case) for case in [(pairs, cache) for pairs in embedded for cache in ("without", "with")] for key, place in places.items() for role in ROLES],
            },
            {
                "title": "Jobs of Slurm, seconds from submission to the end of the last",
                "columns": ["", "external store, without tarn", "node tier, with tarn"],
                "rows": [[words(*case), spread(slurm[(case, False)][2]), spread(slurm[(case, True)][2])] for case in cases],
            },
            {
                "title": "Jobs of Slurm, one pair without the cache: seconds of producer and consumer together, alone and beside another job that writes to the store",
                "columns": ["", "alone", "beside another job"],
                "rows": [[f"{place} tarn", spread(alone[tier]), spread(shared[tier])] for place, tier in (("external store, without", False), ("node tier, with", True)) if slower],
            },
        ],
        "plots": [
            {
                "title": "Producer and consumer: how many times as long over the external store as over the tier",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "times"},
                "series": [
                    {"name": "paper", "of": "paper", "points": [["write + read", paper]]},
                    {"name": "here, through Slurm", "of": "here", "points": [["write + read", middle, min(gain[first]), max(gain[first])]]},
                ],
            }
        ],
        "claims": [
            claim(
                "producer and consumer that keep their data on the node's tier are faster than over the external store",
                f"{paper:.2f} times",
                "through Slurm " + "; ".join(f"{words(*case)} {factors(values)}" for case, values in gain.items()) + f"; embedded {factors([f for values in here.values() for f in values])}; at {MBIT} Mbit/s (by tarn)",
                every(*[check_bounds(values, least=1) for values in [*gain.values(), *here.values()]]),
            ),
            claim(
                "with the time of the job scheduler and the data scheduler, the whole workflow over the node's tier is faster than over the external store, too",
                "the same runs",
                "; ".join(f"{words(*case)} {factors(values, 2)}" for case, values in walls.items()) + ", submission to end",
                every(*[check_bounds(values, least=1) for values in walls.values()]),
            ),
            claim(
                "what another job does to the external store slows jobs that keep their data on the tier by a quarter at most, and those on the store by a half or more",
                "the same, in words (Weiland 2018, too)",
                "not tried with --quick" if bench.quick else f"the tier's {factors(slower[True], 2)} as long as alone, the store's {factors(slower[False], 2)} (by tarn)",
                UNCLEAR if bench.quick else every(check_bounds(slower[True], most=1.25), check_bounds(slower[False], least=1.5)),
            ),
            claim(
                "run times over the node's tier vary less than over the external store",
                "less than 2 % against less than 15 %",
                f"{vary[True]:.0f} % against {vary[False]:.0f} %, of a store that nobody else uses (by tarn)",
                UNCLEAR,
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
