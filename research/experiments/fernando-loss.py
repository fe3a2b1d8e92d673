#!/usr/bin/python3
"""How likely a checkpoint is lost that lies in memory, with one copy and with two (Fernando 2016, section II)."""

from experiment import MODELLED, UNCLEAR, claim, main

ABOUT = {
    "title": "How likely a staged checkpoint is lost",
    "source": "Fernando 2016, section II",
    "needs": ["nothing"],
    "minutes": {"quick": 0.1, "full": 0.1},
}
# Copies and the probability that the paper publishes.
PAPER = {1: 0.98960270, 2: 0.00000003}


def measure(bench):
    """Asks the model, with the parameters that give the paper's values, and with tarn's own."""
    fitted = bench.json("ckpt", "model")["loss"]["fitted"]
    days = fitted["mtbf_s"] / 86400
    model = bench.json(
        "ckpt", "model", "--nodes", f"{fitted['nodes']:.0f}", "--mtbf", f"{days:.0f}d", "--exposure", f"{fitted['exposure_s']:.0f}s", "--interval", "60s", "--length", "48h"
    )["loss"]
    by_copies = {c["copies"]: c["loss"] for c in model["by_copies"]}
    rows = [[f"{n}", {"value": loss, **({"paper": PAPER[n]} if n in PAPER else {})}] for n, loss in sorted(by_copies.items())]
    points = [[float(n), loss] for n, loss in sorted(by_copies.items())]
    return {
        "how": [MODELLED],
        "differs": [
            "The paper states neither nodes nor failure rates nor exposure: these parameters were fitted to its two values, and others give them as well (docs/guide/checkpoint-models.md).",
            "A model, as in the paper: nothing is made to fail. That a rank's memory can be lost, and its checkpoint is there all the same, is what the tests of ranks show.",
        ],
        "tables": [
            {
                "title": f"Probability of a loss in 48 h with {model['checkpoints']:.0f} checkpoints; {fitted['nodes']:.0f} nodes, {days:.0f} days between failures of a node, {fitted['exposure_s']:.0f} s exposed",
                "columns": ["copies", "probability"],
                "rows": rows,
            }
        ],
        "plots": [
            {
                "title": "Probability that staged data are lost, by copies",
                "kind": "lines",
                "x": {"label": "copies"},
                "y": {"label": "probability of a loss in 48 h", "log": True},
                "series": [
                    {"name": "model", "of": "here", "points": points},
                    {"name": "published", "of": "paper", "points": [[float(n), p] for n, p in PAPER.items()]},
                ],
            }
        ],
        "claims": [
            claim(
                "a second copy makes the loss of staged data negligible: a model gives both published values",
                "0.98960270 to 0.00000003",
                f"{by_copies[1]:.8f} to {by_copies[2]:.8f}, computed; nodes, failure rate and exposure were fitted",
                UNCLEAR,
            )
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
