"""Nodes that are network namespaces of this machine, each with a tarnd, on one switch; the links of those with storage are held to a rate."""

import contextlib
import os
import shutil
import subprocess
import time

from experiment import need, run, report_progress

PORT = 7400


def need_nodes():
    """Ends unless they can be made here."""
    how = "Debian's iproute2 has it"
    need({"ip": how, "tc": how}, root=True)


class Nodes:
    """Storage nodes `s1` and so on with a dataspace `fast` in memory each, and nodes `c1` and so on without any."""

    def __init__(self, bench, folder):
        self.bench, self.folder, self.tag = bench, folder, f"tarn{os.getpid() % 100000}"
        self.names, self.tarnds = [], []

    def inside(self, name, *words):
        """A command on a node."""
        return ["ip", "netns", "exec", f"{self.tag}{name}", *map(str, words)]

    def environment(self, name):
        """In which programs find the tarnd of a node."""
        return {**os.environ, "TARN_SOCKET": os.path.join(self.folder, f"{name}.socket")}

    def tarn(self, name, *words):
        """What tarn says on a node."""
        return run(self.inside(name, self.bench.tarn, *words), env=self.environment(name))

    def up(self, storage, others, mbit, mib):
        """Makes them, MiB a dataspace, Mbit/s each way a link of a storage node."""
        switch = f"{self.tag}sw"
        run(["ip", "netns", "add", switch])
        run(["ip", "-n", switch, "link", "add", "switch", "type", "bridge"])
        run(["ip", "-n", switch, "link", "set", "switch", "up"])
        names = [f"s{n}" for n in range(1, storage + 1)] + [f"c{n}" for n in range(1, others + 1)]
        peers = [f'key = "{os.urandom(32).hex()}"']
        for at, name in enumerate(names, 1):
            self.names.append(name)
            node = f"{self.tag}{name}"
            run(["ip", "netns", "add", node])
            run(["ip", "-n", switch, "link", "add", name, "type", "veth", "peer", "name", "net", "netns", node])
            run(["ip", "-n", switch, "link", "set", name, "master", "switch", "up"])
            run(["ip", "-n", node, "addr", "add", f"10.77.0.{at}/24", "dev", "net"])
            for link in ("lo", "net"):
                run(["ip", "-n", node, "link", "set", link, "up"])
            if name.startswith("s"):
                # The burst holds 4 ms, and no less than two packets of 64 KiB, as the kernel has them; a queue too short for all streams at once would measure losses.
                shape = ["root", "tbf", "rate", f"{mbit}mbit", "burst", max(mbit * 500, 131072), "latency", "400ms"]
                run(["tc", "-n", node, "qdisc", "add", "dev", "net", *shape])
                run(["tc", "-n", switch, "qdisc", "add", "dev", name, *shape])
            peers.append(f'[nodes.{name}]\naddress = "10.77.0.{at}:{PORT}"')
        for name in names:
            self.start(name, "\n".join(peers) + "\n", mib)

    def start(self, name, peers, mib):
        """Starts the tarnd of a node."""
        file = os.path.join(self.folder, f"{name}.peers")
        with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as out:
            out.write(peers)
        words = [os.path.join(os.path.dirname(self.bench.tarn), "tarnd"), "--node-name", name, "--socket", os.path.join(self.folder, f"{name}.socket")]
        words += ["--state", os.path.join(self.folder, f"{name}.state"), "--peers", file]
        if name.startswith("s"):
            space = os.path.join(self.folder, name)
            os.makedirs(space, mode=0o700)
            words += ["--space", f"fast={space}:{mib}MiB"]
        with open(os.path.join(self.folder, f"{name}.log"), "wb") as log:
            self.tarnds.append(subprocess.Popen(self.inside(name, *words), stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        for _ in range(200):
            if os.path.exists(os.path.join(self.folder, f"{name}.socket")):
                return
            time.sleep(0.05)
        with open(os.path.join(self.folder, f"{name}.log"), encoding="utf-8") as log:
            raise SystemExit(f"tarnd of {name} does not start: {log.read()[-2000:]}")

    def down(self):
        """Nothing is left of them."""
        for tarnd in self.tarnds:
            tarnd.terminate()
        for tarnd in self.tarnds:
            tarnd.wait()
        for name in [*self.names, "sw"]:
            subprocess.run(["ip", "netns", "del", f"{self.tag}{name}"], capture_output=True, check=False)

    def block(self, name, partition):
        """The URI of a partition that a node serves to programs as a block device."""
        socket = os.path.join(self.folder, f"{name}-{partition.replace(':', '-').replace('/', '-')}.nbd")
        return served(self.inside(name, self.bench.tarn), socket, partition, self.environment(name))


@contextlib.contextmanager
def served(tarn, socket, partition, env=None):
    """The URI of a partition, served as a block device by this command."""
    server = subprocess.Popen([*tarn, "block", "serve", "--socket", socket, partition], env=env, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            if os.path.exists(socket):
                break
            if server.poll() is not None:
                raise SystemExit(f"tarn block serve ended with {server.returncode}")
            time.sleep(0.05)
        yield f"nbd+unix:///?socket={socket}"
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def nodes(bench, storage, others, mbit, mib):
    """Such nodes, for as long as the block lasts."""
    folder = f"/dev/shm/tarn-nodes-{os.getpid()}"
    os.makedirs(folder, mode=0o700)
    made = Nodes(bench, folder)
    report_progress(f"{storage} storage nodes at {mbit} Mbit/s each, {others} without storage")
    try:
        made.up(storage, others, mbit, mib)
        yield made
    finally:
        made.down()
        shutil.rmtree(folder, ignore_errors=True)
