"""Jobs that come at given times, on a real Slurm with an emulated external store, without tarn or with its site service in a mode."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import cluster
from experiment import check_bounds, claim, need

sys.path.insert(1, os.path.join(cluster.TOP, "bench"))
from slurm import CLUSTER, ControllerRefused, Site, configuration, done  # noqa: E402

NEEDS = [cluster.NEEDS, "GlusterFS for the external store (scripts/deps.sh test)"]
# The way without tarn, and the modes of its site service.
BACKFILL = "backfill"
MODES = (BACKFILL, "observe", "advise", "drive")
# As a site with short jobs would choose: Slurm's own are 3 s, 60 s, 2 s, 30 s and 60 s, and times here are scaled.
SCHEDULER = "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,bf_resolution=1"
ACCOUNTING = "/var/log/slurm/jobcomp.log"
CONF = f"MaxJobCount=20000\nSchedulerParameters={SCHEDULER}\nJobCompType=jobcomp/filetxt\nJobCompLoc={ACCOUNTING}\n"
# A node's link to the store, and how many bytes of files a second go over it either way (measured before each run).
MBIT, RATE = 16, 1.85e6
# MiB of a job on a node: its files on the tier count; of a node, and of its tier.
JOB_MEMORY, MEMORY, TIER = 1500, 4000, 1024
# The program of a job on each of its nodes: from a folder, its part of it read; seconds; then for each output a folder and bytes.
PART = r"""#!/bin/bash
set -eu
part=p$SLURM_PROCID from=$1 bytes=$2
if [ "$bytes" -gt 0 ]; then [ "$(head -c "$bytes" "$from/$part" | wc -c)" -eq "$bytes" ]; fi
sleep "$3"
shift 3
while [ $# -gt 0 ]; do
    yes "$SLURM_PROCID" | head -c "$2" > "$1/$part"
    shift 2
done
"""
# Micros to read a file of so many bytes, and to write one.
RATES = r"""
took() { local from; from=$(date +%s%N); "$@"; echo $((($(date +%s%N) - from) / 1000)); }
took dd if=/store/rate/p0 of=/dev/null bs=1M status=none
took dd if=/dev/zero of=/store/rate/$(hostname) bs=1M count=$0 iflag=count_bytes status=none
"""
# Submits what plan.json names, each at its time. Words may have the numbers of jobs before: {NAME}.
SUBMIT = r"""
import json, subprocess, time
with open("plan.json") as file:
    plan = json.load(file)
began, ids, at, under_way = time.time(), {}, {}, []
for item in plan:
    time.sleep(max(0, began + item["at"] - time.time()))
    words = [word.format(**ids) for word in item["words"]]
    for name in item["names"]:
        at[name] = time.time()
    if words[0] == "sbatch":
        ids[item["names"][0]] = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.split(";")[0].strip()
    else:
        under_way.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
if any([process.wait() for process in under_way]):
    raise SystemExit("a workflow was not submitted")
print(json.dumps({"began": began, "at": at}))
"""
# Until no job waits or runs, for so many seconds at most; one that can never run is an error.
WAIT = r"""
for i in $(seq {seconds}); do
    left=$(squeue -h -t PD,R,CG,CF,SO -o "%i %j %T %r")
    [ -n "$left" ] || exit 0
    ! grep -E 'NeverSatisfied|JobHeldUser|JobHeldAdmin|BadConstraints' <<< "$left" >&2 || exit 1
    sleep 1
done
echo "after {seconds} s there are still: $left" >&2
exit 1
"""


class NotMeasured(Exception):
    """A mode that this tarn does not have, and why."""


class Job(NamedTuple):
    """A job as it is submitted: its limit in minutes, its command, the job that it waits for, its `#TARN` lines, its workflow."""

    name: str
    nodes: int
    minutes: int
    body: str
    at: float = 0.0
    after: str | None = None
    lines: Sequence[str] = ()
    flow: str | None = None

    def script(self):
        """Its text. It notes when its first command ran, and its last."""
        head = f"#SBATCH -J {self.name} -N{self.nodes} --ntasks-per-node=1 --exclusive --mem={JOB_MEMORY} -t {self.minutes} -o {self.name}.out\n"
        lines = "".join(f"#TARN {line}\n" for line in self.lines)
        return f"#!/bin/bash\n{head}{lines}set -e\ndate +%s.%N > {self.name}.begin\n{self.body}\ndate +%s.%N > {self.name}.end\n"


def part(source, read, seconds, *outputs):
    """The command of a job that reads, computes and writes on each of its nodes: bytes of a node, and a folder and bytes for each output."""
    words = [source or "-", round(read), f"{seconds:.3f}", *[word if isinstance(word, str) else round(word) for word in outputs]]
    return "srun --mpi=none --kill-on-bad-exit=1 /shared/bin/part " + " ".join(map(str, words))


class Machine:
    """A cluster that is up, for one run."""

    def __init__(self, folder, alice, nodes):
        self.folder, self.alice, self.nodes = folder, alice, nodes
        self.home = os.path.join(folder, "shared", "home", "alice")

    def root(self, script, node=None):
        """Runs a script as root."""
        where = ["--node", node] if node else []
        return done([CLUSTER, "exec", "--dir", self.folder, *where, "--user", "root", "--", "bash", "-c", script])

    def fill(self, folders):
        """Makes folders on the store: name, parts, bytes of each part."""
        lines = [f"mkdir -p -m 1777 /store/{name}; for i in $(seq 0 {parts - 1}); do yes | head -c {round(size)} > /store/{name}/p$i; done" for name, parts, size in folders]
        self.root("umask 022\n" + "\n".join(lines) + "\nchmod 1777 /store/*")

    def rates(self, seconds=2.0):
        """MB/s to read and to write at the store, all nodes at once: of all nodes the least and the greatest."""
        size = round(RATE * seconds)
        self.fill([("rate", 1, size)])
        command = [CLUSTER, "exec", "--dir", self.folder, "--user", "root", "--node"]
        running = [subprocess.Popen([*command, f"node{n}", "--", "bash", "-c", RATES, str(size)], stdout=subprocess.PIPE, text=True) for n in range(1, self.nodes + 1)]
        taken = [list(map(int, process.communicate()[0].split())) for process in running]
        self.root("rm -r /store/rate")
        rates = [[size / micros for micros in column] for column in zip(*taken)]
        return [(min(rate), max(rate)) for rate in rates]

    def audit(self, bound):
        """How many ordinary jobs a job with data lines delayed beyond the bound, in seconds, by Slurm's accounting and limits."""
        report = self.root(f"/shared/bin/tarn slurm audit --json --bound {math.ceil(bound)}s || [ $? -eq 1 ]")
        return json.loads(report)["delayed"]

    def keep_logs(self, folder):
        """Copies the logs of Slurm's and tarn's controllers."""
        os.makedirs(folder, exist_ok=True)
        self.root(f"rm -rf /shared/logs; mkdir /shared/logs; cp {ACCOUNTING} /var/log/slurm/slurmctld.log /shared/logs; cp /shared/controller.log /shared/controller/*.log /shared/logs 2> /dev/null || true")
        shutil.copytree(os.path.join(self.folder, "shared", "logs"), folder, dirs_exist_ok=True)

    def version(self):
        """Slurm's."""
        return self.alice("sinfo --version").split()[1]

    def run(self, jobs, longest, together=False):
        """Submits jobs at their times, workflows together by `tarn submit` or each job by sbatch, and waits for the end of all, so many seconds at most.

        Of each job, in seconds since the first submission: `submitted`; `started` and `ended` by Slurm, in whole seconds; `began` and
        `left`, its script's first command and its last; and its `nodes`.
        """
        for job in jobs:
            with open(os.path.join(self.home, f"{job.name}.sh"), "w", encoding="ascii") as file:
                file.write(job.script())
        with open(os.path.join(self.home, "plan.json"), "w", encoding="ascii") as file:
            json.dump(planned(jobs, together), file)
        submitted = json.loads(self.alice(f"/usr/bin/python3 -c '{SUBMIT}'"))
        self.alice(WAIT.replace("{seconds}", str(round(longest))))
        return self.accounts(jobs, submitted)

    def accounts(self, jobs, submitted):
        """What Slurm and the jobs themselves have noted of their times."""
        records = {}
        for line in self.root("scontrol -o show job").splitlines():
            fields = dict(re.findall(r"(\w+)=(\S*)", line))
            # Comments have lines of their own.
            if "JobName" in fields:
                records[fields["JobName"]] = fields
        began, found = submitted["began"], {}
        for job in jobs:
            fields = records.get(job.name, {})
            if fields.get("JobState") != "COMPLETED":
                with open(os.path.join(self.home, f"{job.name}.out"), encoding="utf-8", errors="replace") as file:
                    sys.exit(f"job {job.name} ended as {fields.get('JobState')}: {file.read()[-1000:]}")
            mine = {"submitted": submitted["at"][job.name] - began, "nodes": hosts(fields["NodeList"])}
            for key, field in (("started", "StartTime"), ("ended", "EndTime")):
                mine[key] = time.mktime(time.strptime(fields[field], "%Y-%m-%dT%H:%M:%S")) - began
            for key, ending in (("began", "begin"), ("left", "end")):
                with open(os.path.join(self.home, f"{job.name}.{ending}"), encoding="ascii") as file:
                    mine[key] = float(file.read()) - began
            found[job.name] = mine
        return found


def planned(jobs, together):
    """Who is submitted when, and how: with `together`, a workflow's jobs with lines by one `tarn submit`; all others by sbatch."""
    plan = []
    for job in jobs:
        if not (together and job.flow and job.lines):
            # A job with lines waits for the makers of what it reads by these.
            wait = ["-d", f"afterok:{{{job.after}}}"] if job.after and not job.lines else []
            plan.append({"at": job.at, "names": [job.name], "words": ["sbatch", "--parsable", *wait, f"{job.name}.sh"]})
            continue
        members = [member.name for member in jobs if member.flow == job.flow]
        if members[0] == job.name:
            plan.append({"at": job.at, "names": members, "words": ["tarn", "submit", *[f"{name}.sh" for name in members]]})
    return plan


def hosts(text):
    """Numbers of nodes, from a list of Slurm's: `node[1-3,7]`."""
    numbers = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def site_config(mode, bound):
    """The text of site.toml for a mode; `advise` is what tarn does where none is named."""
    return None if mode == "advise" else f'mode = "{mode}"\nbound = "{math.ceil(bound)}s"\n'


def last_words(log):
    """The error in the last line of a log, as one line, without what would be right instead."""
    words = re.sub(r"^.*? ERROR ", "", log.splitlines()[-1]).replace("\\n", " ")
    return " ".join(re.sub(r", expected one of .*", "", words).split())


@contextlib.contextmanager
def machine(bench, nodes, mode, bound):
    """A cluster with a store, without tarn or with its site service in a mode, `bound` seconds its bound for ordinary jobs.

    Raises `NotMeasured` where this tarn refuses the mode.
    """
    top = os.path.join(bench.folder, "run")
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(top)
    os.chmod(bench.folder, 0o755)
    os.chmod(top, 0o755)
    if mode == BACKFILL:
        etc = os.path.join(top, "etc")
        os.mkdir(etc)
        with open(os.path.join(etc, "slurm.conf"), "w", encoding="ascii") as file:
            file.write(CONF)
    else:
        etc = configuration(bench.tarn, os.path.join(top, "root"), CONF)
    folder = os.path.join(top, "cluster")
    try:
        with cluster.cluster(folder, nodes, MEMORY, TIER, ["--etc", etc]) as alice:
            made = Machine(folder, alice, nodes)
            programs = os.path.join(folder, "shared", "bin")
            os.makedirs(programs, exist_ok=True)
            path = os.path.join(programs, "part")
            with open(path, "w", encoding="ascii") as file:
                file.write(PART)
            os.chmod(path, 0o755)
            done([CLUSTER, "add-store", "--dir", folder, MBIT, 0])
            if mode != BACKFILL:
                for name in ("tarn", "tarnd"):
                    shutil.copy2(os.path.join(os.path.dirname(bench.tarn), name), programs)
                try:
                    Site(folder, alice, nodes, site_config(mode, bound))
                except ControllerRefused as refused:
                    raise NotMeasured(f"this tarn refuses mode {mode}: {last_words(str(refused))}") from refused
            try:
                yield made
            finally:
                if bench.options.logs:
                    made.keep_logs(os.path.join(bench.options.logs, f"{time.strftime('%H%M%S')}-{mode}"))
    finally:
        shutil.rmtree(top, ignore_errors=True)


def need_machine(bench, memory):
    """Ends unless such a cluster can be made here; MiB of memory."""
    how = "scripts/deps.sh test installs it"
    need({"glusterfs": how, "glusterfsd": how}, memory=memory, disk=(bench.folder, 512))
    cluster.need_cluster(bench)


def name_of(mode):
    """A mode, as a text."""
    return "Slurm alone" if mode == BACKFILL else f"tarn, {mode}"


def audited(words, delayed):
    """The claim that the auditor, which reads only Slurm's accounting, finds no ordinary job delayed beyond the bound; of each run how many it found."""
    here = f"{', '.join(map(str, delayed))} jobs in {len(delayed)} {'run' if len(delayed) == 1 else 'runs'}"
    return claim(f"{words}the auditor finds no ordinary job that a job with data delayed beyond the bound", "tarn's own", here, check_bounds(delayed, most=0))


def options(words):
    """Options of an experiment on such clusters."""
    words.add_argument("--modes", default="backfill,advise,drive", help="the ways, backfill the first: backfill (Slurm alone), and modes of tarn's site service: observe, advise, drive (default backfill,advise,drive)")
    words.add_argument("--logs", help="a folder for the logs of Slurm's and tarn's controllers, of each run")
    words.add_argument("--scale", type=float, help="seconds that a second of the original takes")


def modes_of(bench):
    """The ways that were asked for, the first backfill."""
    modes = bench.options.modes.split(",")
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or modes[0] != BACKFILL or len(set(modes)) != len(modes):
        sys.exit(f"--modes {bench.options.modes}: give backfill and then some of {', '.join(MODES[1:])}, each once")
    return modes
