"""The fake accelerator itself is as strict as a real one, and torch takes it for one."""

import copy

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from fake_accelerator import DeviceError

fake.register()

THERE = torch.device("fake")


@pytest.fixture
def counts():
    with fake.counting() as counted:
        yield counted


def test_torch_takes_it_for_the_machines_accelerator():
    assert torch.accelerator.current_accelerator(check_available=True).type == "fake"
    assert torch.accelerator.device_count() == 2
    assert torch.zeros(3, device=THERE).device == torch.device("fake", 0)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.ones(3) + x,
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.ones(3)[x.long()],
        lambda x: x.numpy(),
        lambda x: np.asarray(x),
        lambda x: torch.from_numpy(np.ones(3, dtype=np.float32)).add_(x),
        lambda x: torch.rand(3, device=THERE, generator=torch.Generator()),
    ],
)
def test_what_a_real_device_refuses_raises(mistake):
    for inference in (False, True):
        with pytest.raises(DeviceError), torch.inference_mode(inference):
            mistake(torch.ones(3, device=THERE))


def test_a_number_of_the_cpu_may_take_part(counts):
    x = torch.ones(3, device=THERE)
    assert (2.5 * x + torch.tensor(1.0)).device.type == "fake"
    assert counts.syncs == []


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0]),
        lambda x: bool(x[0]),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: torch.empty(3).copy_(x),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
        lambda x: torch.ones(3).to(THERE),
        lambda x: torch.ones(3).to(THERE, non_blocking=True),
        lambda x: torch.ones(3).pin_memory().to(THERE),
        lambda x: x.copy_(torch.ones(3)),
        lambda x: torch.tensor([1.0, 2.0], device=THERE),
        lambda x: torch.accelerator.synchronize(),
    ],
)
def test_what_lets_the_host_wait_is_counted(wait, inference):
    with torch.inference_mode(inference):
        x = torch.ones(3, device=THERE)
        with fake.counting() as counts:
            wait(x)
    assert len(counts.syncs) == 1, counts.syncs


def test_what_does_not_is_not(counts):
    x = torch.ones(3, device=THERE)
    y = torch.ones(4).pin_memory().to(THERE, non_blocking=True)
    x.copy_(torch.ones(3).pin_memory(), non_blocking=True)
    torch.where(x > 0, x, -x).masked_fill_(x > 3, 0.0)
    y[torch.arange(2, device=THERE)] = 3.0
    copy.deepcopy(x)
    assert counts.syncs == []
    assert counts.uploads == {"torch.float32": 28}


def test_views_share_memory_and_data_is_moved():
    flat = torch.zeros(6, device=THERE)
    layer = torch.nn.Linear(2, 2).to(THERE)
    layer.weight.data = flat[:4].view(2, 2)
    flat += 1
    assert layer.weight.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("view", [lambda x: x.chunk(2), lambda x: (x[:2], x[2:]), lambda x: torch.unbind(x.view(2, 2))])
def test_views_of_parameters_can_be_taken_in_inference_mode(view):
    parameter = torch.nn.Parameter(torch.arange(4.0)).to(THERE)
    with torch.inference_mode():
        first, second = view(parameter)
        assert (first + second).tolist() == [2, 4]


@pytest.mark.parametrize("batch_first", [False, True])
def test_an_lstm_is_torchs(batch_first):
    layer = torch.nn.LSTM(3, 5, batch_first=batch_first)
    inputs = torch.randn(4, 2, 3)
    output, (hidden, cell) = layer(inputs)
    found, (last, kept) = layer.to(THERE)(inputs.to(THERE))
    for here, there in ((output, found), (hidden, last), (cell, kept)):
        torch.testing.assert_close(there.cpu(), here)


def test_autocast_computes_in_its_type(counts):
    layer = torch.nn.Linear(2, 2).to(THERE)
    with torch.autocast("fake", torch.bfloat16):
        inside = layer(torch.ones(1, 2, device=THERE))
    assert inside.dtype == torch.bfloat16
    assert set(counts.products) == {"torch.bfloat16"}
    assert layer(torch.ones(1, 2, device=THERE)).dtype == torch.float32
    inside.sum().backward()
    assert layer.weight.grad.dtype == torch.float32
