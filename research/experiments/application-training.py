#!/usr/bin/python3
"""PyTorch training on two nodes of a real Slurm, one of which is lost: checkpoints in a buddy's memory, or a file on an external store."""

import os
import re
import shutil
import time

import cluster
import store
from experiment import TOP, check_bounds, claim, exact, factors, main, missing, need, run, report_progress, spread, times

ABOUT = {
    "title": "Application: PyTorch training that goes on from a buddy's memory",
    "source": "Fernando 2016, sections I and II (copies on a buddy); Jackson 2019, section 2.1",
    "needs": [store.NEEDS, cluster.NEEDS, "PyTorch (scripts/deps.sh training)", "libtarn_python.so beside tarn (make build)", "6 GiB of memory"],
    "minutes": {"quick": 0.8, "full": 6.8},
}
MBIT, LATENCY = 200, 1000
EVERY, WIDTH = 5, 1024
# Of the slurm-cluster, in seconds.
TIMEOUT = 180
WAYS = {
    "none": ("no checkpoints", "none", EVERY),
    "file": (f"torch.save to the external store every {EVERY} steps", "file", EVERY),
    "phx": (f"tarn, with a copy in the other node's memory, every {EVERY} steps", "phx", EVERY),
    "each": ("tarn, with a copy in the other node's memory, every step", "phx", 1),
}


class Fixture:
    """The example in a user's folder on a cluster."""

    def __init__(self, bench, alice, shared, outside):
        self.alice, self.outside, self.top = alice, outside, os.path.dirname(shared)
        self.folder = os.path.join(shared, "home", "alice", "training")
        alice("mkdir -p training")
        for name in ("train.py", "train.sbatch"):
            shutil.copy2(os.path.join(TOP, "examples", "training", name), self.folder)
        run([os.path.join(TOP, "scripts", "python.sh"), os.path.dirname(bench.tarn), self.folder])

    def submit(self, name, way, steps):
        """A job, and where its output is."""
        _, kind, every = WAYS[way]
        log = f"{self.folder}/{name}.out"
        # What a job before it has said is not this one's.
        if os.path.exists(log):
            os.rename(log, f"{log}.before")
        options = f"--steps {steps} --width {WIDTH} --checkpoints {kind} --every {every} --file {self.outside}/{way}.pt"
        # Whole nodes: a rank of a part is bound to its node's first processor, which is the same one on all emulated nodes.
        script = f"cd training && TARN_PHX_TIER=/scm/alice/{name} TARN_PHX_MEMORY=/scm/alice sbatch --exclusive --parsable -o {name}.out train.sbatch {options}"
        return self.alice(script).strip(), log

    def gone(self, job):
        """Waits for a job's end."""
        self.alice(f'until [ -z "$(squeue -h -j {job} -o %T 2> /dev/null)" ]; do sleep 0.1; done')

    def clean(self, way):
        """The next training begins anew, whatever this one has left outside."""
        if os.path.exists(f"{self.outside}/{way}.pt"):
            os.remove(f"{self.outside}/{way}.pt")

    def act(self, what, node):
        """Has the cluster lose or start a node."""
        run([os.path.join(TOP, "tests", "cluster", "slurm-cluster"), what, "--dir", self.top, node])


def read(path):
    """A file that may not be there yet."""
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def ended(log):
    """What the first rank says at last: the version and the step it began with, seconds until then, loss, and seconds of training."""
    log_text = read(log)
    began = re.search(r"^from (\S+), step (\d+), ([\d.]+) s$", log_text, re.MULTILINE)
    last = re.search(r"^done, step \d+, loss (\S+), ([\d.]+) s$", log_text, re.MULTILINE)
    if not began or not last:
        raise SystemExit(f"the training did not end:\n{log_text[-4000:]}")
    return {"step": int(began[2]), "restart": float(began[3]), "loss": last[1], "seconds": float(last[2])}


def alone(fixture, way, steps, turn):
    """A training that is left alone."""
    job, log = fixture.submit(f"alone-{way}-{turn}", way, steps)
    fixture.gone(job)
    fixture.clean(way)
    return ended(log)


def killed(fixture, way, steps, turn):
    """One whose second node is lost when half of it is safe: how it went on, with the step that it had come to."""
    name = f"killed-{way}-{turn}"
    job, log = fixture.submit(name, way, steps)
    before = time.monotonic()
    reached = 0
    while reached < steps // 2:
        if time.monotonic() - before > TIMEOUT:
            raise SystemExit(f"the training does not come to step {steps // 2}:\n{read(log)[-4000:]}")
        reached = max((int(n) for n in re.findall(r"^step (\d+),", read(log), re.MULTILINE)), default=0)
        time.sleep(0.02)
    fixture.act("kill-node", "node2")
    reached = max(int(n) for n in re.findall(r"^step (\d+),", read(log), re.MULTILINE))
    fixture.alice(f"scancel {job}")
    fixture.act("start-node", "node2")
    fixture.gone(job)
    fixture.alice('until [ "$(sinfo -h -o "%t %D")" = "idle 2" ]; do sleep 0.2; done')
    job, log = fixture.submit(name, way, steps)
    fixture.gone(job)
    fixture.clean(way)
    return {**ended(log), "reached": reached}


def measure(bench):
    """All ways in turns, then with a node that is lost."""
    store.need_store()
    cluster.need_cluster(bench)
    need(memory=6144, shm=1024, disk=(bench.folder, 512))
    try:
        run(["/usr/bin/python3", "-c", "import torch.distributed"])
    except SystemExit:
        missing("needs PyTorch: scripts/deps.sh training installs it")
    if not os.path.exists(os.path.join(os.path.dirname(bench.tarn), "libtarn_python.so")):
        missing("needs libtarn_python.so beside tarn: make build makes it")
    rounds, kills, steps = bench.choose((1, 1, 20), (3, 2, 60))
    ways = {way: words for way, (words, *_) in WAYS.items() if way in ("file", "phx") or not bench.quick}
    left, lost = {way: [] for way in ways}, {way: [] for way in bench.choose(("phx",), ("file", "phx"))}
    with store.store(bench.folder, MBIT, LATENCY) as outside:
        os.chmod(outside, 0o1777)
        with cluster.slurm(bench, 2, 4000, 1024) as (alice, shared):
            fixture = Fixture(bench, alice, shared, outside)
            for turn in range(rounds):
                for way, words in ways.items():
                    report_progress(f"{turn + 1}/{rounds} {words}")
                    left[way].append(alone(fixture, way, steps, turn))
            for turn in range(kills):
                for way, runs in lost.items():
                    report_progress(f"{turn + 1}/{kills} a node is lost, {ways[way]}")
                    runs.append(killed(fixture, way, steps, turn))
    seconds = {way: [r["seconds"] for r in runs] for way, runs in left.items()}
    costs = {way: [(a / b - 1) * 100 for a, b in zip(seconds[way], seconds["none"])] for way in ways if "none" in ways and way != "none"}
    beside = times(seconds["file"], seconds["phx"])
    more = f": {spread(costs['file'])['value']:.0f} % more than with none, in a buddy's memory {spread(costs['phx'])['value']:.0f} %" if costs else ""
    losses = {r["loss"] for runs in [*left.values(), *lost.values()] for r in runs}
    rows = [
        [words, spread(seconds[way]), spread(costs[way]) if way in costs else "", *([spread(r[key] for r in lost[way]) for key in ("reached", "step", "restart")] if way in lost else ["", "", ""])]
        for way, words in ways.items()
    ]
    return {
        "emulated": [store.emulated(MBIT, LATENCY), "Two nodes are namespaces of this machine, with a Slurm of their own; their tiers are tmpfs, the network between them is this machine's memory."],
        "differs": [
            f"A network of {WIDTH * WIDTH + 5 * WIDTH + 1:,} parameters and Adam's state, {steps} steps, one process a node.",
            "The node is lost with its processes, its memory and its tier, and comes back empty. What Slurm needs to notice and to start the next job is the same for both, and not counted.",
            "The file is read back through this machine's own cache of the store, which a job on other nodes would not have.",
        ],
        "rounds": rounds,
        "tables": [
            {
                "title": "Seconds of training; and of one whose second node was lost, where it went on",
                "columns": ["", "left alone, seconds", "more than without, %", "reached, step", "went on at step", "until it went on, s"],
                "rows": rows,
            }
        ],
        "plots": [
            {
                "title": "Training that is left alone, seconds",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "seconds"},
                "series": [{"name": words, "of": "here" if WAYS[way][1] == "phx" else "peer", "points": [["", *list(spread(seconds[way]).values())[:3]]]} for way, words in ways.items()],
            }
        ],
        "claims": [
            claim("training continues from the copy in another node's memory when a node is lost with all its data, and ends with the same loss", "in words", f"{len(losses)} loss after {steps} steps of all runs" if len(losses) == 1 else f"{len(losses)} losses", exact(len(losses) == 1 and all(r["step"] > 0 for r in lost["phx"]))),
            claim(
                "checkpoints in another node's memory cost less than files on the external store",
                "in words",
                f"a training with files takes {factors(beside, 2)} as long{more} (by the training's own clock)",
                check_bounds(beside, least=1),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
