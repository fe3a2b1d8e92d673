"""Jobs that read, compute and write, some of them workflows: as jobs of a real Slurm, alone or with tarn, and as a workload of the simulator."""

import math
import os
from typing import NamedTuple

from onslurm import BACKFILL, RATE, Job, name_of, part
from table4 import simulate

# What a job may take beyond its scaled limit, in seconds: starting takes time.
GRACE = 5
# What srun takes to run a program that does nothing: so many seconds, and so many for each node: 0.27 to 0.36 on 4 nodes, 0.56 to 0.78 on 15 (research/results.md).
SRUN, SRUN_NODE = 0.19, 0.032
# The simulator's schedulers that need no time for themselves: one like Slurm's alone, and the planner that knows data.
POLICIES = {BACKFILL: "easy", "planner": "data"}
# Slurm's loops turn once a second, and it lets running jobs end in windows of 30 s of its clock. When jobs come by that decides who is first, so each is predicted for several such times.
PHASES = (0.1, 6.3, 12.5, 18.7, 24.9)


class Spec(NamedTuple):
    """A job: nodes, seconds of reading, computing and writing at each node's rate, and seconds of its limit.

    `before` is the job whose output it reads; `at`, seconds until it comes; `flow`, its workflow.
    """

    name: str
    nodes: int
    read: float
    compute: float
    write: float
    limit: float
    before: str | None = None
    at: float = 0.0
    flow: str | None = None


def size(seconds):
    """Bytes that a node moves to or from the store in so many seconds."""
    return math.ceil(seconds * RATE)


def reader_of(spec, specs):
    """The job that reads what this one writes."""
    return next((other for other in specs if other.before == spec.name), None)


def plain(spec):
    """Its command on Slurm alone: it stages all its data itself."""
    if spec.read == 0 and spec.write == 0:
        return f"sleep {spec.compute:.3f}"
    source = f"/store/of_{spec.before}" if spec.before else f"/store/in_{spec.name}"
    return part(source, size(spec.read), spec.compute, *([f"/store/of_{spec.name}", size(spec.write)] if spec.write else []))


def local(spec, specs):
    """Lines and command of a workflow's job whose data stay on the nodes. What comes from outside and what goes out is its own affair, as on Slurm alone."""
    lines, outs, outputs = [f'name = "{spec.flow}"'], [], []
    source, reader = f"/store/in_{spec.name}", reader_of(spec, specs)
    if reader:
        # What the next job reads, and what nobody reads.
        for name, seconds in ((f"of_{spec.name}", reader.read), (f"rest_{spec.name}", spec.write - reader.read)):
            if seconds > 0:
                lines.append(f'data.{name} = {{ scatter = "p{{rank}}", size = "{size(seconds)} B" }}')
                outs.append(f'"{name}:scatter"')
                outputs += [f"$TARN_{name}", size(seconds)]
    elif spec.write:
        outputs = [f"/store/of_{spec.name}", size(spec.write)]
    if spec.before:
        lines.append(f'data.of_{spec.before}.scatter = "p{{rank}}"')
        source = f"$TARN_of_{spec.before}"
    lines.append("[[step]]")
    if spec.before:
        lines.append(f'in = ["of_{spec.before}:scatter"]')
    if outs:
        lines.append(f"out = [{', '.join(outs)}]")
    return lines, part(source, size(spec.read), spec.compute, *outputs)


def jobs_of(mode, specs):
    """The same as jobs of Slurm."""
    jobs = []
    for spec in specs:
        lines, body = ([], plain(spec)) if mode == BACKFILL or spec.flow is None else local(spec, specs)
        jobs.append(Job(spec.name, spec.nodes, minutes(spec), body, at=spec.at, after=spec.before, lines=lines, flow=spec.flow))
    return jobs


def fill(place, specs):
    """Makes on the store what jobs read, and folders for what they write."""
    place.fill([(f"in_{spec.name}", spec.nodes, size(spec.read)) for spec in specs if spec.read and not spec.before])
    place.fill([(f"of_{spec.name}", 0, 0) for spec in specs if spec.write])


def workload(way, specs, limit_of, later=None):
    """The same as a workload of the simulator, in TOML; `limit_of` gives a job's limit in seconds.

    With `later` it is that of a simulated Slurm: all jobs come so many seconds later, and srun takes time.

    With the planner the workflows' own data are items; all other reading and writing is part of a job's computing there.
    """
    data, jobs = [], []
    for spec in specs:
        reader = reader_of(spec, specs)
        read, compute, write = spec.read, spec.compute, spec.write
        if later is not None and read + write > 0:
            compute += SRUN + SRUN_NODE * spec.nodes
        if reader:
            # Nobody reads the rest: it is written outside on Slurm alone, and costs nothing on the nodes.
            compute += spec.write - reader.read if way == BACKFILL else 0
            write = reader.read
        if way != BACKFILL:
            compute += (0 if spec.before else read) + (0 if reader else write)
            read, write = read if spec.before else 0, write if reader else 0
        ins = [f"of-{spec.before}" if spec.before else f"in-{spec.name}"] if read else []
        outs = [f"of-{spec.name}"] if write else []
        if ins and not spec.before:
            data.append(f'[data.in-{spec.name}]\nsize = "{size(read) * spec.nodes} B"\noutside = true\n')
        if outs:
            data.append(f'[data.of-{spec.name}]\nsize = "{size(write) * spec.nodes} B"\n' + ("" if reader else "keep = true\n"))
        keys = [f'name = "{spec.name}"', f"nodes = {spec.nodes}", f'compute = "{compute:.6f}s"', f'limit = "{limit_of(spec):.6f}s"', f"in = {text_of(ins)}", f"out = {text_of(outs)}"]
        if spec.flow:
            keys.append(f'workflow = "{spec.flow}"')
        arrives = spec.at + (later or 0)
        if arrives:
            keys.append(f'arrives = "{arrives:.6f}s"')
        jobs.append("[[job]]\n" + "\n".join(keys) + "\n")
    return "".join(data) + "".join(jobs)


def text_of(names):
    """A list of TOML."""
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def minutes(spec):
    """The limit that Slurm knows: whole minutes."""
    return math.ceil((spec.limit + GRACE) / 60)


def cluster_file(bench, nodes):
    """The machine of the simulator: nodes with such links to the store."""
    path = os.path.join(bench.folder, "cluster.toml")
    with open(path, "w", encoding="ascii") as file:
        file.write(f'[external]\nclient-read = "{RATE:.0f} B/s"\nclient-write = "{RATE:.0f} B/s"\n[[island]]\nnodes = {nodes}\ncores = 8\n[[island.tier]]\nname = "scm"\ncapacity = "1 GB"\n')
    return path


def simulated(bench, specs, nodes, limit_of=lambda spec: 60 * minutes(spec)):
    """Simulations of the same jobs by each policy of `POLICIES`, where nothing but the jobs takes time; with Slurm's limits, or others."""
    machine, found = cluster_file(bench, nodes), {}
    for way, policy in POLICIES.items():
        [found[policy]] = simulate(bench, machine, workload_file(bench, way, workload(way, specs, limit_of)), [policy])
    return found


def predicted(bench, specs, nodes, modes, bound):
    """Of each mode, Slurm alone included, what a simulated Slurm makes of the same jobs: a simulation for each of `PHASES`; `bound` seconds is the site's bound for ordinary jobs."""
    machine, found = cluster_file(bench, nodes), {mode: [] for mode in modes}
    for phase in PHASES:
        for way in POLICIES:
            on_slurm = [mode for mode in modes if (mode == BACKFILL) == (way == BACKFILL)]
            if on_slurm:
                path = workload_file(bench, way, workload(way, specs, lambda spec: 60 * minutes(spec), phase))
                # The planner of the site has the policy `data` that is named.
                made = simulate(bench, machine, path, [f"data:bound={math.ceil(bound)}s"], ["alone" if mode == BACKFILL else mode for mode in on_slurm])
                for mode, of in zip(on_slurm, made[1:]):
                    found[mode].append(of)
    return found


def workload_file(bench, way, text):
    """The path of a file with this text."""
    path = os.path.join(bench.folder, f"{way}.toml")
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
    return path


def prediction_of(mode):
    """The column of what a simulated Slurm makes of a mode."""
    return f"simulated: {name_of(mode)}"
