#!/usr/bin/python3
"""What staging and a buddy's copy cost in energy, and what the shorter checkpoint saves (Fernando 2016, Figure 2)."""

from experiment import MODELLED, UNCLEAR, claim, exact, main

ABOUT = {
    "title": "Energy: a buddy's copies against shorter checkpoints",
    "source": "Fernando 2016, section II, Figure 2",
    "needs": ["nothing"],
    "minutes": {"quick": 0.1, "full": 0.1},
}
# The published point: MB that can be staged at no cost with a ratio of 2:1, one switch, Omni-Path.
PAPER_MB = 750
CHECKPOINT = 1.5e9


def measure(bench):
    """Draws the model's curves, and asks it where they cross."""
    energy = bench.json("ckpt", "model", "--bytes", "1.5 GB")["energy"]
    cases = [c for c in energy["cases"] if c["network"] != "as given"]
    ratio = lambda c: round(c["memory_rate"] / c["persistent_rate"])
    saved = {ratio(c): [[p["staged_bytes"] / 1e6, p["saved_j"]] for p in c["curve"]] for c in cases}
    spent = {(c["network"], c["switches"]): [[p["staged_bytes"] / 1e6, p["spent_j"]] for p in c["curve"]] for c in cases}
    series = [{"name": f"saved, DRAM:NVRAM {r}:1", "of": "here", "points": points} for r, points in saved.items()]
    series += [{"name": f"spent, {network}, {switches} switch(es)", "of": "peer", "points": points} for (network, switches), points in spent.items()]
    most = {r: max(p[1] for p in points) for r, points in saved.items()}
    rows = []
    for case in cases:
        even = case["break_even_bytes"]
        cell = "all of it" if even is None or even >= CHECKPOINT else {"value": even / 1e6}
        if (case["network"], case["switches"], ratio(case)) == ("Omni-Path", 1, 2) and isinstance(cell, dict):
            cell["paper"] = PAPER_MB
        rows.append([f"{ratio(case)}:1", case["network"], case["switches"], cell])
    published = next(c for c in cases if (c["network"], c["switches"], ratio(c)) == ("Omni-Path", 1, 2))
    even = published["break_even_bytes"] / 1e6
    return {
        "emulated": ["Nothing is measured: a closed model of energy, as in the paper, with its rates of memory and NVRAM and published costs of links."],
        "how": [MODELLED],
        "differs": [
            "The paper does not state the power of a node; it was set so that the model goes through its one published point, so that point is no evidence. The shape of the curves, and all others, are.",
        ],
        "tables": [
            {
                "title": "MB that can be staged before the copies cost more than they save, of a checkpoint of 1,500 MB",
                "columns": ["DRAM:NVRAM", "network", "switches", "MB"],
                "rows": rows,
            }
        ],
        "plots": [
            {
                "title": "Joules saved by shorter checkpoints, and spent on the buddy's copies",
                "kind": "lines",
                "x": {"label": "staged, MB of a checkpoint of 1,500 MB"},
                "y": {"label": "J a checkpoint"},
                "series": series,
            }
        ],
        "claims": [
            claim("up to 750 MB can be staged at no cost where memory has twice the rate of NVRAM", "750 MB (one switch, Omni-Path)", f"{even:.0f} MB, to which the power of a node was fitted", UNCLEAR),
            claim(
                "staging saves more energy, the slower NVRAM is beside memory",
                "savings grow from 2:1 to 8:1",
                ", ".join(f"{r}:1: at most {j:.1f} J" for r, j in most.items()) + ", computed",
                exact(sorted(most.values()) == [most[r] for r in sorted(most)]),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
