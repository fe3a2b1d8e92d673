#!/usr/bin/python3
"""Data-parallel training (PyTorch, gloo) that goes on where it was when a node is lost with all that it had.

    train.py [--steps 200] [--width 256] [--checkpoints phx|file|none] [--every 1] [--file PATH]

One process a rank: $RANK, $WORLD_SIZE, $MASTER_ADDR and $MASTER_PORT as torchrun sets them, or Slurm's variables and the last two
(train.sbatch). With `phx` a commit after every N steps keeps model and optimizer in the node's memory, and a copy in the memory of
another rank's node; nothing is pickled. With `file` rank 0 writes them to one file by torch.save, for comparison.
"""

import argparse
import math
import os
import time

import torch
import torch.distributed

BATCH = 128  # of each rank


def number(*names):
    """The first of these variables that is set."""
    return int(next(os.environ[name] for name in names if name in os.environ))


def spirals(rank, step):
    """Points of two spirals and which one each is of. They follow from the step, so that they are the same after a restart."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    which = torch.randint(0, 2, (BATCH, 1), generator=generator).float()
    angle = torch.rand(BATCH, 1, generator=generator) * 3 * math.pi
    turned = angle + which * math.pi
    points = torch.cat((turned.cos(), turned.sin()), 1) * angle / 10
    return points + torch.randn(BATCH, 2, generator=generator) * 0.02, which


def network(width):
    """A classifier, and Adam with its state made: it takes one step with gradients of zero, which moves nothing."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for state in optimizer.state.values():
        state["step"].zero_()
    return model, optimizer


def tensors(state, path):
    """The tensors in a state dict, by path."""
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from tensors(value, f"{path}/{key}")


class Memory:
    """Checkpoints in memory: the tensors themselves are registered."""

    def __init__(self, rank, ranks, state, step):
        import tarn

        self.checkpoints = tarn.checkpoint.Checkpoints(run="training", rank=rank, ranks=ranks, copies=1 if ranks > 1 else 0)
        for key, tensor in [*tensors(state, "training"), ("step", step)]:
            # Tensors of any type, as bytes. A tensor on a GPU has no memory that can be registered: keep a copy on the CPU.
            self.checkpoints.register(key, tensor.detach().view(-1).view(torch.uint8).numpy())

    def restart(self):
        """The name of the version that all was filled from."""
        return self.checkpoints.restart()

    def commit(self):
        """Keeps all as it is now."""
        self.checkpoints.commit()

    def safe(self):
        """The newest version that any one node can be lost of."""
        return self.checkpoints.stats().replicated

    def close(self):
        """Ends."""
        self.checkpoints.close()


class File:
    """Checkpoints as a file that all ranks see, which rank 0 writes."""

    def __init__(self, rank, path, state, step):
        self.rank, self.path, self.state, self.step = rank, path, state, step

    def restart(self):
        if not os.path.exists(self.path):
            return None
        found = torch.load(self.path)
        for (key, tensor), (other, value) in zip([*tensors(self.state, ""), ("step", self.step)], found):
            assert key == other
            tensor.detach().copy_(value)
        return "file"

    def commit(self):
        if self.rank == 0:
            part = f"{self.path}.part"
            with open(part, "wb") as file:
                torch.save([*tensors(self.state, ""), ("step", self.step)], file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path)

    def safe(self):
        return int(self.step)

    def close(self):
        """Nothing is open."""


class Nothing:
    """No checkpoints."""

    def restart(self):
        return None

    def commit(self):
        """Keeps nothing."""

    def safe(self):
        return 0

    def close(self):
        """Nothing is open."""


def main(a):
    torch.set_num_threads(1)
    rank, ranks = number("RANK", "SLURM_PROCID"), number("WORLD_SIZE", "SLURM_NTASKS")
    # Debian 13's PyTorch asks for libuv by default, and is built without it.
    os.environ.setdefault("USE_LIBUV", "0")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    model, optimizer = network(a.width)
    step = torch.zeros(1, dtype=torch.int64)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}
    began = time.monotonic()
    kept = {"phx": lambda: Memory(rank, ranks, state, step), "file": lambda: File(rank, a.file, state, step), "none": Nothing}[a.checkpoints]()
    version = kept.restart()
    ready = time.monotonic()
    if rank == 0:
        print(f"from {version}, step {step.item()}, {ready - began:.3f} s", flush=True)
    loss = torch.zeros(1)
    while step < a.steps:
        step += 1
        points, which = spirals(rank, step.item())
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points), which)
        loss.backward()
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        if step % a.every == 0:
            kept.commit()
        if rank == 0 and step % 5 == 0:
            print(f"step {step.item()}, loss {loss.item():.9f}, safe {kept.safe()}", flush=True)
    ended = time.monotonic()
    kept.close()
    if rank == 0:
        print(f"done, step {step.item()}, loss {loss.item():.9f}, {ended - ready:.3f} s", flush=True)


if __name__ == "__main__":
    words = argparse.ArgumentParser()
    words.add_argument("--steps", type=int, default=200)
    words.add_argument("--width", type=int, default=256)
    words.add_argument("--checkpoints", choices=("phx", "file", "none"), default="phx")
    words.add_argument("--every", type=int, default=1)
    words.add_argument("--file", default="checkpoint.pt")
    main(words.parse_args())
