"""Networks: their sizes, their initialization, and the copy that acts."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from rlscale.agents.networks import ActingNetwork, PolicyValueNet, flatten_parameters, make_network
from rlscale.envs import BoxActions, find_task
from rlscale.errors import UsageError


@pytest.mark.parametrize(("network", "parameters"), [("nature_cnn", 1_687_719), ("small_cnn", 677_943)])
def test_known_sizes(network, parameters):
    """Pong's Nature network has 1,687,719 parameters (Mnih et al. 2015 with six actions and a value head)."""
    total = sum(p.numel() for p in make_network(find_task("atari/pong"), network, 0).parameters())
    assert total == parameters


def test_orthogonal_weights_from_the_seed_alone():
    task = find_task("atari/pong")
    before = torch.random.get_rng_state()
    one, same, other = (make_network(task, "nature_cnn", seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.value_head.weight, same.value_head.weight)
    assert not torch.equal(one.value_head.weight, other.value_head.weight)
    policy = one.policy_head.weight
    torch.testing.assert_close(policy @ policy.T, 1e-4 * torch.eye(6), atol=1e-8, rtol=1e-4)
    dense = one.trunk[7].weight
    torch.testing.assert_close(dense @ dense.T, 2 * torch.eye(512), atol=1e-4, rtol=1e-4)
    assert all(not p.any() for name, p in one.named_parameters() if name.endswith("bias"))


def test_a_new_policy_is_nearly_uniform():
    task = find_task("atari/pong")
    output = make_network(task, "nature_cnn", 0)(torch.randint(0, 255, (8, 4, 84, 84), dtype=torch.uint8))
    torch.testing.assert_close(torch.softmax(output.policy, -1), torch.full((8, 6), 1 / 6), atol=0.02, rtol=0)
    assert output.value.shape == (8,)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    ("network", "shape"),
    [("nature_cnn", (4, 84, 84)), ("small_cnn", (4, 42, 42)), ("small_cnn", (3, 50, 41))],  # four, two, one column as one
)
def test_pixels_are_divided_by_255_and_columns_folded(network, shape, dtype):
    """Outputs and gradients against the layers as they are, one after the other, on pixels of 0 … 1."""
    net = PolicyValueNet(network, shape, 6)
    pixels = torch.randint(0, 255, (5, *shape), dtype=torch.uint8).to(dtype)
    x = pixels / 255.0
    for layer in net.trunk[:-3]:
        x = functional.conv2d(x, layer.weight, layer.bias, layer.stride) if isinstance(layer, nn.Conv2d) else torch.relu(x)
    x = x.permute(0, 2, 3, 1).flatten(1)
    actual, expected = net(pixels).value, net.value_head(net.trunk[-2:](x))[:, 0]
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    used = [p for name, p in net.named_parameters() if not name.startswith("policy_head")]
    gradients = [torch.autograd.grad(value.square().sum(), used) for value in (actual, expected)]
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize(("network", "shape"), [("minatar_cnn", (3, 12, 10)), ("mlp", (60,)), ("mlp", (3, 5, 4))])
def test_networks_for_small_numbers_divide_pixels_by_255_too(network, shape, dtype):
    """Outputs and gradients are those of a twin that is given the pixels of 0 … 1 as its observations."""
    net, twin = PolicyValueNet(network, shape, 6, pixels=True), PolicyValueNet(network, shape, 6)
    twin.load_state_dict(net.state_dict())
    pixels = torch.randint(0, 256, (5, *shape), dtype=torch.uint8).to(dtype)
    before = pixels.clone()
    outputs = net(pixels), twin(pixels / 255.0)
    assert torch.equal(pixels, before)
    torch.testing.assert_close(outputs[0].policy, outputs[1].policy, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(outputs[0].value, outputs[1].value, atol=1e-5, rtol=1e-5)
    gradients = [
        torch.autograd.grad(output.value.square().sum() + output.policy.square().sum(), list(one.parameters()))
        for output, one in zip(outputs, (net, twin), strict=True)
    ]
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_pixels_do_not_saturate_the_mlp():
    """Of tanh units that saw 0 … 255 nearly all would be at ±1, where they learn nothing."""
    task = find_task("atari/pong")
    noise = torch.randint(0, 256, (16, *task.observation_shape), dtype=torch.uint8)
    network, seen = make_network(task, "mlp", 0), []
    network.trunk[1].register_forward_hook(lambda _layer, _input, output: seen.append(output.detach()))
    network(noise)
    assert (seen[0].abs() > 0.99).float().mean() < 0.5


@pytest.mark.parametrize("network", ["minatar_cnn", "mlp"])
def test_planes_of_0_and_1_enter_as_they_are(network):
    """Bit for bit the layers one after the other: published records of MinAtar are repeated exactly."""
    task = find_task("minatar/breakout")
    net = make_network(task, network, 0)
    planes = torch.randint(0, 2, (5, *task.observation_shape), dtype=torch.uint8)
    if network == "mlp":
        expected = net.policy_head(net.trunk(planes.flatten(1).float()))
    else:
        convolution = net.trunk[0]
        x = torch.relu(functional.conv2d(planes.float(), convolution.weight, convolution.bias))
        expected = net.policy_head(net.trunk[-2:](x.flatten(1)))
    assert torch.equal(net(planes).policy, expected)


def test_observations_may_be_part_of_a_larger_tensor():
    network = make_network(find_task("atari/pong"), "nature_cnn", 0)
    wide = torch.randint(0, 255, (9, 4, 84, 90), dtype=torch.uint8)
    for part in (wide[3:7, :, :, :84], wide[::2, :, :, 5:89]):
        torch.testing.assert_close(network(part).policy, network(part.clone()).policy)


def shaken(name, shape, actions, pixels):
    """A network with parameters that bfloat16 has to round."""
    network = PolicyValueNet(name, shape, actions, pixels=pixels)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    return network


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("actions", [6, BoxActions((-1.0,) * 3, (1.0,) * 3)])
@pytest.mark.parametrize(
    ("name", "shape", "pixels"),
    [
        ("nature_cnn", (4, 84, 84), True),
        ("small_cnn", (4, 42, 42), True),
        ("minatar_cnn", (4, 10, 10), False),
        ("minatar_cnn", (4, 10, 10), True),
        ("mlp", (8,), False),
        ("mlp", (8,), True),
    ],
)
def test_the_acting_copy_is_the_network(name, shape, pixels, actions, bfloat16):
    """A new copy, and one of another network that follows this one, as workers' copies do."""
    network, another = (shaken(name, shape, actions, pixels) for _ in range(2))
    seen = torch.randint(0, 256, (9, *shape), dtype=torch.uint8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        expected = network(seen)
    new, following = ActingNetwork(network, bfloat16), ActingNetwork(another, bfloat16)
    following.follow(network)
    for actual in (new(seen), following(seen)):
        # Rounded to bfloat16 the sums are the same; in float32 a packed dense layer adds in another order.
        for one, other in zip(actual, expected, strict=True):
            tolerance = 0 if bfloat16 or name == "mlp" else 1e-4 * float(other.abs().max())
            torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


def test_acting_where_weights_cannot_be_packed(monkeypatch):
    def refuse(*_):
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", refuse)
    network = make_network(find_task("atari/pong"), "nature_cnn", 0)
    pixels = torch.randint(0, 255, (9, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        expected = network(pixels)
    assert torch.equal(ActingNetwork(network, bfloat16=False)(pixels).value, expected.value)


def test_the_flat_vector_is_the_network():
    network = make_network(find_task("classic/acrobot"), "mlp", 0)
    flat = flatten_parameters(network)
    assert len(flat) == sum(p.numel() for p in network.parameters())
    flat.zero_()
    assert all(not p.any() for p in network.parameters())
    np.testing.assert_array_equal(network(torch.ones(2, 6)).policy.detach(), np.zeros((2, 3)))
    assert math.isclose(float(network(torch.ones(1, 6)).value.detach()), 0.0)


def test_a_network_that_cannot_see_the_task():
    with pytest.raises(UsageError, match="--network"):
        make_network(find_task("classic/cartpole"), "nature_cnn", 0)
