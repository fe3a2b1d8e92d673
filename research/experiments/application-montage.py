#!/usr/bin/python3
"""Montage, a mosaic of the sky, with its tiles and its result on an external store: by tarn, and by a plain shell."""

import os
import shutil
import sys
import time

from experiment import TOP, check_bounds, claim, every, exact, factors, main, need, run, report_progress, spread, times
from store import NEEDS, emulated, fresh, need_store, store

sys.path.insert(1, os.path.join(TOP, "bench"))
from montage import EXAMPLE, NODES  # noqa: E402

ABOUT = {
    "title": "Application: Montage, a mosaic from tiles",
    "source": "Weiland 2018, section 1 (workflows that write much between steps); Jackson 2019, section 5.1",
    "needs": [NEEDS, "Montage, astropy and numpy (scripts/deps.sh demo)", "2 GiB of memory"],
    "minutes": {"quick": 0.6, "full": 2.1},
}
MBIT, LATENCY = 800, 300
WAYS = {"plain": "a plain shell, all on the store", "local": "a plain shell on one tmpfs, tiles and result on the store", "through": "tarn, stage-through", "data": "tarn, data"}


def prepare(bench, outside, grid, size):
    """The example, its tiles on the store and its result to be put there."""
    work = os.path.join(bench.folder, "montage")
    shutil.copytree(EXAMPLE, work)
    run([f"{work}/make_tiles.py", f"{outside}/raw", "--grid", grid, "--size", size])
    path = os.path.join(work, "workflow.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = text.replace('source = "raw"', f'source = "{outside}/raw"').replace('"results/', f'"{outside}/results/')
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'external = "{outside}/between"\n{text}')
    return work


def once(bench, work, outside, way, turn):
    """Seconds, and the mosaic's checksum."""
    mine = os.path.join(outside, f"{way}{turn}")
    for name in ("results", "between"):
        # One of its own each: what is there already need not be written.
        if os.path.exists(f"{outside}/{name}"):
            os.rename(f"{outside}/{name}", f"{mine}-{name}-before")
    os.mkdir(f"{outside}/between")
    shutil.rmtree(os.path.join(work, ".tarn"), ignore_errors=True)
    fresh(outside)
    cores = os.cpu_count() or 1
    began = time.monotonic()
    if way == "plain":
        run([f"{work}/plain.sh", f"{outside}/raw", mine, cores])
        mosaic = f"{mine}/mosaic/mosaic.fits"
    elif way == "local":
        tmpfs = f"/dev/shm/tarn-montage-{os.getpid()}"
        try:
            run([f"{work}/plain.sh", f"{outside}/raw", tmpfs, cores])
            os.mkdir(mine)
            for name in ("mosaic", "picture"):
                run(["cp", "-r", f"{tmpfs}/{name}", mine])
            run(["sync", "-f", mine])
        finally:
            shutil.rmtree(tmpfs, ignore_errors=True)
        mosaic = f"{mine}/mosaic/mosaic.fits"
    else:
        options = ["--policy", "stage-through", "--verify", "none"] if way == "through" else []
        run([bench.tarn, "run", f"{work}/workflow.toml", "--nodes", NODES, *options])
        mosaic = f"{outside}/results/mosaic/mosaic.fits"
    seconds = time.monotonic() - began
    return seconds, run(["sha256sum", mosaic]).split()[0]


def measure(bench):
    """All ways in turns."""
    need_store()
    how = "scripts/deps.sh demo installs it"
    need({"mProject": how, "mAdd": how}, memory=2048, shm=1024, disk=(bench.folder, 512))
    rounds, (grid, size) = bench.choose(2, 3), bench.choose((3, 300), (4, 600))
    ways = {way: words for way, words in WAYS.items() if way != "local" or not bench.quick}
    seconds, sums = {way: [] for way in ways}, set()
    with store(bench.folder, MBIT, LATENCY) as outside:
        work = prepare(bench, outside, grid, size)
        for turn in range(rounds):
            for way, words in ways.items():
                report_progress(f"{turn + 1}/{rounds} {words}")
                taken, mosaic = once(bench, work, outside, way, turn)
                seconds[way].append(taken)
                sums.add(mosaic)
    gain = {way: [other / ours for other, ours in zip(seconds[way], seconds["data"])] for way in ways}
    beside = {way: times(seconds[way], seconds["data"]) for way in ("plain", "through")}
    return {
        "emulated": [emulated(MBIT, LATENCY), f"{NODES} nodes are namespaces of this machine."],
        "differs": [f"{grid} x {grid} tiles of {size} pixels, made by a program. The mosaic is compared bit by bit among all ways."],
        "rounds": rounds,
        "tables": [{"title": "Seconds until the mosaic is on the store", "columns": ["", "seconds", "times tarn's"], "rows": [[words, spread(seconds[way]), spread(gain[way])] for way, words in ways.items()]}],
        "plots": [
            {
                "title": "Montage, seconds",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "seconds"},
                "series": [{"name": words, "of": "here" if way == "data" else "peer", "points": [["until the mosaic is on the store", *list(spread(seconds[way]).values())[:3]]]} for way, words in ways.items()],
            }
        ],
        "claims": [
            claim("a plain shell, stage-through and tarn's data policy make the same mosaic", "tarn's own", f"{len(sums)} checksum{'s' if len(sums) > 1 else ''} of {len(ways) * rounds} mosaics", exact(len(sums) == 1)),
            claim(
                "a workflow that keeps what it makes on the nodes is faster than over the external store",
                "the papers' case",
                f"{factors(beside['plain'])} a plain shell on the store, {factors(beside['through'])} stage-through, at {MBIT} Mbit/s",
                every(*[check_bounds(values, least=1) for values in beside.values()]),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
