#!/usr/bin/python3
"""A simulation's output analysed by xarray and dask: where it lies on the nodes, or over an external store."""

import filecmp
import glob
import os
import re
import shutil
import time

from experiment import TOP, check_bounds, claim, every, exact, factors, main, missing, need, run, report_progress, spread, times
from store import NEEDS, emulated, fresh, need_store, store

ABOUT = {
    "title": "Application: xarray and dask on a simulation's output, where it lies",
    "source": "Jackson 2019, sections 1 and 2 (simulation that feeds data analysis); Weiland 2018, section 1",
    "needs": [NEEDS, "xarray, dask and zarr (scripts/deps.sh analysis)", "2 GiB of memory"],
    "minutes": {"quick": 0.9, "full": 4.6},
}
MBIT, LATENCY = 800, 300
NODES = 2
EXAMPLE = os.path.join(TOP, "examples", "analysis")
WAYS = {"plain": "a plain shell, all on the store", "local": "a plain shell on one tmpfs, statistics on the store", "through": "tarn, stage-through", "data": "tarn, data"}


def workflow(bench, outside, frames):
    """The example, whose statistics go to the store, as does what stage-through brings there."""
    work = os.path.join(bench.folder, "analysis")
    shutil.copytree(EXAMPLE, work)
    path = os.path.join(work, "workflow.toml")
    with open(path, encoding="utf-8") as file:
        text = re.sub(r'FRAMES = "\d+"', f'FRAMES = "{frames}"', file.read())
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'external = "{outside}/between"\n' + text.replace('dest = "result"', f'dest = "{outside}/result"'))
    return path


def once(bench, path, outside, way, turn, frames):
    """Seconds until the statistics are on the store, and their folder."""
    mine = os.path.join(outside, f"{way}{turn}")
    work = os.path.dirname(path)
    shutil.rmtree(os.path.join(work, ".tarn"), ignore_errors=True)
    for name in ("result", "between"):
        # One of its own each: what is there already need not be written.
        if os.path.exists(f"{outside}/{name}"):
            os.rename(f"{outside}/{name}", f"{mine}-{name}-before")
    os.makedirs(f"{outside}/between")
    fresh(outside)
    environment = {**os.environ, "FRAMES": str(frames)}
    result = f"{mine}/result"
    began = time.monotonic()
    if way == "plain":
        run([f"{work}/plain.sh", mine, result], env=environment)
    elif way == "local":
        tmpfs = f"/dev/shm/tarn-analysis-{os.getpid()}"
        try:
            run([f"{work}/plain.sh", tmpfs, f"{tmpfs}/result"], env=environment)
            os.mkdir(mine)
            run(["cp", "-r", f"{tmpfs}/result", mine])
            run(["sync", "-f", mine])
        finally:
            shutil.rmtree(tmpfs, ignore_errors=True)
    else:
        result = f"{outside}/result"
        options = ["--policy", "stage-through", "--verify", "none"] if way == "through" else []
        run([bench.tarn, "run", path, "--nodes", NODES, *options])
    return time.monotonic() - began, result


def same(one, other):
    """Whether two folders hold the same bytes."""
    names = [sorted(os.path.relpath(path, folder) for path in glob.glob(f"{folder}/**", recursive=True, include_hidden=True) if os.path.isfile(path)) for folder in (one, other)]
    return names[0] == names[1] and filecmp.cmpfiles(one, other, names[0], shallow=False)[0] == names[0]


def measure(bench):
    """All ways in turns."""
    need_store()
    need(memory=2048, shm=1024, disk=(bench.folder, 256))
    try:
        run(["/usr/bin/python3", "-c", "import dask, xarray, zarr"])
    except SystemExit:
        missing("needs xarray, dask and zarr: scripts/deps.sh analysis installs them")
    rounds, frames = bench.choose((1, 32), (3, 96))
    ways = {way: words for way, words in WAYS.items() if way != "local" or not bench.quick}
    seconds, alike = {way: [] for way in ways}, True
    kept = os.path.join(bench.folder, "first")
    with store(bench.folder, MBIT, LATENCY) as outside:
        path = workflow(bench, outside, frames)
        for turn in range(rounds):
            for way, words in ways.items():
                report_progress(f"{turn + 1}/{rounds} {words}")
                taken, result = once(bench, path, outside, way, turn, frames)
                seconds[way].append(taken)
                if not os.path.exists(kept):
                    shutil.copytree(result, kept)
                alike = alike and same(kept, result)
    gain = {way: [other / ours for other, ours in zip(seconds[way], seconds["data"])] for way in ways}
    beside = {way: times(seconds[way], seconds["data"]) for way in ("plain", "through")}
    members = 8
    size = members * frames * 128 * 128 * 24 >> 20
    return {
        "emulated": [emulated(MBIT, LATENCY), f"{NODES} nodes are namespaces of this machine."],
        "differs": [f"{members} members, {frames} times on 128 x 128 points: {size} MiB between simulation and analysis. Both share two cores, so that the analysis of one member runs beside nothing else on its node."],
        "rounds": rounds,
        "tables": [{"title": "Seconds until the statistics are on the store", "columns": ["", "seconds", "times tarn's"], "rows": [[words, spread(seconds[way]), spread(gain[way])] for way, words in ways.items()]}],
        "plots": [
            {
                "title": "Simulation and analysis, seconds",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "seconds"},
                "series": [{"name": words, "of": "here" if way == "data" else "peer", "points": [["until the statistics are there", *list(spread(seconds[way]).values())[:3]]]} for way, words in ways.items()],
            }
        ],
        "claims": [
            claim("a plain shell, stage-through and tarn's data policy give the same statistics, to the last byte", "tarn's own", f"{len(ways) * rounds} results compared", exact(alike)),
            claim(
                "an analysis that runs where the simulation left its output is faster than over the external store",
                "the papers' case",
                f"{factors(beside['plain'])} a plain shell on the store, {factors(beside['through'])} stage-through, at {MBIT} Mbit/s",
                every(*[check_bounds(values, least=1) for values in beside.values()]),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
