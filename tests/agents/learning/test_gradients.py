"""Rows of block gradients against a plain backward pass over each block by itself, whatever shares a pass through the network."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlscale.agents.config import default_config
from rlscale.agents.learning.frames import Positions
from rlscale.agents.learning.gradients import FIGURES, LAST_LAYER, BlockGradients, BlockPart
from rlscale.agents.learning.losses import HEADS, ppo_losses
from rlscale.agents.networks import PolicyValueNet
from rlscale.envs import BoxActions, find_task

CPU = torch.device("cpu")
TASK = find_task("classic/cartpole")  # only for the settings of its updates
N, ACTIONS = 24, 6
NETWORKS = [
    ("nature_cnn", (4, 84, 84)),
    ("small_cnn", (3, 50, 41)),  # one column as one
    ("small_cnn", (4, 42, 42)),  # two
    ("minatar_cnn", (4, 10, 10)),
    ("mlp", (8,)),
]
PIXELS = [("minatar_cnn", (3, 12, 11)), ("mlp", (24,))]  # of 0 … 255 for the two networks that also take other numbers
BOX = BoxActions((-1.0,) * 3, (1.0,) * 3)


def batch_of(network, shape):
    """What `BlockGradients` reads of a batch: N observations, some of them invalid, of a policy much like the network's."""
    g = torch.Generator().manual_seed(0)
    brightest = 1 if shape in ((4, 10, 10), (8,)) else 255
    observations = torch.randint(0, brightest + 1, (N, *shape), generator=g, dtype=torch.uint8)
    box = network.policy_head.weight.shape[0] == len(BOX)
    action = 2 * torch.randn(N, len(BOX), generator=g) if box else torch.randint(0, ACTIONS, (N,), generator=g)
    with torch.no_grad():
        present = network.distribution(network(observations).policy).log_prob(action)
    return SimpleNamespace(
        steps=N,
        environments=1,
        observations=lambda positions: observations[positions.host],
        action=action,
        log_prob=present + 0.2 * torch.randn(N, generator=g),
        advantage=torch.randn(N, generator=g),
        target=torch.randn(N, generator=g),
        valid=torch.arange(N) % 5 != 3,
        proximal=None,
    )


def network_of(name, shape, actions=ACTIONS):
    torch.manual_seed(3)
    network = PolicyValueNet(name, shape, actions, pixels=(name, shape) in PIXELS)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return network


def gradients_of(network, bfloat16=False, chunk=100, lag=0):
    config = default_config(TASK)
    update = replace(config.update, chunk=chunk, clip=0.2, value_coef=0.7, entropy_coef=0.05)
    return BlockGradients(network, replace(config, update=update, rollout=replace(config.rollout, lag=lag)), TASK, CPU, bfloat16)


def slow_row(network, batch, part, head, bfloat16, proximal=None):
    """Gradient of one head's loss over one part, and the sums of its figures, by autograd alone."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        output = network(batch.observations(Positions.of(part.positions, CPU)))
    losses = ppo_losses(
        policy=network.distribution(output.policy),
        value=output.value,
        action=batch.action[part.positions],
        behaviour_log_prob=batch.log_prob[part.positions],
        advantage=batch.advantage[part.positions],
        value_target=batch.target[part.positions],
        clip=0.2,
        value_coef=0.7,
        entropy_coef=0.05,
        proximal_log_prob=proximal,
    )
    valid = batch.valid[part.positions]
    of, name = (network.policy_head, "policy") if head == LAST_LAYER else (network, head)
    loss = getattr(losses, name)[valid].sum() / part.divisor
    grads = torch.autograd.grad(loss, list(of.parameters()), materialize_grads=True)
    return torch.cat([x.reshape(-1) for x in grads]), torch.stack([x.detach()[valid].sum() for x in losses])


def parts_of(lengths, seed=0):
    order, start, parts = np.random.default_rng(seed).permutation(N), 0, []
    for row, length in enumerate(lengths):
        parts.append(BlockPart(row, order[start : start + length], divisor=length - 0.5))
        start += length
    return parts


def rows_for(network, heads, count):
    width = {
        head: sum(p.numel() for p in (network.policy_head if head == LAST_LAYER else network).parameters()) for head in heads
    }
    return {head: torch.full((count, width[head]), torch.nan) for head in heads}


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("heads", [("joint",), (LAST_LAYER, "joint"), HEADS])
@pytest.mark.parametrize(
    ("name", "shape", "actions"),
    [*((*one, ACTIONS) for one in (*NETWORKS, *PIXELS)), ("minatar_cnn", (4, 10, 10), BOX), ("mlp", (8,), BOX)],
)
def test_blocks_that_share_a_pass(name, shape, actions, heads, bfloat16):
    """Four equal blocks, then two of other lengths, in one pass."""
    network = network_of(name, shape, actions)
    batch = batch_of(network, shape)
    parts = parts_of([4, 4, 4, 4, 5, 3])
    matrices = rows_for(network, heads, len(parts))
    figures = gradients_of(network, bfloat16).add(batch, parts, matrices)
    for head, matrix in matrices.items():
        for part, row in zip(parts, matrix, strict=True):
            expected, _ = slow_row(network, batch, part, head, bfloat16)
            # In bfloat16 an output's last bit may depend on how many observations share a product.
            tolerance = (2e-2 if bfloat16 else 1e-4) * expected.norm() + 1e-6
            assert (row - expected).norm() < tolerance, (head, part.row)
    sums = sum(slow_row(network, batch, part, "joint", bfloat16)[1] for part in parts)
    torch.testing.assert_close(figures, sums, rtol=2e-2 if bfloat16 else 1e-4, atol=2e-2 if bfloat16 else 1e-4)
    assert len(figures) == len(FIGURES)


@pytest.mark.parametrize("chunk", [1, 3, 5, 7, 24])
def test_chunks_cut_large_blocks_and_join_small_ones(chunk):
    network = network_of("minatar_cnn", (4, 10, 10))
    batch = batch_of(network, (4, 10, 10))
    parts = parts_of([3, 3, 9, 2, 2, 5])
    sizes = []
    network.register_forward_pre_hook(lambda _, arguments: sizes.append(len(arguments[0])))
    matrices = rows_for(network, (LAST_LAYER, "joint"), len(parts))
    gradients_of(network, chunk=chunk).add(batch, parts, matrices)
    assert max(sizes) <= chunk
    assert len(sizes) == {1: 24, 3: 9, 5: 6, 7: 4, 24: 1}[chunk]
    for head, matrix in matrices.items():
        expected = torch.stack([slow_row(network, batch, part, head, False)[0] for part in parts])
        torch.testing.assert_close(matrix, expected, rtol=1e-3, atol=1e-5)


def test_the_deviations_of_a_gaussian_are_where_the_flat_vector_has_them():
    """Block by block, by the formula: ∂/∂log σ of -A log π is A (1 - z²), of the entropy 1, and of the value nothing."""
    network = network_of("mlp", (8,), BOX)
    batch, parts = batch_of(network, (8,)), parts_of([4, 4, 4, 12])
    batch.valid[:] = True
    with torch.no_grad():
        policy = network(batch.observations(Positions.of(np.arange(N), CPU))).policy
        batch.log_prob = network.distribution(policy).log_prob(batch.action)  # ratio 1, so the clip does not bind
    names = [name for name, p in network.named_parameters() for _ in range(p.numel())]
    ((first, last),) = [(names.index(n), len(names) - names[::-1].index(n)) for n in ("policy_head.bias",)]
    deviations = slice(last - len(BOX), last)
    assert last - first == 2 * len(BOX)
    matrices = rows_for(network, HEADS, len(parts))
    gradients_of(network).add(batch, parts, matrices)
    z = (batch.action - policy[:, : len(BOX)]) / policy[:, len(BOX) :].exp()
    for part in parts:
        here = torch.from_numpy(part.positions)
        by_hand = (batch.advantage[here, None] * (1 - z[here].square())).sum(0) / part.divisor
        torch.testing.assert_close(matrices["policy"][part.row, deviations], by_hand, rtol=1e-4, atol=1e-5)
        share = torch.full((len(BOX),), len(here) / part.divisor)
        torch.testing.assert_close(matrices["entropy"][part.row, deviations], share)
        assert not matrices["value"][part.row, first:last].any()
    others = np.ones(len(names), dtype=bool)
    others[deviations] = False
    assert not matrices["entropy"][:, others].any(), "the entropy depends on the deviations alone"


@pytest.mark.parametrize("actions", [ACTIONS, BOX])
@pytest.mark.parametrize("heads", [(LAST_LAYER, "joint"), HEADS])
def test_rows_that_hold_something_already_are_added_to(heads, actions):
    """As where a batch is learned from as it comes: some rows are begun, some are not, and some have no part in it."""
    network = network_of("mlp", (8,), actions)
    batch = batch_of(network, (8,))
    parts = [replace(part, row=row, first=row in (0, 4)) for part, row in zip(parts_of([6, 6, 6, 6]), (0, 1, 3, 4), strict=True)]
    matrices = {head: torch.full_like(matrix, 2.0) for head, matrix in rows_for(network, heads, 5).items()}
    gradients_of(network).add(batch, parts, matrices)
    for head, matrix in matrices.items():
        assert torch.equal(matrix[2], torch.full_like(matrix[2], 2.0))
        for part in parts:
            expected, _ = slow_row(network, batch, part, head, False)
            torch.testing.assert_close(matrix[part.row], expected + (0 if part.first else 2.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("actions", [ACTIONS, BOX])
def test_a_lagged_update_is_clipped_about_the_policy_it_starts_from(actions):
    network = network_of("mlp", (8,), actions)
    batch = batch_of(network, (8,))
    gradients = gradients_of(network, chunk=7, lag=1)
    gradients.look_ahead(batch)
    output = network(batch.observations(Positions.of(np.arange(N), CPU)))
    torch.testing.assert_close(batch.proximal, network.distribution(output.policy).log_prob(batch.action).detach())
    batch.proximal += 0.3  # as if the policy had changed since
    parts = parts_of([12, 12])
    matrices = rows_for(network, ("joint",), 2)
    gradients.add(batch, parts, matrices)
    for part, row in zip(parts, matrices["joint"], strict=True):
        expected, _ = slow_row(network, batch, part, "joint", False, batch.proximal[part.positions])
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-5)


def test_a_block_without_a_valid_observation_gives_zero():
    network = network_of("mlp", (8,))
    batch = batch_of(network, (8,))
    batch.valid[:8] = False
    parts = [BlockPart(0, np.arange(8), divisor=1.0), BlockPart(1, np.arange(8, 16), divisor=8.0)]
    matrices = rows_for(network, (LAST_LAYER, "joint"), 2)
    assert gradients_of(network).add(batch, parts[:1], matrices).tolist() == [0.0] * len(FIGURES)
    assert gradients_of(network).add(batch, parts, matrices).any()
    for matrix in matrices.values():
        assert not matrix[0].any()
        assert matrix[1].any()
