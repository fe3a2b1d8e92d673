#!/usr/bin/python3
"""Checkpoint, de-staging and iteration times of three proxies over the NVRAM bandwidth of a core (Fernando 2016, section III, Figure 3)."""

import os
import re
import shutil
import statistics
import subprocess

from experiment import TOP, UNCLEAR, check_bounds, claim, every, factors, main, missing, need, point, run, report_progress, spread, times

ABOUT = {
    "title": "Checkpoints over the NVRAM bandwidth of a core: naive, staged, staged and copied ahead",
    "source": "Fernando 2016, section III, Figure 3, and abstract",
    "needs": ["a C and a Fortran compiler (scripts/deps.sh test)", "libtarn.so beside tarn (make build)", "two processors", "1 GiB of memory"],
    "minutes": {"quick": 1.1, "full": 10.2},
}
PROXIES = {"gtc": "GTC", "cm1": "CM1", "s3d": "S3D"}
WAYS = {"nvr": "naive", "phx": "staged", "phx-ec": "staged, copied ahead"}
NONE = "none"
# Of the bytes a part, bandwidths a core in bytes a second, cycles that count, rounds. CM1 and S3D compute fourteen times as long as they copy.
# No array is below 4 MiB: such are not copied ahead.
QUICK = {"gtc": (0.45, (500_000_000, 2_000_000_000), 2, 2), "cm1": (0.15, (500_000_000,), 2, 1)}
SWEEP = (250_000_000, 500_000_000, 1_000_000_000, 2_000_000_000)
FULL = {"gtc": (0.5, SWEEP, 3, 2), "cm1": (0.15, SWEEP, 3, 1), "s3d": (0.15, SWEEP, 3, 1)}
# Ranks whose helpers share a processor, as the paper's twelve of a node do; they share the others.
CROWD = 2
# Cycles in which it is learned when objects are written.
LEARN = 3
# The published share of a naive checkpoint in the computing time, and how many times as fast staging and copying ahead are.
SHARE = {"gtc": 0.37, "cm1": 0.07}
STAGED, AHEAD, TOTAL = 2.0, 12.0, 0.18
CYCLE = re.compile(r"cycle=\d+ iteration_s=([\d.]+) checkpoint_s=([\d.]+)")
TOTALS = re.compile(r"^(\w+)=([\d.]+)$", re.MULTILINE)


def make(bench):
    """Compiles the proxies; their folder."""
    built = os.path.dirname(bench.tarn)
    if not os.path.exists(os.path.join(built, "libtarn.so")):
        missing("needs libtarn.so beside tarn: make build makes it")
    folder = os.path.join(bench.folder, "proxies")
    os.makedirs(folder)
    flags = {
        "TO": folder,
        "TARN_CFLAGS": f"-I{TOP}/bindings/c/include",
        "TARN_LIBS": f"-L{built} -ltarn -Wl,-rpath,{built}",
        "TARN_FORTRAN": f"{TOP}/bindings/fortran/phx.f90",
    }
    run(["make", "-s", "-C", os.path.join(TOP, "examples", "checkpoints"), *[f"{name}={value}" for name, value in flags.items()]])
    return folder


class Proxy:
    """One of them, whose cycles are so long that a naive checkpoint takes the published share of them at a bandwidth of the tier."""

    def __init__(self, folder, name, scale, rate, cycles):
        self.program, self.memory, self.cycles, self.scale = os.path.join(folder, name), f"/dev/shm/tarn-figure3-{os.getpid()}", cycles, scale
        self.processors = sorted(os.sched_getaffinity(0))[:2]
        self.work = 0
        self.work = int(self.started(NONE, rate, cycles=0, RATE=rate)[1]["work"])

    def started(self, way, rate, cycles=None, ranks=1, **more):
        """Its cycles (seconds of computing and of the checkpoint, of the slowest rank) and the first rank's totals."""
        own, helper = self.processors
        variables = {
            "TARN_PHX_TIER": f"{self.memory}/tier",
            "TARN_PHX_MEMORY": f"{self.memory}/memory",
            "TARN_PHX_PROFILE": f"core={rate}B/s",
            "PROXIES": f"{TOP}/examples/checkpoints/proxies.conf",
            "SCALE": self.scale,
            "CYCLES": self.cycles if cycles is None else cycles,
            "CHECKPOINTS": way,
            "WORK": self.work,
            "RANKS": ranks,
            "REPLICAS": 0,
            "HELPER": helper,
            **more,
        }
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TARN_PHX_")}
        for place in ("tier", "memory"):
            os.makedirs(f"{self.memory}/{place}", mode=0o700)
        environment = {**clean, **{k: str(v) for k, v in variables.items()}}
        children = []
        try:
            for rank in range(ranks):
                # Ranks on one processor, helpers on another: the paper has one core for all helpers of a node.
                words = {"env": {**environment, "RANK": str(rank)}, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
                children.append(subprocess.Popen([self.program], preexec_fn=lambda: os.sched_setaffinity(0, {own}), **words))
            outputs = [child.communicate() for child in children]
        finally:
            for child in children:
                child.kill()
            shutil.rmtree(self.memory, ignore_errors=True)
        for child, (out, err) in zip(children, outputs):
            if child.returncode != 0:
                raise SystemExit(f"{self.program} failed ({child.returncode}): {(err or out).strip()[-2000:]}")
        ran = [[(float(a), float(b)) for a, b in CYCLE.findall(out)] for out, _ in outputs]
        return [tuple(map(max, zip(*cycle))) for cycle in zip(*ran)], dict(TOTALS.findall(outputs[0][0]))


def swept(folder, name, scale, rates, cycles, rounds):
    """By way and rate: seconds of computing and of checkpoints of each cycle that counts, of de-staging a commit, and of whole runs."""
    proxy = Proxy(folder, name, scale, rates[0], LEARN + cycles)
    found = {}
    for turn in range(rounds):
        for rate in rates:
            for way in WAYS:
                report_progress(f"{PROXIES[name]} {turn + 1}/{rounds}: {way}, {rate // 1000000} MB/s a core")
                ran, totals = proxy.started(way, rate)
                of = found.setdefault((way, rate), {"compute": [], "checkpoint": [], "destage": [], "total": []})
                of["compute"] += [c for c, _ in ran[LEARN:]]
                of["checkpoint"] += [c for _, c in ran[LEARN:]]
                of["destage"].append(float(totals.get("destage_s", 0)) / len(ran))
                # From the first cycle on: what is learned has its price, too.
                of["total"].append(sum(a + b for a, b in ran))
    return found


def crowded(folder, scale, rate, cycles):
    """Checkpoints of GTC in seconds, by way, of several ranks that share processors as the paper's do."""
    proxy = Proxy(folder, "gtc", scale, rate, LEARN + cycles)
    found = {}
    for way in WAYS:
        report_progress(f"GTC, ranks whose helpers share a processor: {CROWD}, {way}")
        found[way] = [checkpoint for _, checkpoint in proxy.started(way, rate, ranks=CROWD)[0][LEARN:]]
    return found


def table(name, found, rates):
    """Seconds by way and bandwidth."""
    rows = [
        [f"{WAYS[way]}, {rate // 1000000} MB/s", *[spread(found[(way, rate)][what]) for what in ("checkpoint", "destage", "compute", "total")]] for rate in rates for way in WAYS
    ]
    return {"title": f"{PROXIES[name]}: seconds of a cycle's checkpoint, de-staging and computing, and of the whole run", "columns": ["", "checkpoint", "de-staging", "computing", "run"], "rows": rows}


def plot(name, found, rates):
    """Checkpoint time over the bandwidth of a core."""
    series = [{"name": words, "of": "peer" if way == "nvr" else "here", "points": [point(rate / 1e6, found[(way, rate)]["checkpoint"]) for rate in rates]} for way, words in WAYS.items()]
    return {"title": f"{PROXIES[name]}: checkpoint time", "kind": "lines", "x": {"label": "MB/s of NVRAM a core (emulated)", "log": True}, "y": {"label": "seconds", "log": True}, "series": series}


def beside(found, rates):
    """How many times as fast as naive, at the bandwidth that gives most, and the paper's."""
    here = []
    for name in SHARE:
        for way in ("phx", "phx-ec"):
            ratio = {rate: statistics.median(found[name][("nvr", rate)]["checkpoint"]) / max(1e-6, statistics.median(found[name][(way, rate)]["checkpoint"])) for rate in rates[name]}
            most = max(ratio, key=ratio.get)
            here.append([f"{PROXIES[name]}, {WAYS[way]}", ratio[most], *gains(found[name], [most], way)[0]])
    series = [
        {"name": "here", "of": "here", "points": here},
        {"name": "paper", "of": "paper", "points": [[words, value] for (words, *_), value in zip(here, (STAGED, AHEAD, STAGED, STAGED))]},
    ]
    return {"title": "How many times as fast as a naive checkpoint, at the bandwidth that gives most", "kind": "bars", "x": {"label": ""}, "y": {"label": "times", "log": True}, "series": series}


def gains(found, rates, way, than="nvr", what="checkpoint"):
    """How many times as fast as another way, naive by default, at each bandwidth: of all cycles or runs."""
    return [times(found[(than, rate)][what], [max(1e-6, value) for value in found[(way, rate)][what]]) for rate in rates]


def text(ranges):
    """A range of factors, over all bandwidths."""
    return factors([value for values in ranges for value in values])


def shorter(values):
    """Percent less, of a range of factors."""
    return " to ".join(f"{100 * (1 - 1 / value):.0f}" for value in values) + " %"


def measure(bench):
    """All three, each over the bandwidths."""
    how = "scripts/deps.sh test installs it"
    need({"gfortran": how, "make": how, "cc": how, "c++": how}, memory=1024, shm=768, disk=(bench.folder, 64))
    if len(os.sched_getaffinity(0)) < 2:
        missing("needs two processors: a rank's and its helper's")
    folder = make(bench)
    sweeps = bench.choose(QUICK, FULL)
    found = {name: swept(folder, name, *sweep) for name, sweep in sweeps.items()}
    rates = {name: sweep[1] for name, sweep in sweeps.items()}
    lowest = rates["gtc"][0]
    share = {
        name: statistics.median(found[name][("nvr", lowest)]["checkpoint"]) / statistics.median(found[name][("nvr", lowest)]["compute"]) for name in SHARE
    }
    gtc, cm1 = found["gtc"], found["cm1"]
    crowd = {1: {way: gtc[(way, lowest)]["checkpoint"] for way in WAYS}}
    if not bench.quick:
        crowd[CROWD] = crowded(folder, sweeps["gtc"][0], lowest, sweeps["gtc"][2])
    # As many cycles of one rank as of several.
    cycles = sweeps["gtc"][2]
    together = {(way, ranks): times(of["nvr"][:cycles], [max(1e-6, value) for value in of[way][:cycles]]) for way in ("phx", "phx-ec") for ranks, of in crowd.items()}
    staged = {name: gains(found[name], rates[name], "phx") for name in SHARE}
    ahead = {name: gains(found[name], rates[name], "phx-ec") for name in SHARE}
    more = gains(cm1, rates["cm1"], "phx-ec", "phx")
    runs = {name: {way: gains(found[name], rates[name], way, what="total") for way in ("phx", "phx-ec")} for name in SHARE}
    best = {name: {way: max(of, key=min) for way, of in ways.items()} for name, ways in runs.items()}
    in_crowd = "" if bench.quick else f", and in the last table {CROWD} ranks on one and their helpers on the other"
    return {
        "emulated": [
            f"The NVRAM is memory that is held to {', '.join(str(r // 1000000) for r in rates['gtc'])} MB/s a core by software, as in the paper.",
            "GTC, CM1 and S3D are proxies (examples/checkpoints): programs with their sizes, shares and access patterns as far as published.",
        ],
        "differs": [
            *([] if "s3d" in sweeps else ["S3D is left out with --quick; the paper has no results of it."]),
            f"One rank and its helper, each on a processor of its own{in_crowd}; the paper has 48 ranks on four nodes, and one processor for twelve helpers. {', '.join(f'{PROXIES[name]} {sweep[0] * 235:.0f}' for name, sweep in sweeps.items())} MB a rank instead of GTC's 235.",
            "No buddy: with one rank there is none. What a copy on another node takes is measured by `tarn bench ckpt --case recovery`.",
            "How much GTC writes early is not published: 20 of its 24 arrays, which is what twelve times needs and most favours copying ahead (examples/checkpoints/proxies.conf).",
            f"Computing is as long as makes a naive checkpoint take the published share at {lowest // 1000000} MB/s (S3D has none published: CM1's).",
            "The paper names neither the bandwidths of its sweep nor the run whose time is 18 % shorter.",
        ],
        "rounds": sweeps["gtc"][3],
        "tables": [
            *[table(name, found[name], rates[name]) for name in sweeps],
            {
                "title": f"GTC at {lowest // 1000000} MB/s a core: seconds of a checkpoint where helpers share a processor, and ranks another",
                "columns": ["ranks", *WAYS.values()],
                "rows": [[str(ranks), *[spread(of[way]) for way in WAYS]] for ranks, of in crowd.items()],
            },
        ],
        "plots": [*[plot(name, found[name], rates[name]) for name in sweeps], beside(found, rates)],
        "claims": [
            claim(
                "a naive checkpoint takes up to 37 % of the computing time of GTC, 7 % of CM1's",
                "37 %, 7 %",
                f"{100 * share['gtc']:.0f} %, {100 * share['cm1']:.0f} %, to which the computing was set",
                UNCLEAR,
            ),
            claim("staging cuts the time of a checkpoint by nearly half", f"{STAGED:.0f} times, GTC and CM1", f"GTC {text(staged['gtc'])}, CM1 {text(staged['cm1'])} (by the proxies' own clock, as are the next)", every(*[check_bounds(values, least=0.9 * STAGED) for name in SHARE for values in staged[name]])),
            claim("copying ahead makes GTC's checkpoint up to twelve times as fast", f"up to {AHEAD:.0f} times", f"{text(ahead['gtc'])}; how much of it GTC writes early was set by that figure", UNCLEAR),
            claim(
                f"one processor is enough for the helpers of {CROWD} ranks",
                "12 helpers",
                "not tried with --quick"
                if bench.quick
                else f"GTC, {CROWD} ranks: staged {factors(together[('phx', CROWD)])}, copied ahead {factors(together[('phx-ec', CROWD)])} as fast as naive; one rank: {factors(together[('phx', 1)])} and {factors(together[('phx-ec', 1)])}",
                UNCLEAR if bench.quick else every(*[check_bounds(together[(way, CROWD)], least=0.9 * STAGED) for way in ("phx", "phx-ec")]),
            ),
            claim("copying ahead gains nothing for CM1, which writes until the checkpoint", "no improvement over staging", text(more) + " staging's", every(*[check_bounds(values, least=0.8, most=1.25) for values in more])),
            claim(
                "staging and copying ahead make the whole run shorter by up to 18 %",
                f"{100 * TOTAL:.0f} %",
                f"than with naive checkpoints, at best: GTC staged {shorter(best['gtc']['phx'])}, copied ahead too {shorter(best['gtc']['phx-ec'])}; CM1 {shorter(best['cm1']['phx-ec'])}; the shares of checkpoints were set",
                UNCLEAR,
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
