#!/usr/bin/python3
"""The ten jobs of Weiland 2018, Table 4, as jobs of a real Slurm: Slurm alone, against the same with tarn's site service in a mode."""

import math
import os
import statistics

from experiment import EMULATED, SIMULATED, UNCLEAR, check_bounds, claim, every, factors, main, report_progress, spread, times
from onslurm import BACKFILL, GRACE, MBIT, NEEDS, RATE, SCHEDULER, Job, NotMeasured, machine, modes_of, need_machine, options, part
from table4 import FLOW, JOBS, NODES, PAPER, gantt, simulate

ABOUT = {
    "title": "Ten jobs on twenty nodes of a real Slurm, without and with regard to data",
    "source": "Weiland 2018, section 4.1, Table 4, Figures 8 and 9",
    "needs": [*NEEDS, "6 GiB of memory"],
    "minutes": {"quick": 4, "full": 20},
    "on_request": True,
}
# How much faster the workflow is to be (the paper: 490 s to 280 s), and by how much an ordinary job may be put off, in the paper's seconds.
FACTOR, BOUND = 1.6, 600
NAME = "flow"


def size(seconds, scale):
    """Bytes that a node moves to or from the store in so many of the paper's seconds."""
    return seconds * scale * RATE


def limit(job, scale):
    """What its user asks for: Table 4's run time, scaled. Slurm makes whole minutes of it."""
    _, _, read, compute, write, _ = job
    return (read + compute + write) * scale


def bodies(job, scale):
    """What a job of Table 4 runs on Slurm alone, and with its data on the nodes: its lines, and a command."""
    number, _, read, compute, write, before = job
    source = f"/store/of_{before}" if before else f"/store/in_{number}"
    plain = [], part(source, size(read, scale), compute * scale, *([f"/store/of_{number}", size(write, scale)] if write else []))
    read_next = next((r for _, _, r, _, _, b in JOBS if b == number), None)
    lines, outs, outputs = [f'name = "{NAME}"'], [], []
    if before:
        lines.append(f'data.of_{before}.scatter = "p{{rank}}"')
    # What the next job reads, and what nobody reads.
    made = {f"of_{number}": read_next, f"rest_{number}": write - read_next} if read_next else {}
    for name, seconds in made.items():
        if seconds > 0:
            lines.append(f'data.{name} = {{ scatter = "p{{rank}}", size = "{math.ceil(size(seconds, scale))} B" }}')
            outs.append(f'"{name}:scatter"')
            outputs += [f"$TARN_{name}", size(seconds, scale)]
    if write and not made:
        outputs = [f"/store/of_{number}", size(write, scale)]
    lines.append("[[step]]")
    if before:
        lines.append(f'in = ["of_{before}:scatter"]')
        source = f"$TARN_of_{before}"
    if outs:
        lines.append(f"out = [{', '.join(outs)}]")
    return plain, (lines, part(source, size(read, scale), compute * scale, *outputs))


def jobs_of(mode, scale, chosen):
    """The jobs, all submitted at once in the order of their numbers."""
    jobs = []
    for job in chosen:
        number, nodes, before = job[0], job[1], job[5]
        plain, local = bodies(job, scale)
        lines, body = plain if mode == BACKFILL or number not in FLOW else local
        jobs.append(Job(f"job{number}", nodes, limit(job, scale), body, after=f"job{before}" if before else None, lines=lines))
    return jobs


def once(bench, mode, scale, chosen, nodes):
    """One run: its jobs' times, rates of the store, Slurm's version."""
    with machine(bench, nodes, mode, BOUND * scale) as place:
        place.fill([(f"in_{number}", n, size(read, scale)) for number, n, read, _, _, before in chosen if read and not before])
        place.fill([(f"of_{number}", 0, 0) for number, *_ in chosen])
        rates = place.rates()
        found = place.run(jobs_of(mode, scale, chosen), 1500 * scale + 300)
        return found, rates, place.version()


def simulated(bench, scale, chosen, nodes):
    """What the simulator makes of the same jobs: workflow's time, end of the last job, and starts, for Slurm alone (`easy`) and the planner (`data`)."""
    path = os.path.join(bench.folder, "cluster.toml")
    with open(path, "w", encoding="ascii") as file:
        file.write(f'[external]\nclient-read = "{RATE:.0f} B/s"\nclient-write = "{RATE:.0f} B/s"\n[[island]]\nnodes = {nodes}\ncores = 8\n[[island.tier]]\nname = "scm"\ncapacity = "1 GB"\n')
    found = {}
    for way, policy in ((BACKFILL, "easy"), ("planner", "data")):
        data, jobs = [], []
        for number, n, read, compute, write, before in chosen:
            is_local = way != BACKFILL and number in FLOW
            follows = any(job[5] == number for job in chosen)
            ins, outs = [], []
            if is_local:
                # Its own input and its result are read and written by itself, as all data of the ordinary jobs.
                compute += (0 if before else read) + (0 if follows else write)
                ins, outs = [f"of-{before}"] * bool(before), [f"of-{number}"] * follows
            elif way != BACKFILL:
                compute += read + write
            else:
                ins = [f"of-{before}" if before else f"in-{number}"] * (read > 0)
                outs = [f"of-{number}"] * (write > 0)
            read_next = next((r for _, _, r, _, _, b in chosen if b == number), None)
            if ins and not before:
                data.append(f'[data.in-{number}]\nsize = "{size(read, scale) * n:.0f} B"\noutside = true\n')
            if outs:
                data.append(f'[data.of-{number}]\nsize = "{size(read_next or write, scale) * n:.0f} B"\n' + ("" if follows else "keep = true\n"))
            if not is_local and read_next and write > read_next and way == BACKFILL:
                compute += write - read_next
            minutes = math.ceil((limit((0, 0, *job_times(chosen, number), None), scale) + GRACE) / 60)
            flow = f'workflow = "{NAME}"\n' if number in FLOW else ""
            jobs.append(f'[[job]]\nname = "{number}"\n{flow}nodes = {n}\ncompute = "{compute * scale:.3f}s"\nlimit = "{minutes}m"\nin = {list_of(ins)}\nout = {list_of(outs)}\n')
        workload = os.path.join(bench.folder, f"{way}.toml")
        with open(workload, "w", encoding="ascii") as file:
            file.write("".join(data) + "".join(jobs))
        [(summary, boxes)] = simulate(bench, path, workload, [policy])
        starts = {name: begin / scale for name, _, _, begin, _ in boxes}
        found[way] = {"flow": summary["workflows"][NAME]["time_s"] / scale, "last": max(box[4] for box in boxes) / scale, "starts": starts, "boxes": [(*box[:3], box[3] / scale, box[4] / scale) for box in boxes]}
    return found


def job_times(chosen, number):
    """Seconds of reading, computing and writing of a job."""
    return next(job[2:5] for job in chosen if job[0] == number)


def list_of(names):
    """A list of TOML."""
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


class Runs:
    """All runs of a mode, in the paper's seconds."""

    def __init__(self, scale):
        self.scale, self.runs, self.reason = scale, [], None

    def flow(self):
        """The workflow's time in each run."""
        return [max(times_of["left"] for name, times_of in run.items() if int(name[3:]) in FLOW) / self.scale for run in self.runs]

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
        return [(name[3:], node - 1, node, of["began"] / self.scale, of["left"] / self.scale) for name, of in found for node in of["nodes"]]


def measure_all(bench, modes, rounds, scale, chosen, nodes):
    """Runs of all modes, in turns; rates of the store; Slurm's version."""
    runs, rates, version = {mode: Runs(scale) for mode in modes}, [], None
    for turn in range(rounds):
        for mode, of in runs.items():
            if of.reason is not None:
                continue
            report_progress(f"{turn + 1}/{rounds} {mode}")
            try:
                found, rate, version = once(bench, mode, scale, chosen, nodes)
            except NotMeasured as why:
                of.reason = str(why)
                report_progress(of.reason)
                continue
            of.runs.append(found)
            rates.append(rate)
            report_progress(f"  workflow {of.flow()[-1]:.0f} s, last job {of.last()[-1]:.0f} s, of the paper")
    return runs, rates, version


def tables(runs, prediction, chosen):
    """Workflow and last job; starts of ordinary jobs; where the workflow's time goes."""
    measured = {mode: of for mode, of in runs.items() if of.runs}
    modes = list(measured)

    def paper(mode):
        return PAPER["unaware" if mode == BACKFILL else "aware"]

    whole = len(chosen) == len(JOBS)
    first = [
        ["the workflow, 1, 7 and 9", *[spread(measured[mode].flow(), paper(mode) if whole else None) for mode in modes], *[of["flow"] for of in prediction.values()]],
        ["the last job of all", *[spread(measured[mode].last()) for mode in modes], *[of["last"] for of in prediction.values()]],
    ]
    ordinary = [job[0] for job in chosen if job[0] not in FLOW]
    starts = [[f"Job {n}", *[spread(measured[mode].starts(f"job{n}")) for mode in modes], *[of["starts"][str(n)] for of in prediction.values()]] for n in ordinary]
    parts = (("until Slurm gives it nodes", None, "started"), ("from then to its first command", "started", "began"), ("its commands", "began", "left"), ("from its last command until Slurm has ended it", "left", "ended"))
    where = [[f"Job {n}: {words}", *[spread(measured[mode].part(f"job{n}", since, until)) for mode in modes]] for n in FLOW for words, since, until in parts]
    columns = [*[name_of(mode) for mode in modes], "simulated, easy", "simulated, data"]
    made = [
        {"title": "Seconds of the paper, from submission to the end", "columns": ["", *columns], "rows": first},
        {"title": "Where the workflow's time goes, in seconds of the paper (Slurm's own times are whole seconds)", "columns": ["", *columns[: len(modes)]], "rows": where},
    ]
    if ordinary:
        made.insert(1, {"title": "Ordinary jobs: when their first command ran, in seconds of the paper", "columns": ["", *columns], "rows": starts})
    return made


def name_of(mode):
    """A mode, as a text."""
    return "Slurm alone" if mode == BACKFILL else f"tarn, {mode}"


def claims(runs, prediction, chosen):
    """What the paper and the issue of the planner claim of each mode."""
    base, gain = runs[BACKFILL], PAPER["unaware"] / PAPER["aware"]
    made = [
        claim("in the simulator, with these limits and this store, keeping the workflow's data on its nodes gives that gain", f"{gain:.2f} times", f"{prediction[BACKFILL]['flow'] / prediction['planner']['flow']:.2f} times", UNCLEAR, [SIMULATED])
    ]
    for mode, of in runs.items():
        if mode == BACKFILL:
            continue
        words = f"jobs of a real Slurm, {name_of(mode)}: "
        if not of.runs:
            made.append(claim(f"{words}the workflow is {FACTOR} times as fast as with Slurm alone", f"{gain:.2f} times", f"not measured: {of.reason}", UNCLEAR))
            continue
        faster = times(base.flow(), of.flow())
        made.append(claim(f"{words}the workflow is {FACTOR} times as fast as with Slurm alone", f"{gain:.2f} times", f"{factors(faster, 2)}", check_bounds(faster, least=FACTOR)))
        last = times(of.last(), base.last())
        made.append(claim(f"{words}the last job of all ends no later", "in the drawing", f"{factors(last, 2)} as late", check_bounds(last, most=1)))
        ordinary = [f"job{job[0]}" for job in chosen if job[0] not in FLOW]
        if ordinary:
            delays = {name: statistics.median(of.starts(name)) - statistics.median(base.starts(name)) for name in ordinary}
            worst = max(delays, key=delays.get)
            # Of any two runs, one each.
            apart = {name: sorted({f([mine - other for mine in of.starts(name) for other in base.starts(name)]) for f in (min, max)}) for name in ordinary}
            here = f"at most {delays[worst]:.0f} s ({worst.replace('job', 'Job ')}), of medians; {max(map(max, apart.values())):.0f} s of any two runs"
            verdict = every(*[check_bounds(values, most=BOUND) for values in apart.values()])
            made.append(claim(f"{words}no ordinary job begins more than {BOUND} s later (of the paper, the bound)", "tarn's own", here, verdict))
    return made


def measure(bench):
    """All modes in turns."""
    modes = modes_of(bench)
    scale = bench.options.scale or bench.choose(0.1, 0.2)
    rounds = bench.options.rounds or bench.choose(1, 3)
    numbers = FLOW if bench.options.only_workflow else [job[0] for job in JOBS]
    chosen = [job for job in JOBS if job[0] in numbers]
    nodes = 4 if bench.options.only_workflow else NODES
    need_machine(bench, 6144)
    prediction = simulated(bench, scale, chosen, nodes)
    runs, rates, version = measure_all(bench, modes, rounds, scale, chosen, nodes)
    reads, writes = ([value for rate in rates for value in rate[way]] for way in (0, 1))
    return {
        "emulated": [
            f"{nodes} nodes are namespaces of this machine, with a Slurm {version} of their own ({SCHEDULER}); their tiers are tmpfs. A second of the paper takes {scale:g} s; computing is sleep.",
            f"The external store is a GlusterFS server on memory that all nodes mount, past the page cache; each node has a link of {MBIT} Mbit/s to it, as the paper's nodes do not slow each other down: "
            f"{min(reads):.2f} to {max(reads):.2f} MB/s reading and {min(writes):.2f} to {max(writes):.2f} MB/s writing, all nodes at once, measured before each run. What a node moves in a second of the paper is {size(1, scale) / 1e6:.2f} MB.",
        ],
        "differs": [
            "Slurm's limits are whole minutes, so at this scale most jobs have the same.",
            "With tarn the workflow's jobs hand their data over on the nodes by `#TARN` lines. The first one's input and the last one's result are read and written by the jobs' own nodes, as all data of ordinary jobs is: tarn reads a source, and delivers a result, through one node, which would be four times as slow on such a store.",
            "All ten are submitted by sbatch, one after the other.",
        ],
        "rounds": rounds,
        "tables": tables(runs, prediction, chosen),
        "plots": [gantt(f"{name_of(mode)}, the last run", of.boxes(), [str(n) for n in FLOW], EMULATED) for mode, of in runs.items() if of.runs]
        + [gantt(f"simulated, {policy}", prediction[way]["boxes"], [str(n) for n in FLOW], SIMULATED) for way, policy in ((BACKFILL, "easy"), ("planner", "data"))],
        "claims": claims(runs, prediction, chosen),
    }


def own_options(words):
    """Options of this experiment."""
    options(words)
    words.add_argument("--only-workflow", action="store_true", help="its three jobs alone, on four nodes")


if __name__ == "__main__":
    main(ABOUT, measure, own_options)
