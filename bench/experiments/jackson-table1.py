#!/usr/bin/python3
"""A producer and a consumer of ten files, over an external store and over the node's tier, embedded and through Slurm (Jackson 2019, Table 1)."""

import json
import os
import shutil
import time

import cluster
import store
from experiment import MIB, UNCLEAR, apart, claim, main, need, say, spread
from producers import BY_TARN, cell, measured

ABOUT = {
    "title": "Producer and consumer, with data kept on the node between jobs",
    "source": "Jackson 2019, section 6, Table 1",
    "needs": [store.NEEDS, cluster.NEEDS, "8 GiB of memory"],
    "minutes": {"quick": 1.2, "full": 6},
}
MBIT, LATENCY = 800, 300
FILES = 10
# Seconds.
PAPER = {"store": {"write": 197, "read": 112}, "tier": {"write": 133, "read": 60}}
# What a job writes or reads, and where it says how long that took.
JOB = "/shared/bin/tarn __bench-io {role} --files {files} --size {size} --seed {seed} --cache without --dir {folder} --report {role}.json"


def script(role, lines, **words):
    """A job of the workflow."""
    head = "".join(f"#TARN {line}\n" for line in lines)
    # What is written to a tier in memory counts as the job's.
    return f"#!/bin/bash\n#SBATCH -o {role}.out --mem=3000\n{head}{JOB.format(role=role, files=FILES, **words)}\n"


def jobs(outside, name, tier, size, seed):
    """Producer and consumer as two jobs, with data on the external store or kept on the node."""
    if not tier:
        return {role: script(role, [], size=size, seed=seed, folder=f"{outside}/{name}") for role in ("write", "read")}
    made = [f'name = "{name}"', f'data.made = {{ size = "{FILES * size} B" }}', "[[step]]", 'out = ["made"]']
    read = [f'name = "{name}"', "data.made = {}", "[[step]]", 'in = ["made"]']
    return {role: script(role, lines, size=size, seed=seed, folder="$TARN_made") for role, lines in (("write", made), ("read", read))}


def once(place, outside, tier, size, turn):
    """Seconds of the producer, of the consumer, and from the submission to the end of the last job."""
    name = f"{'tier' if tier else 'store'}{turn}"
    for role, text in jobs(outside, name, tier, size, turn + 1).items():
        place.alice(f"rm -f {role}.json; cat > {role}.sh << 'END'\n{text}END")
    began = time.monotonic()
    if tier:
        place.alice("tarn submit write.sh read.sh")
    else:
        # Each on a node of its own, as in the paper.
        place.alice("a=$(sbatch --parsable -w node1 write.sh); sbatch -Q -d afterok:$a -w node2 read.sh")
    place.alice('until [ -z "$(squeue -h -u alice -t PD,R,CG,CF,SO -o %T)" ]; do ! squeue -h -u alice -o %r | grep NeverSatisfied || exit; sleep 0.1; done')
    wall = time.monotonic() - began
    said = [json.loads(place.alice(f"cat {role}.json || {{ cat {role}.out >&2; false; }}")) for role in ("write", "read")]
    if tier:
        place.alice(f"tarn slurm end {name} || true")
    else:
        shutil.rmtree(os.path.join(outside, name))
    return [s["seconds"] for s in said] + [wall]


def through_slurm(bench, outside, size, rounds):
    """Lists of runs, by way: producer, consumer, all."""
    found = {False: [], True: []}
    os.chmod(outside, 0o1777)
    with cluster.site(bench, 2, 4000, max(1024, 3 * FILES * size // MIB)) as place:
        for turn in range(rounds + 1):
            for tier, runs in found.items():
                say(f"through Slurm, {turn}/{rounds}, {'tier' if tier else 'store'}")
                runs.append(once(place, outside, tier, size, turn))
    # The first round warms up.
    return {tier: list(zip(*runs[1:])) for tier, runs in found.items()}


def measure(bench):
    """Embedded, then through Slurm."""
    store.need_store()
    cluster.need_cluster(bench)
    need(memory=8192, disk=(bench.folder, 2048))
    rounds, mib = bench.choose((2, 16), (5, 32))
    with store.store(bench.folder, MBIT, LATENCY) as outside:
        say("embedded")
        here = measured(bench, outside, 1, mib * MIB / 1e9, rounds, FILES)
        slurm = through_slurm(bench, outside, mib * MIB, rounds)
    embedded = {"store": here[(FILES, "external store", "without")], "tier": here[(FILES, "tier", "without")]}
    rows = [
        [
            f"{words}, {place}",
            {"value": PAPER[key][role]},
            cell(embedded[key], role),
            cell(here[(FILES, BY_TARN, None)], role) if key == "tier" else "",
            spread(slurm[key == "tier"][index]),
        ]
        for key, place in (("store", "external store"), ("tier", "node tier"))
        for index, (role, words) in enumerate((("write", "producer"), ("read", "consumer")))
    ]
    sums = {tier: [a + b for a, b, _ in zip(*found)] for tier, found in slurm.items()}
    gain = [slow / fast for slow, fast in zip(sums[False], sums[True])]
    walls = [slow / fast for slow, fast in zip(slurm[False][2], slurm[True][2])]
    paper = sum(PAPER["store"].values()) / sum(PAPER["tier"].values())
    vary = {tier: (max(values) - min(values)) / min(values) for tier, values in sums.items()}
    return {
        "emulated": [store.emulated(MBIT, LATENCY), "Two nodes are namespaces of this machine, with a Slurm of their own; the tier is a tmpfs."],
        "differs": [
            f"{FILES} files of {mib} MiB instead of 20 GB. The tier is memory here, and was Optane memory there; the store is much further from it than their Lustre was.",
            "Caches are dropped or passed over on both. The consumer compares what it reads.",
            "Under Slurm with tarn, the two jobs are one workflow: the second gets the node that has the data. Without, they are on two nodes, as in the paper.",
        ],
        "rounds": rounds,
        "tables": [
            {"title": "Seconds to write and to read ten files", "columns": ["", "paper (its sizes)", "embedded, plain files", "by tarn run", "jobs of Slurm"], "rows": rows},
            {
                "title": "Jobs of Slurm, seconds from submission to the end of the second",
                "columns": ["", "all"],
                "rows": [["external store, without tarn", spread(slurm[False][2])], ["node tier, with tarn", spread(slurm[True][2])]],
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
                    {"name": "here, through Slurm", "of": "here", "points": [["write + read", sorted(gain)[len(gain) // 2], min(gain), max(gain)]]},
                ],
            }
        ],
        "claims": [
            claim(
                "producer and consumer that keep their data on the node's tier are faster than over the external store",
                f"{paper:.2f} times",
                f"{min(gain):.1f} to {max(gain):.1f} times at {MBIT} Mbit/s",
                True if apart(sums[True], sums[False]) else UNCLEAR,
            ),
            claim(
                "so is the workflow as its user sees it, with the job scheduler's and the data scheduler's part",
                "the same runs",
                f"{min(walls):.2f} to {max(walls):.2f} times, submission to end",
                True if min(walls) > 1.05 else False if max(walls) < 0.95 else UNCLEAR,
            ),
            claim(
                "runs over the tier vary less than over the store",
                "less than 2 % against less than 15 %",
                f"{100 * vary[True]:.0f} % against {100 * vary[False]:.0f} %",
                UNCLEAR if rounds < 5 else vary[True] < vary[False],
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
