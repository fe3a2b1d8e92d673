#!/usr/bin/python3
"""A job that uses the external store, beside workflows over the store, on the tiers, and beside their staging (Weiland 2018, conclusions)."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import store
from experiment import MIB, check_bounds, claim, every, factors, main, need, point, run, report_progress, spread, times

ABOUT = {
    "title": "An ordinary job beside workflows: what they take from it",
    "source": "Weiland 2018, conclusions; Jackson 2019, sections 2.1 and 3 (no competition for the external file system)",
    "needs": [store.NEEDS, "6 GiB of memory"],
    "minutes": {"quick": 1.2, "full": 4.7},
}
MBIT, LATENCY = 800, 300
FILES = 10
# Of what copies are held to, bytes a second: a tenth of the store.
RATE = MBIT * 1_000_000 // 8 // 10
# Seconds that what goes on beside may take until it is further, and until it has ended when it is told to.
TIMEOUT, LAST = 60, 10
# Has a byte for each time that it has ended well.
ENDED = "ended"
ALONE, THROUGH, KEPT, STAGES, HELD = "alone", "a workflow over the store", "the same workflow on the nodes' tiers, by tarn", "input staged in by tarn", "the same, held to a rate"


def words(bench, role, folder, size, seed=1):
    """A process that writes or reads ten files, past the caches."""
    return f"{bench.tarn}-bench __io {role} --files {FILES} --size {size} --seed {seed} --cache without --dir {folder} --report {bench.folder}/{role}-{seed}.json"


def written(path, lines):
    """A workflow file."""
    with open(path, "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")


def command(bench, outside, folder, tier, kind, size):
    """What goes on beside the job, in a folder: a shell's command, again and again, or once for what takes longer than the job. It ends with what fails."""
    path = os.path.join(folder, "workflow.toml")
    ran = f"{bench.tarn} run {path} --nodes 2 --oversubscribe --tier scm={tier}"
    begin, again = f"set -e; cd {folder}; n=0", f"echo >> {ENDED}; done"
    if kind == THROUGH:
        at = os.path.join(outside, "made")
        return f"{begin}; while :; do rm -rf {at}; {words(bench, 'write', at, size, 2)}; {words(bench, 'read', at, size, 2)}; {again}"
    if kind == KEPT:
        written(
            path,
            [
                'name = "pair"',
                f'data.made = {{ size = "{FILES * size} B" }}',
                f'[[step]]\nname = "write"\nrun = {json.dumps(words(bench, "write", "$TARN_made", size, 2))}\nout = ["made"]',
                f'[[step]]\nname = "read"\nrun = {json.dumps(words(bench, "read", "$TARN_made", size, 2))}\nin = ["made"]',
            ],
        )
        return f"{begin}; while :; do n=$((n + 1)); {ran} --state state$n; {again}"
    written(path, ['name = "stages"', f"data.input = {{ source = {json.dumps(os.path.join(outside, 'input'))} }}", '[[step]]\nname = "use"\nrun = "true"\nin = ["input"]'])
    rate = f'--external-rate "{RATE} B/s"' if kind == HELD else ""
    return f"{begin}; {ran} --state state {rate}; echo the run has ended"


def held(path):
    """Bytes of a file that may have gone, or have got another name."""
    try:
        return os.lstat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def reached(folder, tier, kind):
    """How far that is: bytes that are on the tier by now, or a byte for each time that all has ended well."""
    if kind in (STAGES, HELD):
        return sum(held(os.path.join(top, name)) for top, _, names in os.walk(tier) for name in names)
    path = os.path.join(folder, ENDED)
    return os.path.getsize(path) if os.path.exists(path) else 0


def until(ready, seconds):
    """Waits until something is so; False if it takes longer."""
    for _ in range(10 * seconds):
        if ready():
            return True
        time.sleep(0.1)
    return False


def gone(session):
    """Whether no process of a session is left."""
    return subprocess.run(["pgrep", "-s", str(session)], stdout=subprocess.DEVNULL, check=False).returncode != 0


def end(shell):
    """Ends what goes on beside: tarn is asked to, and has time for it."""
    if shell.poll() is None:
        # It begins nothing more meanwhile.
        shell.send_signal(signal.SIGSTOP)
        subprocess.run(["pkill", "-TERM", "-P", str(shell.pid), "-x", "tarn"], check=False)
        shell.kill()
    shell.wait()
    if not until(lambda: gone(shell.pid), LAST):
        subprocess.run(["pkill", "-KILL", "-s", str(shell.pid)], check=False)
        until(lambda: gone(shell.pid), LAST)


@contextlib.contextmanager
def beside(bench, outside, kind, size):
    """Runs something beside, which has begun to use the store, or would have, when the block begins. Without it the job would have been alone: an error if it fails, comes no further, or has ended before the job."""
    if kind == ALONE:
        yield
        return
    folder, path, tier = os.path.join(bench.folder, "beside"), os.path.join(bench.folder, "beside.log"), f"/dev/shm/tarn-beside-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    shell = None
    try:
        os.makedirs(tier, mode=0o700)
        with open(path, "wb") as log:
            words_of_it = ["bash", "-c", command(bench, outside, folder, tier, kind, size)]
            shell = subprocess.Popen(words_of_it, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        time.sleep(1)
        if kind in (STAGES, HELD):
            until(lambda: reached(folder, tier, kind) > 0 or shell.poll() is not None, TIMEOUT)
        before = reached(folder, tier, kind)
        yield
        went_on = shell.poll() is None
        # What was under way when the job ended counts.
        further = until(lambda: reached(folder, tier, kind) > before or shell.poll() is not None, TIMEOUT) and reached(folder, tier, kind) > before
        if not (went_on and further):
            why = "came no further" if went_on else f"has ended ({shell.poll()})"
            with open(path, encoding="utf-8", errors="replace") as log:
                raise SystemExit(f"{log.read()[-2000:]}\n{kind}: it {why} while the job ran, so that the job was alone")
    finally:
        if shell is not None:
            end(shell)
        shutil.rmtree(tier, ignore_errors=True)


def measure(bench):
    """The job's time, in turns."""
    store.need_store()
    need(memory=6144, shm=2048, disk=(bench.folder, 1024))
    rounds, size = bench.choose((2, 8 * MIB), (4, 32 * MIB))
    found = {}
    with store.store(bench.folder, MBIT, LATENCY) as outside:
        run(["bash", "-c", words(bench, "write", f"{outside}/job", size)])
        # More than can be staged while the job runs.
        run(["bash", "-c", words(bench, "write", f"{outside}/input", 4 * size, 3)])
        for turn in range(rounds):
            for kind in (ALONE, THROUGH, KEPT, STAGES, HELD):
                report_progress(f"{turn + 1}/{rounds} {kind}")
                store.fresh(outside)
                with beside(bench, outside, kind, size):
                    began = time.monotonic()
                    run(["bash", "-c", words(bench, "read", f"{outside}/job", size)])
                    taken = time.monotonic() - began
                found.setdefault(kind, []).append(taken)
    longer = {kind: [mine / alone for mine, alone in zip(values, found[ALONE])] for kind, values in found.items()}
    # Of any repetition beside something to any of it alone.
    beside_alone = {kind: times(values, found[ALONE]) for kind, values in found.items()}
    return {
        "emulated": [store.emulated(MBIT, LATENCY), "The workflow's nodes are namespaces of the machine on which the job runs too: they share its processors and its connection to the store."],
        "differs": ["The paper concludes this from its scheduler's design, and measures no job beside.", f"Copies are held to {RATE // 1_000_000} MB/s by `--external-rate`, a tenth of the store."],
        "rounds": rounds,
        "tables": [
            {
                "title": f"A job that reads {FILES} files of {size // MIB} MiB from the store",
                "columns": ["beside", "seconds", "times alone"],
                "rows": [[kind, spread(found[kind]), spread(longer[kind])] for kind in found],
            }
        ],
        "plots": [
            {
                "title": "How many times as long the job takes as alone",
                "kind": "bars",
                "x": {"label": ""},
                "y": {"label": "times"},
                "series": [{"name": "the job", "of": "here", "points": [point(kind, values) for kind, values in longer.items() if kind != ALONE]}],
            }
        ],
        "claims": [
            claim(
                "a workflow that keeps its data on the nodes leaves the store to other jobs: a quarter longer at most, and less than beside one over the store",
                "without impinging on them",
                f"the job takes {factors(beside_alone[KEPT], 2)} as long as alone, and {factors(beside_alone[THROUGH], 2)} beside the same workflow over the store",
                every(check_bounds(beside_alone[KEPT], most=1.25), check_bounds(times(found[THROUGH], found[KEPT]), least=1)),
            ),
            claim(
                "what is staged in can be held to a rate that leaves other jobs the rest: a quarter longer at most, and less than beside staging that is not held",
                "background movement on the network that jobs use",
                f"{factors(beside_alone[STAGES], 2)} as long beside it, {factors(beside_alone[HELD], 2)} when it is held to a tenth of the store",
                every(check_bounds(beside_alone[HELD], most=1.25), check_bounds(times(found[STAGES], found[HELD]), least=1)),
            ),
        ],
    }


if __name__ == "__main__":
    main(ABOUT, measure)
