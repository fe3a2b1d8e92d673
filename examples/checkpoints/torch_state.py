"""Training that goes on where it was: what a model's and its optimizer's state dicts hold is registered in place, and each commit keeps
it. Nothing is pickled, and a commit copies each tensor once. Prints the same loss at the end however often it was killed in between.

    torch_state.py [STEPS]      $TARN_PHX_TIER is a folder on the persistent tier
"""

import sys

import torch

import tarn


def tensors(state, path):
    """The tensors in a state dict, by path."""
    if isinstance(state, torch.Tensor):
        yield path, state
    elif isinstance(state, dict):
        for key, value in state.items():
            yield from tensors(value, f"{path}/{key}")


def register(ck, path, state):
    """Makes objects of them. Tensors of any type are registered as bytes; a tensor on a GPU has no memory that can be: train on a
    copy on the CPU, or copy to one before each commit."""
    for key, tensor in tensors(state, path):
        ck.register(key, tensor.detach().view(-1).view(torch.uint8).numpy())


def with_state(optimizer):
    """Adam makes its state in its first step: here it takes one with gradients of zero, which moves nothing."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for state in optimizer.state.values():
        state["step"].zero_()
    return optimizer


def main(steps):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = with_state(torch.optim.Adam(model.parameters(), lr=0.01))
    step = torch.zeros(1, dtype=torch.int64)
    with tarn.checkpoint.Checkpoints(run="torch-state") as ck:
        register(ck, "model", model.state_dict())
        register(ck, "optimizer", optimizer.state_dict()["state"])
        register(ck, "step", step)
        version = ck.restart()
        print(f"from {version}, step {step.item()}", flush=True)
        loss = None
        while step < steps:
            step += 1
            # The batch follows from the step, so that it is the same after a restart.
            batch = torch.randn(32, 8, generator=torch.Generator().manual_seed(step.item()))
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            ck.commit()
        if loss is not None:
            print(f"step {step.item()}, loss {loss.item():.9f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
