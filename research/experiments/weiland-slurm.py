#!/usr/bin/python3
"""The ten jobs of Weiland 2018, Table 4, as jobs of a real Slurm: Slurm alone, against the same with tarn's site service in a mode."""

import statistics

from experiment import EMULATED, SIMULATED, UNCLEAR, check_bounds, claim, every, factors, main, report_progress, spread, times
from flowjobs import POLICIES, Spec, fill, jobs_of, predicted, prediction_of, simulated, size
from onslurm import BACKFILL, MBIT, NEEDS, SCHEDULER, NotMeasured, audited, machine, modes_of, name_of, need_machine, options
from table4 import FLOW, JOBS, NODES, PAPER, gantt

ABOUT = {
    "title": "Ten jobs on twenty nodes of a real Slurm, without and with regard to data",
    "source": "Weiland 2018, section 4.1, Table 4, Figures 8 and 9",
    "needs": [*NEEDS, "6 GiB of memory"],
    "minutes": {"quick": 4, "full": 20},
    "on_request": True,
}
# How much faster the workflow is to be (the paper: 490 s to 280 s); by how much an ordinary job may be put off, in the paper's seconds; and how near the prediction is to be.
FACTOR, BOUND, NEAR = 1.6, 600, 0.1
NAME = "flow"
FLOW_NAMES = [f"job{number}" for number in FLOW]


def specs_of(scale, numbers):
    """The jobs of Table 4 with these numbers, all submitted at once in this order; scaled."""
    specs = []
    for number, nodes, read, compute, write, before in JOBS:
        if number in numbers:
            times_of = [seconds * scale for seconds in (read, compute, write, read + compute + write)]
            specs.append(Spec(f"job{number}", nodes, *times_of, before=f"job{before}" if before else None, flow=NAME if number in FLOW else None))
    return specs


def once(bench, mode, scale, specs, nodes):
    """One run: its jobs' times, how many jobs the auditor says were delayed, rates of the store, Slurm's version."""
    with machine(bench, nodes, mode, BOUND * scale) as place:
        fill(place, specs)
        rates = place.rates()
        found = place.run(jobs_of(mode, specs), 1500 * scale + 300)
        delayed = None if mode == BACKFILL else place.audit(BOUND * scale)
        return found, delayed, rates, place.version()


def simulations(bench, scale, specs, nodes):
    """What the simulator's schedulers make of the same jobs, by title, with Slurm's limits and with those in seconds."""
    found = {}
    for words, options_of in (("", {}), (", limits in seconds", {"limit_of": lambda spec: spec.limit})):
        for policy, of in simulated(bench, specs, nodes, **options_of).items():
            found[f"simulated, {policy}{words}"] = in_seconds_of_the_paper(of, scale)
    return found


def predictions_of(bench, modes, scale, specs, nodes):
    """What a simulated Slurm makes of the same jobs in each mode, by title: the run with the median of the workflow's times."""
    found = {}
    for mode, made in predicted(bench, specs, nodes, modes, BOUND * scale).items():
        each = sorted((in_seconds_of_the_paper(of, scale) for of in made), key=lambda of: of["flow"])
        found[prediction_of(mode)] = each[len(each) // 2]
    return found


def in_seconds_of_the_paper(simulation, scale):
    """A workflow's time, the end of the last job, starts and Gantt boxes."""
    ends = {name: end / scale for name, (_, end) in simulation.commands.items()}
    starts = {name: begin / scale for name, (begin, _) in simulation.commands.items()}
    boxes = [(name, first, last, begin / scale, end / scale) for name, first, last, begin, end in simulation.boxes]
    return {"flow": max(ends[name] for name in FLOW_NAMES), "last": max(ends.values()), "starts": starts, "boxes": boxes}


class Runs:
    """All runs of a mode, in the paper's seconds."""

    def __init__(self, scale):
        self.scale, self.runs, self.delayed, self.reason = scale, [], [], None

    def flow(self):
        """The workflow's time in each run."""
        return [max(run[name]["left"] for name in FLOW_NAMES) / self.scale for run in self.runs]

    def last(self):
        """The end of the last job of all, in each run."""
        return [max(times_of["left"] for times_of in run.values()) / self.scale for run in self.runs]

    def starts(self, name):
        """When a job's first command ran, in each run."""
        return [run[name]["began"] / self.scale for run in self.runs]

    def part(self, name, since, until):
        """How long a part of a job's time took, in each run."""
        return [(run[name][until] - (run[name][since] if since else 0)) / self.scale for run in self.runs]

    def boxes(self):
        """Gantt boxes of the last run."""
        found = self.runs[-1].items()
        return [(name, node - 1, node, of["began"] / self.scale, of["left"] / self.scale) for name, of in found for node in of["nodes"]]


def measure_all(bench, modes, rounds, scale, specs, nodes):
    """Runs of all modes, in turns; rates of the store; Slurm's version."""
    runs, rates, version = {mode: Runs(scale) for mode in modes}, [], None
    for turn in range(rounds):
        for mode, of in runs.items():
            if of.reason is not None:
                continue
            report_progress(f"{turn + 1}/{rounds} {mode}")
            try:
                found, delayed, rate, version = once(bench, mode, scale, specs, nodes)
            except NotMeasured as why:
                of.reason = str(why)
                report_progress(of.reason)
                continue
            of.runs.append(found)
            of.delayed.append(delayed)
            rates.append(rate)
            report_progress(f"  workflow {of.flow()[-1]:.0f} s, last job {of.last()[-1]:.0f} s, of the paper; delayed by the auditor: {delayed}")
    return runs, rates, version


def tables(runs, prediction, specs):
    """Workflow and last job; starts of ordinary jobs; where the workflow's time goes."""
    measured = {mode: of for mode, of in runs.items() if of.runs}
    modes = list(measured)

    def paper(mode):
        return PAPER["unaware" if mode == BACKFILL else "aware"]

    whole = len(specs) == len(JOBS)
    first = [
        ["the workflow, 1, 7 and 9", *[spread(measured[mode].flow(), paper(mode) if whole else None) for mode in modes], *[of["flow"] for of in prediction.values()]],
        ["the last job of all", *[spread(measured[mode].last()) for mode in modes], *[of["last"] for of in prediction.values()]],
    ]
    ordinary = [spec.name for spec in specs if spec.flow is None]
    starts = [[name, *[spread(measured[mode].starts(name)) for mode in modes], *[of["starts"][name] for of in prediction.values()]] for name in ordinary]
    parts = (("until Slurm gives it nodes", None, "started"), ("from then to its first command", "started", "began"), ("its commands", "began", "left"), ("from its last command until Slurm has ended it", "left", "ended"))
    where = [[f"{name}: {words}", *[spread(measured[mode].part(name, since, until)) for mode in modes]] for name in FLOW_NAMES for words, since, until in parts]
    columns = [*[name_of(mode) for mode in modes], *prediction]
    made = [
        {"title": "Seconds of the paper, from submission to the end", "columns": ["", *columns], "rows": first},
        {"title": "Where the workflow's time goes, in seconds of the paper (Slurm's own times are whole seconds)", "columns": ["", *columns[: len(modes)]], "rows": where},
    ]
    if ordinary:
        made.insert(1, {"title": "Ordinary jobs: when their first command ran, in seconds of the paper", "columns": ["", *columns], "rows": starts})
    return made


def claims(runs, prediction, specs, version):
    """What the paper and the issue of the planner claim of each mode."""
    base, gain = runs[BACKFILL], PAPER["unaware"] / PAPER["aware"]
    of_limits = [[prediction[f"simulated, {policy}{words}"]["flow"] for policy in POLICIES.values()] for words in ("", ", limits in seconds")]
    ratios = [f"{easy / data:.2f} times" for easy, data in of_limits]
    text = "in the simulator, with this store, keeping the workflow's data on its nodes gives that gain: with Slurm's limits of whole minutes, and with limits in seconds"
    made = [claim(text, f"{gain:.2f} times", ", ".join(ratios), UNCLEAR, [SIMULATED])]
    for mode, of in runs.items():
        if mode == BACKFILL:
            continue
        words = f"jobs of a real Slurm {version}, {name_of(mode)}: "
        if not of.runs:
            made.append(claim(f"{words}the workflow is {FACTOR} times as fast as with Slurm alone", f"{gain:.2f} times", f"not measured: {of.reason}", UNCLEAR))
            continue
        faster = times(base.flow(), of.flow())
        made.append(claim(f"{words}the workflow is {FACTOR} times as fast as with Slurm alone", f"{gain:.2f} times", f"{factors(faster, 2)}", check_bounds(faster, least=FACTOR)))
        last = times(of.last(), base.last())
        made.append(claim(f"{words}the last job of all ends no later", "in the drawing", f"{factors(last, 2)} as late", check_bounds(last, most=1)))
        ordinary = [spec.name for spec in specs if spec.flow is None]
        if ordinary:
            delays = {name: statistics.median(of.starts(name)) - statistics.median(base.starts(name)) for name in ordinary}
            worst = max(delays, key=delays.get)
            # Of any two runs, one each.
            apart = {name: sorted({f([mine - other for mine in of.starts(name) for other in base.starts(name)]) for f in (min, max)}) for name in ordinary}
            here = f"at most {delays[worst]:.0f} s ({worst}), of medians; {max(map(max, apart.values())):.0f} s of any two runs"
            verdict = every(*[check_bounds(values, most=BOUND) for values in apart.values()])
            made.append(claim(f"{words}no ordinary job begins more than {BOUND} s later (of the paper, the bound)", "tarn's own", here, verdict))
            made.append(audited(words, of.delayed))
    return [*made, *predictions(runs, prediction, version)]


def predictions(runs, prediction, version):
    """How near the simulated Slurm is to the real one in each mode."""
    made = []
    for mode, of in runs.items():
        for values, key, text in ((of.flow(), "flow", "the workflow's time"), (of.last(), "last", "the end of the last job of all")):
            if values:
                near = [value / prediction[prediction_of(mode)][key] for value in values]
                words = f"jobs of a real Slurm {version}, {name_of(mode)}: {text} is within {100 * NEAR:.0f} % of the prediction"
                made.append(claim(words, "tarn's own", factors(near, 2), check_bounds(near, least=1 - NEAR, most=1 + NEAR), [EMULATED, SIMULATED]))
    return made


def measure(bench):
    """All modes in turns."""
    modes = modes_of(bench)
    scale = bench.options.scale or bench.choose(0.1, 0.2)
    rounds = bench.options.rounds or bench.choose(1, 3)
    numbers = FLOW if bench.options.only_workflow else [job[0] for job in JOBS]
    specs = specs_of(scale, numbers)
    nodes = 4 if bench.options.only_workflow else NODES
    need_machine(bench, 6144)
    prediction = predictions_of(bench, modes, scale, specs, nodes) | simulations(bench, scale, specs, nodes)
    runs, rates, version = measure_all(bench, modes, rounds, scale, specs, nodes)
    reads, writes = ([value for rate in rates for value in rate[way]] for way in (0, 1))
    return {
        "emulated": [
            f"{nodes} nodes are namespaces of this machine, with a Slurm {version} of their own ({SCHEDULER}); their tiers are tmpfs. A second of the paper takes {scale:g} s; computing is sleep.",
            f"The external store is a GlusterFS server on memory that all nodes mount, past the page cache; each node has a link of {MBIT} Mbit/s to it, as the paper's nodes do not slow each other down: "
            f"{min(reads):.2f} to {max(reads):.2f} MB/s reading and {min(writes):.2f} to {max(writes):.2f} MB/s writing, all nodes at once, measured before each run. What a node moves in a second of the paper is {size(scale) / 1e6:.2f} MB.",
        ],
        "differs": [
            "Slurm's limits are whole minutes, so at this scale most jobs have the same; the simulator beside it has these, and Table 4's to the second.",
            "The prediction is `tarn sim --site` with the same jobs at these seconds: tarn's own planner and site service in virtual time, around a simulated Slurm with the latencies of Slurm's and tarn's parts; of five runs that begin at different parts of a second, in which Slurm's loops turn once, the one with the median of the workflow's times. In the simulator's `easy` and `data`, neither takes any time, and `easy` reserves nodes for the first job in the queue only.",
            "With tarn the workflow's jobs hand their data over on the nodes by `#TARN` lines. The first one's input and the last one's result are read and written by the jobs' own nodes, as all data of ordinary jobs is: tarn reads a source, and delivers a result, through one node, which would be four times as slow on such a store.",
            "All ten are submitted by sbatch, one after the other.",
        ],
        "rounds": rounds,
        "tables": tables(runs, prediction, specs),
        "plots": [gantt(f"{name_of(mode)}, the last run", of.boxes(), FLOW_NAMES, EMULATED) for mode, of in runs.items() if of.runs]
        + [gantt(words, of["boxes"], FLOW_NAMES, SIMULATED) for words, of in prediction.items()],
        "claims": claims(runs, prediction, specs, version),
    }


def own_options(words):
    """Options of this experiment."""
    options(words)
    words.add_argument("--rounds", type=int, help="repetitions, the modes in turns (default 3, with --quick 1)")
    words.add_argument("--only-workflow", action="store_true", help="its three jobs alone, on four nodes")


if __name__ == "__main__":
    main(ABOUT, measure, own_options)
