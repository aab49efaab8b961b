"""The optimizers without PyTorch's compiler make the very steps of PyTorch's own."""

import subprocess
import sys

import pytest
import torch

from rlscale.agents.learning.optimizer import without_compiler

KINDS = {
    torch.optim.Adam: {"betas": (0.9, 0.99), "fused": True},
    torch.optim.RMSprop: {"alpha": 0.99},
    torch.optim.SGD: {"momentum": 0.9},
}


def steps(kind, start, gradients, settings):
    """The parameters after each step; the state is saved and loaded half way."""
    parameter = torch.nn.Parameter(start.clone())
    optimizer = kind([parameter], lr=0.1, **settings)
    found = []
    for k, gradient in enumerate(gradients):
        if k == len(gradients) // 2:
            state = optimizer.state_dict()
            optimizer = kind([parameter], lr=0.5, **settings)
            optimizer.load_state_dict(state)
        parameter.grad = gradient.clone()
        optimizer.step()
        found.append(parameter.detach().clone())
    return torch.stack(found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_pytorchs(kind):
    start, *gradients = torch.randn(7, 40, generator=torch.Generator().manual_seed(0))
    found = steps(without_compiler(kind), start, gradients, KINDS[kind])
    assert torch.equal(found, steps(kind, start, gradients, KINDS[kind]))
    assert len({float(x) for x in found[:, 0]}) == 6


def test_a_step_records_no_gradients():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = without_compiler(torch.optim.SGD)([parameter], lr=0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert parameter.is_leaf
    assert parameter.grad_fn is None


def test_a_training_loads_no_compiler(tmp_path):
    """It takes one to two seconds of every process that learns."""
    code = (
        "import sys\n"
        "from rlscale.__main__ import main\n"
        "words = 'train classic/cartpole --environments 4 --rollout-length 8 --observations 64 --threads 1 --no-report --run'\n"
        f"assert main([*words.split(), {str(tmp_path / 'run')!r}]) == 0\n"
        "assert 'torch.optim' in sys.modules\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoint.pt").exists()
