"""IOR's two patterns, a file per process and one shared file, by IOR where it is installed, by a stand-in (ior.c) otherwise."""

import os
import re
import shutil

from experiment import TOP, need, run

STAND_IN = os.path.join(TOP, "research", "experiments", "ior.c")
APIS = {"posix": "POSIX", "mpiio": "MPIIO"}
VERSION = re.compile(r"^IOR-(\S+): MPI Coordinated Test", re.MULTILINE)
PHASE = re.compile(r"^(write|read) +([\d.]+)$", re.MULTILINE)


def table(output):
    """Seconds by phase of IOR's own output: the table between `access` and `Max`, its column `total(s)`; the summary has such lines, too."""
    found, columns = {}, None
    for line in output.splitlines():
        words = line.split()
        if words[:1] == ["access"]:
            columns = words
        elif words[:1] in (["Max"], ["Summary"]):
            columns = None
        elif columns and words[:1] in (["write"], ["read"]) and len(words) == len(columns):
            found[words[0]] = float(words[columns.index("total(s)")])
    return found


def seconds(output):
    """Seconds by phase, whichever of the two has said it."""
    found = table(output) or {what: float(taken) for what, taken in PHASE.findall(output)}
    if set(found) != {"write", "read"}:
        raise SystemExit(f"IOR tells no seconds of writing and reading:\n{output[-2000:]}")
    return found


class Ior:
    """Which of the two there is."""

    def __init__(self, folder, how):
        need({"mpirun": how})
        self.installed, self.version = shutil.which("ior"), None
        if self.installed:
            self.program = os.path.realpath(self.installed)
        else:
            need({"mpicc": how})
            self.program = os.path.join(folder, "ior")
            run(["mpicc", "-O2", "-o", self.program, STAND_IN])

    def seconds(self, output):
        """Seconds by phase, and IOR's version is kept, as it prints it."""
        version = VERSION.search(output)
        self.version = version[1] if version else self.version
        return seconds(output)

    def name(self):
        """In words, which it was."""
        if self.installed:
            return f"IOR {self.version or 'of a version that it does not print'} ({self.installed})"
        return "a stand-in for IOR (research/experiments/ior.c), as no `ior` is in the PATH"

    def words(self, api, pattern, block, blocks, file, program=None):
        """A rank's command: so many blocks of so many bytes, written and synced, then what the next rank has written read and compared."""
        program = program or self.program
        if not self.installed:
            return [program, api, pattern, str(block), str(blocks), file]
        shape = ["-F", "-b", str(block * blocks)] if pattern == "fpp" else ["-b", str(block), "-s", str(blocks)]
        return [program, "-a", APIS[api], "-w", "-r", "-R", "-C", "-e", "-t", str(block), *shape, "-o", file]


def root():
    """Open MPI's leave to run as root."""
    return ["--allow-run-as-root"] if os.geteuid() == 0 else []
