"""What the benchmarks on a real Slurm cluster have in common."""

import contextlib
import os
import statistics
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(os.path.join(TOP, "research", "experiments"))
from experiment import run

CLUSTER = os.path.join(TOP, "tests", "cluster", "slurm-cluster")


def done(command):
    """What a command says; it must succeed."""
    return run(command, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def cluster(folder, nodes, memory, tier, options=()):
    """A cluster, which ends with the block; MiB of a node and of its tier; further options. Runs scripts on its login node."""
    command = [CLUSTER, "hold", "--dir", folder, "--nodes", str(nodes), "--memory", str(memory), "--tier", str(tier), *options]
    with open(os.path.join(os.path.dirname(folder), "cluster.log"), "w", encoding="utf-8") as log:
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        if holder.stdout.readline() != "ready\n":
            # The file may go with its folder.
            with open(log.name, encoding="utf-8", errors="replace") as log_file:
                sys.exit(f"{log_file.read()[-4000:].strip()}\nno cluster came up: {' '.join(command[:4])}")
        yield lambda script: done([CLUSTER, "exec", "--dir", folder, "--", "bash", "-c", script])
    finally:
        holder.stdin.close()
        holder.wait()


class ControllerRefused(SystemExit):
    """The controller has ended, as with a configuration that it refuses; with its log's end. Where nobody minds, the program ends by it."""


class Site:
    """A cluster with the controller on its login node and a tarnd on each node. `config`: the text of site.toml."""

    def __init__(self, folder, alice, nodes, config=None):
        self.folder, self.alice, self.shared = folder, alice, os.path.join(folder, "shared")
        for number in range(1, nodes + 1):
            name = f"node{number}"
            command = f"setsid /shared/bin/tarnd --site --store /scm/tarn:900MiB --volatile --node-name {name} < /dev/null > /shared/{name}.log 2>&1 &"
            self.root(command, name)
        self.options, self.nodes = "", nodes
        if config is not None:
            with open(os.path.join(self.shared, "site.toml"), "w", encoding="ascii") as file:
                file.write(config)
            self.options = "--config /shared/site.toml"
        self.start_controller()

    def start_controller(self):
        """Starts the controller, and waits until all nodes take its orders."""
        command = f"setsid /shared/bin/tarnd --controller --state /shared/controller {self.options} < /dev/null >> /shared/controller.log 2>&1 & echo $! > /run/controller.pid"
        self.root(command)
        for _ in range(600):
            status = subprocess.run(self.words("alice", "/shared/bin/tarn slurm status"), capture_output=True, text=True, check=False).stdout
            if status.count(" up ") == self.nodes:
                return
            if subprocess.run(self.words("root", "kill -0 $(cat /run/controller.pid)"), capture_output=True, check=False).returncode != 0:
                with open(os.path.join(self.shared, "controller.log"), encoding="utf-8", errors="replace") as log:
                    raise ControllerRefused(log.read().strip()[-1000:] or "it ended without a word")
            time.sleep(0.1)
        sys.exit(f"not all nodes take orders:\n{status}")

    def stop_controller(self):
        """Ends the controller, and waits for that."""
        self.root("kill $(cat /run/controller.pid); for i in $(seq 300); do kill -0 $(cat /run/controller.pid) 2> /dev/null || exit 0; sleep 0.1; done; exit 1")

    def words(self, user, script, node=None):
        """How a script is run in the cluster."""
        where = ["--node", node] if node else []
        return [CLUSTER, "exec", "--dir", self.folder, *where, "--user", user, "--", "bash", "-c", script]

    def root(self, script, node=None):
        """Runs a script as root."""
        return done(self.words("root", script, node))


def configuration(tarn, folder, conf="MaxJobCount=20000\n"):
    """Slurm's files for a site, as `tarn slurm install` writes them, with the SPANK plug-in. `conf`: lines of slurm.conf."""
    etc = os.path.join(folder, "etc", "slurm")
    os.makedirs(etc)
    with open(os.path.join(etc, "slurm.conf"), "w", encoding="ascii") as file:
        file.write(conf)
    done([os.path.join(TOP, "scripts", "spank.sh"), etc])
    done([tarn, "slurm", "install", "--root", folder, "--conf", "/etc/slurm", "--program", "/shared/bin/tarn", "--plugin", "/etc/slurm/spank_tarn.so"])
    return etc


def turns(runs, cases):
    """Medians of the cases, run in turns after one run each that does not count, and all that counts."""
    seconds = {name: [] for name in cases}
    for turn in range(runs + 1):
        for name, case in cases.items():
            taken = case()
            print(f"  {name}: {taken:.2f} s", file=sys.stderr)
            if turn > 0:
                seconds[name].append(taken)
    return {name: statistics.median(taken) for name, taken in seconds.items()}, seconds
