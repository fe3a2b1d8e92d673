#!/usr/bin/python3
"""What `#TARN` lines cost slurmctld, and what they keep from the external store, on a real Slurm with tarn's site. Needs root.

Prints the results in the form of `tarn bench --json`:
- sbatch with and without lines, in turns: medians in ms, and their difference (goal: at most 5 ms);
- sinfo while so many jobs are submitted one after the other, without and with lines: the slowest answer (goal: 100 ms);
- staging of a dataset from the external store to a node's store (tmpfs), encrypted and not, in turns: MB/s from the first that is seen of it
  to its publication (goal: 0.6 of plain);
- the three-job workflow of Weiland 2018, Figures 3 to 5 (one script, jobs that submit the next one, dependencies), without tarn and with
  it: bytes that reach the external store, a file system on a block device of its own, counted by the kernel at that device;
- what tarn adds to a job whose data is there already (--only overhead): the same job without lines, with a burst_buffer.lua whose functions
  return at once, and with tarn, in turns. Medians in seconds of sbatch, from there to the job's first instruction, and from its last one until
  Slurm has completed it; and of tarn's stages by themselves (goal: at most 0.3 s in all). --parameters default has Slurm's own default
  parameters of its schedulers in place of the test cluster's, which are made for short jobs;
- how fast slurmctld answers with thousands of jobs queued, with the controller in drive and without it (--only crowd; goal: 1.1 times).
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from crowd import crowd
from slurm import Site, cluster, configuration, done

MIB = 1 << 20
# slurm.conf: enough jobs, and Slurm's own default parameters of its schedulers (slurm.conf(5)).
CONF = "MaxJobCount=20000\n"
DEFAULTS = "SchedulerParameters=batch_sched_delay=3,sched_interval=60,sched_min_interval=2\n"
LINES = """#TARN data.made.size = "1 MiB"
#TARN [[step]]
#TARN out = ["made"]
"""
# What a job of the workflow does with the place of what it reads, and of what it makes; each MiB is new bytes.
STEPS = {
    "prepare": ("mesh", "case", "openssl enc -aes-128-ctr -pass pass:prepare -nosalt -in {0}/f -out {1}/f 2> /dev/null"),
    "solve": ("case", "fields", "openssl enc -aes-128-ctr -pass pass:solve -nosalt -in {0}/f -out {1}/f 2> /dev/null"),
    "reduce": ("fields", "result", "head -c 1M {0}/f > {1}/f"),
}


def report_result(name, value, unit, against, goal):
    """A result, which is shown as well."""
    print(f"{name}: {value:.3f} {unit} ({against}: {goal:.3f})", file=sys.stderr)
    return {"name": name, "value": value, "unit": unit, "against": {"name": against, "value": goal}}


@contextlib.contextmanager
def store(work, mib):
    """A file system on a block device of its own; its folder and a function that gives the bytes (read, written) at the device so far."""
    image, folder = os.path.join(work, "store.img"), os.path.join(work, "store")
    with open(image, "wb") as file:
        file.truncate(mib * MIB)
    os.mkdir(folder)
    done(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image])
    device = done(["losetup", "--find", "--show", image]).strip()
    try:
        done(["mount", "-o", "noatime", device, folder])
        os.chmod(folder, 0o1777)

        def moved():
            done(["sync", "-f", folder])
            with open(f"/sys/block/{os.path.basename(device)}/stat", encoding="ascii") as file:
                fields = file.read().split()
            return int(fields[2]) * 512, int(fields[6]) * 512

        yield folder, moved
    finally:
        subprocess.run(["umount", folder], check=False)
        subprocess.run(["losetup", "-d", device], check=False)


SUBMIT = """
import json, subprocess, sys, time
turns = int(sys.argv[1])
taken = {"plain": [], "lines": []}
for turn in range(turns + 5):
    for name in taken:
        began = time.monotonic()
        subprocess.run(["sbatch", "-Q", "-H", name + ".sh"], check=True)
        if turn >= 5:
            taken[name].append(1000 * (time.monotonic() - began))
print(json.dumps(taken))
"""

# Standard output is a line for each answer: after how many ms it came.
WATCH = """
import os, subprocess, time
while not os.path.exists("enough"):
    began = time.monotonic()
    subprocess.run(["sinfo"], stdout=subprocess.DEVNULL, check=True)
    print(1000 * (time.monotonic() - began), flush=True)
    time.sleep(0.01)
"""


def costs(site, turns, jobs):
    """What sbatch takes, and sinfo while jobs are submitted."""
    python = "/usr/bin/python3 -c"
    for name, lines in (("plain", ""), ("lines", LINES)):
        site.alice(f"cat > {name}.sh << 'END'\n#!/bin/bash\n#SBATCH -o /dev/null\n{lines}true\nEND")
    taken = json.loads(site.alice(f"{python} '{SUBMIT}' {turns}"))
    site.alice("scancel -u alice")
    plain, lines = (statistics.median(taken[name]) for name in ("plain", "lines"))
    results = [
        report_result("sbatch with lines", lines, "ms", "sbatch without lines", plain),
        report_result("what lines add to sbatch", lines - plain, "ms", "goal", 5),
    ]
    slowest = {}
    for name in ("plain", "lines"):
        time.sleep(10)
        watch = subprocess.Popen(site.words("alice", f"{python} '{WATCH}'"), stdout=subprocess.PIPE, text=True)
        answers = []
        reader = threading.Thread(target=lambda to=answers, of=watch: to.extend(float(line) for line in of.stdout))
        reader.start()
        began = time.monotonic()
        site.alice(f"for i in $(seq {jobs}); do sbatch -Q -H {name}.sh || exit; done")
        span = time.monotonic() - began
        site.alice("touch enough")
        watch.wait()
        reader.join()
        site.alice("rm enough")
        slowest[name] = max(answers)
        print(f"  {name}: {jobs} jobs in {span:.1f} s; sinfo {len(answers)} times, median {statistics.median(answers):.1f} ms, slowest {max(answers):.1f} ms", file=sys.stderr)
        site.alice("scancel -u alice")
    results.append(report_result(f"slowest sinfo while {jobs} jobs with lines are submitted", slowest["lines"], "ms", "without lines", slowest["plain"]))
    results.append(report_result("the same", slowest["lines"], "ms", "goal", 100))
    return results


def scripts(external, tarn, called):
    """The jobs of the workflow, by the folders of the external store or by tarn, where it is called so; and all of them as one script."""
    texts, whole, all_lines = {}, [], []
    for name, (read, made, run) in STEPS.items():
        lines, places = [], []
        if tarn:
            if read == "mesh":
                lines.append(f'data.mesh.source = "{external}/mesh"')
            if made == "result":
                lines.append(f'data.result.dest = "{external}/result"')
            else:
                lines.append(f"data.{made} = {{}}")
            places = [f"$TARN_{read}", f"$TARN_{made}"]
            own = [*lines, "[[step]]", f'in = ["{read}"]', f'out = ["{made}"]']
            head = "".join(f"#TARN {line}\n" for line in [f'name = "{called}"', *own])
        else:
            places = [f"{external}/{read}", f"{external}/{made}"]
            head = ""
        prepare = "" if tarn else f"mkdir -p {places[1]}\n"
        body = prepare + run.format(*places) + "\n"
        texts[name] = f"#!/bin/bash\n#SBATCH -o {name}.out\n{head}set -e\n{body}"
        whole.append(body)
        all_lines += lines
    # What the steps of one job hand to each other is in one dataset of it.
    if tarn:
        all_lines += ["[[step]]", 'in = ["mesh"]', 'out = ["case", "fields", "result"]']
    head = "".join(f"#TARN {line}\n" for line in all_lines)
    texts["all"] = f"#!/bin/bash\n#SBATCH -o all.out\n{head}set -e\n{''.join(whole)}"
    return texts


WAIT = "until [ -z \"$(squeue -h -u alice -t all -o %T | grep -v -e COMPLETED -e FAILED -e CANCELLED)\" ]; do sleep 0.5; done"


def workflow(site, way, texts, tarn):
    """Runs the workflow one way, and waits for its end."""
    texts = dict(texts)
    if way == "jobs that submit the next one":
        texts["prepare"] += "sbatch -Q solve.sh\n"
        texts["solve"] += "sbatch -Q reduce.sh\n"
        if tarn:
            texts["reduce"] += "tarn slurm end chain\n"
    for name, text in texts.items():
        site.alice(f"cat > {name}.sh << 'END'\n{text}END")
    if way == "one script":
        site.alice("sbatch -Q -W all.sh")
    elif way == "jobs that submit the next one":
        site.alice("sbatch -Q prepare.sh")
        site.alice("for i in $(seq 600); do [ ! -e reduce.out ] || break; sleep 0.5; done")
    elif tarn:
        site.alice("tarn submit prepare.sh solve.sh reduce.sh")
    else:
        site.alice("a=$(sbatch --parsable prepare.sh); b=$(sbatch --parsable -d afterok:$a solve.sh); sbatch -Q -d afterok:$b reduce.sh")
    site.alice(WAIT)


def moved_bytes(site, folder, moved, mib):
    """Bytes at the external store, without tarn and with it, for the three ways."""
    os.makedirs(os.path.join(folder, "mesh"))
    with open("/dev/urandom", "rb") as random, open(os.path.join(folder, "mesh", "f"), "wb") as file:
        file.write(random.read(mib * MIB))
    results = []
    for way, called in (("one script", "one"), ("jobs that submit the next one", "chain"), ("dependencies", "graph")):
        counted = {}
        for tarn in (False, True):
            site.alice("rm -f *.out")
            for name in ("case", "fields", "result"):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
            moved()
            with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
                file.write("3")
            before = moved()
            workflow(site, way, scripts(folder, tarn, called), tarn)
            after = moved()
            size = os.path.getsize(os.path.join(folder, "result", "f"))
            if size != MIB:
                sys.exit(f"{way}: the result has {size} bytes")
            counted[tarn] = [(b - a) / MIB for a, b in zip(before, after)]
            there = [name for name in ("case", "fields") if os.path.exists(os.path.join(folder, name))]
            print(f"  {way}, {'tarn' if tarn else 'plain'}: {counted[tarn][0]:.2f} MiB read, {counted[tarn][1]:.2f} MiB written; intermediates there: {there}", file=sys.stderr)
            if tarn and there:
                sys.exit("intermediates are on the external store")
        results.append(report_result(f"read at the store, {way}", counted[True][0], "MiB", "without tarn", counted[False][0]))
        results.append(report_result(f"written at the store, {way}", counted[True][1], "MiB", "without tarn", counted[False][1]))
    results.append(report_result("the workflow's source and result", mib + 1.0, "MiB", "its intermediates", 2.0 * mib))
    return results


# How long a dataset takes from the first that is seen of it in a node's store to its publication.
STAGED = """
import glob, os, sys, time
began = None
while True:
    for folder in glob.glob("/scm/tarn/u*/d/" + sys.argv[1] + "/d/0"):
        names = os.listdir(folder)
        if names and began is None:
            began = time.monotonic()
        if "0" in names:
            print(time.monotonic() - began)
            sys.exit()
    time.sleep(0.001)
"""


def staging(site, folder, rounds, mib):
    """How fast data come into a node's store, encrypted and not."""
    source = os.path.join(folder, "data")
    os.makedirs(source)
    with open(os.path.join(source, "f"), "wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
    rates = {"false": [], "true": []}
    for turn in range(rounds + 1):
        for encrypt, taken in rates.items():
            name = f"staged{turn}{encrypt}"
            watch = subprocess.Popen(site.words("root", f"/usr/bin/python3 -c '{STAGED}' {name}", "node1"), stdout=subprocess.PIPE, text=True)
            lines = f'#TARN name = "{name}"\n#TARN data.d = {{ source = "{source}", encrypt = {encrypt} }}\n#TARN [[step]]\n#TARN in = ["d"]\n'
            site.alice(f"cat > staged.sh << 'END'\n#!/bin/bash\n#SBATCH -o staged.out -w node1\n{lines}cmp $TARN_d/f {source}/f\nEND")
            site.alice("sbatch -Q -W staged.sh")
            site.alice(WAIT)
            seconds = float(watch.communicate(timeout=60)[0])
            # What a named workflow has made stays until its end is named: the next would not fit.
            site.alice(f"tarn slurm end {name}")
            # The first round warms up.
            if turn > 0:
                taken.append(mib * MIB / 1e6 / seconds)
    plain, encrypted = (statistics.median(rates[encrypt]) for encrypt in ("false", "true"))
    return [report_result(f"staged encrypted, {mib} MiB", encrypted, "MB/s", "in clear", plain)]


# The functions of a burst buffer that does nothing: what is left is Slurm's own part.
RETURN_AT_ONCE = """
function slurm_bb_job_process() return slurm.SUCCESS, "" end
function slurm_bb_pools() return slurm.SUCCESS end
function slurm_bb_setup() return slurm.SUCCESS, "" end
function slurm_bb_data_in() return slurm.SUCCESS, "" end
function slurm_bb_test_data_in() return slurm.SUCCESS, "" end
function slurm_bb_real_size() return slurm.SUCCESS, "0" end
function slurm_bb_paths() return slurm.SUCCESS, "" end
function slurm_bb_pre_run() return slurm.SUCCESS, "" end
function slurm_bb_post_run() return slurm.SUCCESS, "" end
function slurm_bb_data_out() return slurm.SUCCESS, "" end
function slurm_bb_test_data_out() return slurm.SUCCESS, "" end
function slurm_bb_job_teardown() return slurm.SUCCESS, "" end
function slurm_bb_get_status() return slurm.SUCCESS, "" end
return slurm.SUCCESS
"""

# In place of tarn: when each stage of a job began and ended.
TIMED = """#!/bin/bash
began=$EPOCHREALTIME
/shared/bin/tarn "$@"
status=$?
echo "$2 $began $EPOCHREALTIME" >> /shared/stages
exit $status
"""

# Submits a job and waits until Slurm has completed it; prints the spans of sbatch, until its first instruction, and from its last one on.
ONE_JOB = """
import os, subprocess, sys, time
for name in ("began", "ended"):
    if os.path.exists(name):
        os.remove(name)
began = time.time()
job = subprocess.run(["sbatch", "--parsable", sys.argv[1]], check=True, capture_output=True, text=True).stdout.strip()
submitted = time.time()
while True:
    state = subprocess.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"], capture_output=True, text=True).stdout.strip()
    if state == "COMPLETED":
        break
    if state in ("FAILED", "CANCELLED") or time.time() > submitted + 300:
        sys.exit(f"job {job} is {state}")
    time.sleep(0.01)
over = time.time()
first, last = (float(open(name).read()) for name in ("began", "ended"))
print(submitted - began, first - submitted, over - last)
"""


def overhead(site, turns):
    """What tarn adds to a job whose data is there, from its submission to its first instruction and from its last one to its end."""
    named = '#TARN name = "overhead"\n#TARN data.d = {}\n#TARN data.r = {}\n#TARN [[step]]\n'
    head = "#!/bin/bash\n#SBATCH -N1 -n1 -o /dev/null\n"
    body = "echo $EPOCHREALTIME > ~/began\n{}echo $EPOCHREALTIME > ~/ended\n"
    scripts_of = {
        "makes": head + named + '#TARN out = ["d"]\nhead -c 1M /dev/urandom > $TARN_d/f\n',
        "plain": head + body.format(""),
        "at-once": head + named + '#TARN in = ["d"]\n' + body.format(""),
        "tarn": head + named + '#TARN in = ["d"]\n#TARN out = ["r"]\n' + body.format("cat $TARN_d/f > $TARN_r/f\n"),
    }
    for name, text in scripts_of.items():
        site.alice(f"cat > {name}.sh << 'END'\n{text}END")
    site.alice(f"cat > one.py << 'END'\n{ONE_JOB}END")
    for name, text in (("timed", TIMED), ("at-once.lua", RETURN_AT_ONCE)):
        with open(os.path.join(site.shared, name), "w", encoding="ascii") as file:
            file.write(text)
    lua = "/etc/slurm/burst_buffer.lua"
    stages = os.path.join(site.shared, "stages")
    site.root(f"touch /shared/stages; chmod 666 /shared/stages; chmod 755 /shared/timed; sed 's,/shared/bin/tarn,/shared/timed,' {lua} > /shared/tarn.lua")
    site.alice("sbatch -Q -W makes.sh")
    spans = {name: [] for name in ("plain", "at-once", "tarn")}
    own = {}
    for turn in range(turns + 1):
        for name, taken in spans.items():
            site.root(f"cp /shared/{'at-once' if name == 'at-once' else 'tarn'}.lua {lua}")
            open(stages, "w", encoding="ascii").close()
            spent = [float(span) for span in site.alice(f"/usr/bin/python3 one.py {name}.sh").split()]
            time.sleep(0.5)
            if turn == 0:
                continue
            taken.append(spent)
            with open(stages, encoding="ascii") as file:
                for line in file:
                    stage, began, ended = line.split()
                    own.setdefault(stage, []).append(float(ended) - float(began))
            print(f"  {name}: sbatch {spent[0]:.3f}, to the first instruction {spent[1]:.3f}, from the last {spent[2]:.3f} s", file=sys.stderr)
    site.root(f"cp /shared/tarn.lua {lua}")
    site.alice("tarn slurm end overhead")
    medians = {name: [statistics.median(column) for column in zip(*taken)] for name, taken in spans.items()}
    results = []
    for at, what in enumerate(("sbatch", "to the first instruction", "from the last instruction on")):
        tarn, plain, at_once = (medians[name][at] for name in ("tarn", "plain", "at-once"))
        results.append(report_result(f"{what}, with tarn", tarn, "s", "without lines", plain))
        results.append(report_result(f"{what}, with tarn and", tarn, "s", "functions that return at once", at_once))
    for stage, taken in own.items():
        results.append(report_result(f"stage {stage} by itself", statistics.median(taken), "s", "slowest", max(taken)))
    added = [sum(medians["tarn"]) - sum(medians[name]) for name in ("plain", "at-once")]
    results.append(report_result("what tarn and Slurm's burst buffer add", added[0], "s", "goal", 0.3))
    results.append(report_result("what tarn adds to Slurm's burst buffer", added[1], "s", "goal", 0.3))
    return results


def measured(site, a, external, moved):
    """The results that the options name."""
    if a.only == "crowd":
        return crowd(site, a.queued, a.rounds, a.seconds, report_result)
    results = overhead(site, a.rounds) if a.only != "staging" else []
    if a.only != "overhead":
        results += staging(site, external, a.rounds, 4 * a.mib)
    if a.only is None:
        results += moved_bytes(site, external, moved, a.mib) + costs(site, a.turns, a.jobs)
    return results


def main():
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tarn", help="the tarn program, built with --release, tarnd beside it")
    parser.add_argument("--dir", default="/var/tmp", help="where the cluster and the store get a folder; not /tmp (default /var/tmp)")
    parser.add_argument("--turns", type=int, default=100, help="submissions of each kind (default 100)")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs submitted while sinfo is asked (default 1000)")
    parser.add_argument("--mib", type=int, default=64, help="size of what the workflow reads and of each intermediate (default 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of staging, of jobs one by one, and of windows of --only crowd (default 5)")
    parser.add_argument("--queued", type=int, default=5000, help="jobs that wait in --only crowd (default 5000)")
    parser.add_argument("--seconds", type=int, default=20, help="length of a window of --only crowd (default 20)")
    parser.add_argument("--only", choices=("staging", "overhead", "crowd"), help="measure this alone; crowd is measured only so")
    parser.add_argument("--parameters", choices=("test", "default"), default="test", help="SchedulerParameters: the test cluster's, or Slurm's defaults (default test)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON, as is done in any case")
    a = parser.parse_args()
    # What is up is taken down then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="bench-site-", dir=a.dir) as work:
        work = os.path.realpath(work)
        os.chmod(work, 0o755)
        conf = CONF + (DEFAULTS if a.parameters == "default" else "")
        etc = configuration(os.path.abspath(a.tarn), os.path.join(work, "root"), conf)
        folder = os.path.join(work, "cluster")
        with store(work, 12 * a.mib + 64) as (external, moved), cluster(folder, 2, 4000, 1024, ["--etc", etc]) as alice:
            os.makedirs(os.path.join(folder, "shared", "bin"), exist_ok=True)
            for name in ("tarn", "tarnd"):
                shutil.copy2(os.path.join(os.path.dirname(os.path.abspath(a.tarn)), name), os.path.join(folder, "shared", "bin"))
            site = Site(folder, alice, 2, 'mode = "drive"\n' if a.only == "crowd" else None)
            results = measured(site, a, external, moved)
    machine = {"cores": os.cpu_count(), "kernel": os.uname().release}
    print(json.dumps({"schema": 1, "bench": "site", "machine": machine, "parameters": a.parameters, "results": results}))


if __name__ == "__main__":
    main()
