#!/usr/bin/python3
"""A day of a real trace with data workflows among its jobs, on a real Slurm: Slurm alone, against the same with tarn's site service in a mode."""

import math
import os
import random
import re
import statistics
import sys

from experiment import EMULATED, SIMULATED, TOP, UNCLEAR, check_bounds, claim, factors, main, report_progress, spread
from flowjobs import PHASES, POLICIES, Spec, fill, jobs_of, predicted, prediction_of, simulated
from onslurm import BACKFILL, MBIT, NEEDS, SCHEDULER, NotMeasured, audited, machine, modes_of, name_of, need_machine, options
from table4 import FLOW, JOBS

ABOUT = {
    "title": "A day of 200 jobs and 20 workflows on a real Slurm",
    "source": "Weiland 2018, sections 2.1 and 3.1 (a scheduler that knows workflows and data, beside other jobs)",
    "needs": [*NEEDS, "10 GiB of memory"],
    "minutes": {"quick": 18, "full": 140},
    "on_request": True,
}
TRACE = os.path.join(TOP, "research", "experiments", "kth-sp2-days.swf")
# The trace's machine has so many nodes, and this one.
ALL_NODES, NODES = 100, 16
# Jobs and workflows of a day; the number of each day's first job in the trace: a day is a seed.
JOBS_A_DAY, FLOWS = 200, 20
DAYS = (18100, 18880, 19340)
# A job's run time and limit are cut at so many seconds of the trace, so that a day ends.
LONGEST, LONGEST_LIMIT = 7200, 14400
# A workflow's jobs take so many times what those of Table 4 take, and these nodes.
STRETCH, FLOW_NODES = (4, 12), (1, 2, 4)
# A bounded slow-down counts run times as so many seconds at least, as the simulator's.
SHORT = 10
# What is aimed at: workflows' mean time, and ordinary jobs' mean bounded slow-down, of that of Slurm alone; and how near the prediction is to be.
AIM_FLOWS, AIM_ORDINARY, NEAR = 0.8, 1.02, 0.1
# The planner that knows data, where nothing but the jobs takes time.
IDEAL = POLICIES["planner"]
FIGURES = {"flows": "workflows: mean time to solution, s", "ordinary": "ordinary jobs: mean bounded slow-down", "use": "share of the nodes in use"}
# What a workflow's time consists of, its three jobs together; when it got nodes is Slurm's, in whole seconds.
PARTS = {"queue": "until Slurm gives them nodes", "gate": "from then to their first commands", "commands": "their commands"}


def trace(day, count, scale, nodes):
    """The first jobs of a day, and how long it lasts: from its first submission to its last."""
    with open(TRACE, encoding="ascii") as file:
        lines = [line.split() for line in file if not line.startswith(";")]
    first = next(at for at, line in enumerate(lines) if int(line[0]) == DAYS[day])
    lines, specs = lines[first : first + count], []
    began = float(lines[0][1])
    for fields in lines:
        wants, ran, asked = float(fields[7]), float(fields[3]), float(fields[8])
        size = min(nodes, max(1, round((wants if wants > 0 else float(fields[4])) * NODES / ALL_NODES)))
        ran = min(ran, LONGEST)
        limit = max(ran, min(asked, LONGEST_LIMIT))
        specs.append(Spec(f"t{fields[0]}", size, 0, ran * scale, 0, limit * scale, at=(float(fields[1]) - began) * scale))
    return specs, specs[-1].at


def flows(day, count, span, scale, nodes):
    """Workflows, each of three jobs as in Table 4, that come at random meanwhile; their users ask for twice the time."""
    dice, specs = random.Random(day), []
    for number in range(count):
        at, stretch, size = dice.uniform(0, span), dice.uniform(*STRETCH) * scale, min(nodes, dice.choice(FLOW_NODES))
        for job, _, read, compute, write, before in JOBS:
            if job in FLOW:
                seconds = [value * stretch for value in (read, compute, write)]
                specs.append(Spec(f"w{number}_{job}", size, *seconds, 2 * sum(seconds), before=f"w{number}_{before}" if before else None, at=at, flow=f"w{number}"))
    return specs


def day_of(day, options_of, scale):
    """All jobs of a day, in the order in which they come."""
    ordinary, span = trace(day, options_of.jobs, scale, options_of.nodes)
    return sorted(ordinary + flows(day, options_of.workflows, span, scale, options_of.nodes), key=lambda spec: spec.at), span


def slow_down(wait, ran):
    """Bounded, at least 1."""
    return max(1.0, (wait + ran) / max(ran, SHORT))


def figures(specs, times_of, nodes):
    """What is compared, of one run: from when each job came, `started` (has nodes), `began` (its first command) and `left`, in seconds."""
    solved, parts = {}, {key: [] for key in PARTS}
    for spec in specs:
        if spec.flow:
            mine = times_of[spec.name]
            solved[spec.flow] = max(solved.get(spec.flow, 0), mine["left"] - spec.at)
            ready = times_of[spec.before]["left"] if spec.before else spec.at
            for key, seconds in (("queue", mine["started"] - ready), ("gate", mine["began"] - mine["started"]), ("commands", mine["left"] - mine["began"])):
                parts[key].append(seconds)
    slow = [slow_down(times_of[spec.name]["began"] - spec.at, times_of[spec.name]["left"] - times_of[spec.name]["began"]) for spec in specs if not spec.flow]
    held = sum(spec.nodes * (times_of[spec.name]["left"] - times_of[spec.name]["began"]) for spec in specs)
    whole = {"flows": statistics.mean(solved.values()), "ordinary": statistics.mean(slow), "use": held / nodes / max(of["left"] for of in times_of.values())}
    return whole | {key: sum(seconds) / len(solved) for key, seconds in parts.items()}


def once(bench, mode, specs, span):
    """One day in one mode: its figures, how many jobs the auditor says were delayed, rates of the store, Slurm's version."""
    nodes = bench.options.nodes
    with machine(bench, nodes, mode, bench.options.bound) as place:
        fill(place, specs)
        rates = place.rates()
        # When a job came is when it was submitted, which is a little after it should have been.
        found = place.run(jobs_of(mode, specs), 3 * span + 600, together=True)
        moved = [spec._replace(at=found[spec.name]["submitted"]) for spec in specs]
        delayed = None if mode == BACKFILL else place.audit(bench.options.bound)
        return figures(moved, found, nodes), delayed, rates, place.version()


def prediction_of_day(bench, modes, specs, nodes):
    """The same figures, as a simulated Slurm has them in each mode, means over `PHASES`; and those of `IDEAL`."""
    found = {}
    for mode, made in predicted(bench, specs, nodes, modes, bench.options.bound).items():
        each = [figures_of(specs, of, nodes, lambda at, phase=phase: math.floor(at + phase) - phase) for phase, of in zip(PHASES, made)]
        found[mode] = {key: statistics.mean(of[key] for of in each) for key in each[0]}
    found[IDEAL] = figures_of(specs, simulated(bench, specs, nodes)[IDEAL], nodes, float)
    return found


def figures_of(specs, simulation, nodes, clock):
    """The same figures of a simulation; `clock` is that by which jobs got their nodes: Slurm's has whole seconds."""
    times_of = {}
    for name, _, _, begin, _ in simulation.boxes:
        began, left = simulation.commands[name]
        times_of[name] = {"started": clock(begin), "began": began, "left": left}
    return figures(specs, times_of, nodes)


def measure_all(bench, modes, days, scale):
    """Figures of all days by mode, and those predicted; why modes were not measured; delayed jobs; rates of the store; Slurm's version; how long a day lasts."""
    runs, prediction, reasons, rates, version, spans = {mode: [] for mode in modes}, [], {}, [], None, []
    delayed = {mode: [] for mode in modes}
    for day in days:
        specs, span = day_of(day, bench.options, scale)
        spans.append(span)
        prediction.append(prediction_of_day(bench, modes, specs, bench.options.nodes))
        for mode in modes:
            if mode in reasons:
                continue
            report_progress(f"day {day + 1} of {len(DAYS)}, {mode}")
            try:
                found, late, rate, version = once(bench, mode, specs, span)
            except NotMeasured as why:
                reasons[mode] = str(why)
                report_progress(reasons[mode])
                continue
            runs[mode].append(found)
            delayed[mode].append(late)
            rates.append(rate)
            report_progress("  " + ", ".join(f"{words} {found[key]:.2f}" for key, words in FIGURES.items()))
    return runs, prediction, reasons, delayed, rates, version, spans


def ratios(runs, mode, key):
    """Of each day, a figure of a mode to that of Slurm alone."""
    return [mine[key] / other[key] for mine, other in zip(runs[mode], runs[BACKFILL])]


def columns_of(modes):
    """Modes as measured and as predicted, and the ideal."""
    return [*[name_of(mode) for mode in modes], *[prediction_of(mode) for mode in modes], f"simulated, {IDEAL}"]


def tables(runs, prediction, days):
    """The figures, and the ratios to Slurm alone, day by day."""
    modes = [mode for mode in runs if runs[mode]]
    ways = [*modes, IDEAL]
    columns = ["", *columns_of(modes)]

    def whole_of(key):
        """A figure of all days, of each mode and as predicted."""
        return [*[spread([run[key] for run in runs[mode]]) for mode in modes], *[spread([of[way][key] for of in prediction]) for way in ways]]

    whole = [[words, *whole_of(key)] for key, words in FIGURES.items()]
    where = [[f"workflows, mean: {words}", *whole_of(key)] for key, words in PARTS.items()]
    others = [mode for mode in modes if mode != BACKFILL]
    each = [
        [f"day {day + 1}: {words}", *[ratios(runs, mode, key)[at] for mode in others], *[prediction[at][way][key] / prediction[at][BACKFILL][key] for way in (*others, IDEAL)]]
        for at, day in enumerate(days)
        for key, words in FIGURES.items()
    ]
    return [
        {"title": "A day: medians of all days, with the least and the greatest", "columns": columns, "rows": whole},
        {"title": "Where the workflows' time goes, in seconds, the three jobs of one together", "columns": columns, "rows": where},
        {"title": "Day by day, of that of Slurm alone", "columns": ["", *columns_of(others)], "rows": each},
    ]


def claims(runs, prediction, reasons, delayed, version):
    """What is aimed at, of each mode."""
    made = []
    for mode in runs:
        if mode == BACKFILL:
            continue
        words = f"a mixed day of a real Slurm {version}, {name_of(mode)}: "
        texts = (
            ("flows", f"workflows' mean time to solution is at most {AIM_FLOWS} of that of Slurm alone", AIM_FLOWS),
            ("ordinary", f"ordinary jobs' mean bounded slow-down is at most {AIM_ORDINARY} of that of Slurm alone", AIM_ORDINARY),
        )
        for key, text, aim in texts:
            if mode in reasons:
                made.append(claim(words + text, "tarn's own", f"not measured: {reasons[mode]}", UNCLEAR))
                continue
            of = ratios(runs, mode, key)
            made.append(claim(words + text, "tarn's own", factors(of, 2), check_bounds(of, most=aim)))
        if mode not in reasons:
            made.append(audited(words, delayed[mode]))
    return [*made, *predictions(runs, prediction, version)]


def predictions(runs, prediction, version):
    """How near the simulated Slurm is to the real one in each mode."""
    made = []
    for mode in runs:
        for key, text in (("flows", "workflows' mean time to solution"), ("ordinary", "ordinary jobs' mean bounded slow-down")):
            if runs[mode]:
                near = [mine[key] / of[mode][key] for mine, of in zip(runs[mode], prediction)]
                words = f"a mixed day of a real Slurm {version}, {name_of(mode)}: {text} is within {100 * NEAR:.0f} % of the prediction"
                made.append(claim(words, "tarn's own", factors(near, 2), check_bounds(near, least=1 - NEAR, most=1 + NEAR), [EMULATED, SIMULATED]))
    return made


def days_of(bench):
    """The days that were asked for, counted from 0."""
    text = bench.options.days or bench.choose("1", ",".join(str(day + 1) for day in range(len(DAYS))))
    if not re.fullmatch(rf"[1-{len(DAYS)}](,[1-{len(DAYS)}])*", text):
        sys.exit(f"--days {text}: give numbers from 1 to {len(DAYS)}, with commas")
    return [int(day) - 1 for day in text.split(",")]


def measure(bench):
    """All days, the modes in turns."""
    modes = modes_of(bench)
    scale = bench.options.scale or bench.choose(0.004, 0.01)
    days = days_of(bench)
    need_machine(bench, 10240)
    runs, prediction, reasons, delayed, rates, version, spans = measure_all(bench, modes, days, scale)
    reads, writes = ([value for rate in rates for value in rate[way]] for way in (0, 1))
    options_of = bench.options
    return {
        "emulated": [
            f"{options_of.nodes} nodes are namespaces of this machine, with a Slurm {version} of their own ({SCHEDULER}); their tiers are tmpfs. A second of the trace takes {scale:g} s, so a day {min(spans) / 60:.1f} to {max(spans) / 60:.1f} min; jobs sleep for as long as they ran.",
            f"The external store is a GlusterFS server on memory that all nodes mount, past the page cache; each node has a link of {MBIT} Mbit/s to it: {min(reads):.2f} to {max(reads):.2f} MB/s reading and {min(writes):.2f} to {max(writes):.2f} MB/s writing, all nodes at once, measured before each run.",
        ],
        "differs": [
            f"{options_of.jobs} jobs that follow each other in the log of KTH's SP2 (Parallel Workloads Archive; {ALL_NODES} nodes, here {options_of.nodes}, so each job has {NODES / ALL_NODES:g} of its nodes, one at least), run times cut at {LONGEST / 3600:g} h and limits at {LONGEST_LIMIT / 3600:g} h of the trace. They move no data. Each day is another one of the log.",
            f"{options_of.workflows} workflows are made up: the three of Table 4 of Weiland 2018 on 1, 2 or 4 nodes, {STRETCH[0]} to {STRETCH[1]} times as long, at random times; nearly half of their time on Slurm alone is reading and writing. Their users ask for twice the time.",
            f"Bounded slow-downs count run times as {SHORT} s at least, of the time here. Waits have Slurm's own latency, which is long beside scaled times. Slurm's limits are whole minutes.",
            "The prediction is `tarn sim --site` with the same jobs at these seconds and Slurm's limits: tarn's own planner and site service in virtual time, around a simulated Slurm with the latencies of Slurm's and tarn's parts; means over days that begin at five parts of a second, as Slurm's loops turn once a second. In the simulator's `data` beside it, neither Slurm nor tarn takes any time.",
        ],
        "rounds": len(days),
        "tables": tables(runs, prediction, days),
        "plots": [],
        "claims": claims(runs, prediction, reasons, delayed, version),
    }


def own_options(words):
    """Options of this experiment."""
    options(words)
    words.add_argument("--days", help=f"which days of the log, with commas (default all {len(DAYS)}, with --quick the first)")
    words.add_argument("--nodes", type=int, default=NODES, help=f"nodes (default {NODES})")
    words.add_argument("--jobs", type=int, default=JOBS_A_DAY, help=f"jobs of a day (default and most {JOBS_A_DAY})")
    words.add_argument("--workflows", type=int, default=FLOWS, help=f"workflows among them (default {FLOWS})")
    words.add_argument("--bound", type=float, default=60, help="the bound for ordinary jobs in seconds, for a mode that has one (default 60)")


if __name__ == "__main__":
    main(ABOUT, measure, own_options)
