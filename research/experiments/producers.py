"""Producers and consumers of files, as the papers' synthetic workflow has them: `tarn bench workflow`."""

import re

TARGETS = {"external directory": "external store", "disk": "disk", "node tier": "tier"}
BY_TARN = "tier, by tarn run"
_NAME = re.compile(r"\d+ pair\(s\) x (\d+) x [\d.]+ MB, (?:(.*?) \(.*?\), (with|without) cache \(.*?\)|tarn run \(.*?\)): (.*)")


def measured(bench, outside, pairs, scale, runs, files=None):
    """Figures by files, target and cache (None by tarn run), each by its name; `files` names one shape."""
    words = ["workflow", "--case", "papers", "--runs", runs, "--pairs", pairs, "--scale", scale, "--external", outside, "--disk", bench.folder, "--memory", "/dev/shm"]
    found = {}
    for name, (value, _) in bench.figures(*map(str, words), *(["--files", str(files)] if files else [])).items():
        match = _NAME.fullmatch(name)
        if match:
            count, target, cache, what = match.groups()
            found.setdefault((int(count), TARGETS.get(target, BY_TARN), cache), {})[what] = value
    return found


def ends(figures, rounds, *what):
    """For verdicts: the least and the most that so many repetitions can have given of what is named together; one number of a single one."""
    low, high = (sum(figures[f"{w}, {end}"] for w in what) for end in ("least", "most"))
    return [low, high] if rounds > 1 else [high]


def cell(figures, *what):
    """Seconds of what is named (write, read) together: the sum of the medians, with the sums of the least and of the most."""
    found = {"value": sum(figures[f"{w}, median"] for w in what)}
    low, high = (sum(figures[f"{w}, {end}"] for w in what) for end in ("least", "most"))
    if low < high:
        found.update(low=low, high=high)
    return found
