"""Updates of a learner on the CPU and on the fake accelerator, compared bit for bit and held to a budget of waits and bytes."""

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest import mock

import fake_accelerator as fake
import numpy as np
import torch
from making import make_fragment

import rlscale.noise.blocks
from rlscale.agents.config import NoiseSettings, default_config
from rlscale.agents.learning import Learner, learn_batch
from rlscale.agents.learning.gradients import BlockGradients
from rlscale.agents.networks import PolicyValueNet
from rlscale.envs import find_task

__all__ = ["Setting", "check_update", "config_of", "equal_updates", "fragments_of", "learn", "sum_in_equal_pieces"]

TASKS = {
    "mlp": "classic/cartpole",
    "minatar_cnn": "minatar/breakout",
    "small_cnn": "atari/pong",
    "nature_cnn": "atari/pong",
}
CONTINUOUS = "classic/pendulum"
ENVIRONMENTS, STEPS, GROUPS = 8, 6, 2
# Bytes of an observation beside its frame and action: log-probability, advantage and target 4 each, valid 1, age of a reset 1;
# and, each time that it goes through the network, its position 8 and its block's size 4.
SMALL, EACH_TIME = 14, 12


@dataclass(frozen=True)
class Setting:
    """A learner and its batches.

    Attributes:
        network, bfloat16: of the learner.
        rounds: fragments that each environment gives to a batch.
        lag: of the rollouts.
        update: changes to the update's settings.
        continuous: whether actions are.
    """

    network: str
    bfloat16: bool = False
    rounds: int = 1
    lag: int = 0
    update: dict = field(default_factory=dict)
    continuous: bool = False

    @property
    def task(self):
        return find_task(CONTINUOUS if self.continuous else TASKS[self.network])

    def __str__(self):
        words = [self.network, "continuous" if self.continuous else "", "bfloat16" if self.bfloat16 else ""]
        words += [f"rounds={self.rounds}" if self.rounds > 1 else "", "lag=1" if self.lag else ""]
        words += [f"{name}={value}" for name, value in self.update.items()]
        return " ".join(word for word in words if word)


@dataclass
class Learned:
    """What a learner has done.

    Attributes:
        weights, state, results: after all of its updates.
        counts: of the fake accelerator, of each update.
        in_blocks: waits within the loop over blocks.
        passes: how often every observation went through the network, in all updates.
        forward_types: types of number that the networks' products were made in.
    """

    weights: np.ndarray
    state: dict
    results: list
    counts: list
    in_blocks: list
    passes: int
    forward_types: set


def config_of(setting, learners=1, blocks=4):
    """The run's settings, with a chunk that makes every device cut its passes alike."""
    config = default_config(setting.task)
    plain = {
        "network": setting.network,
        "epochs": 1,
        "mini_batch": None,
        "advantage_scale": "running",
        "chunk": 40,
        "max_grad_norm": 0.5,
        "learners": learners,
    }
    return replace(
        config,
        rollout=replace(config.rollout, environments=ENVIRONMENTS, rollout_length=STEPS, lag=setting.lag),
        update=replace(config.update, **{**plain, **setting.update}),
        noise=NoiseSettings(blocks=blocks, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1),
    )


def fragments_of(setting, seed=0):
    """The fragments of one batch: random frames and actions, some steps masked."""
    rng, task = np.random.default_rng(seed), setting.task
    each, made = ENVIRONMENTS // GROUPS, []
    shape = (task.frame_stack - 1 + STEPS, each, *task.frame_shape)
    brightest = {"minatar_cnn": 1}.get(setting.network, 255)
    for _ in range(setting.rounds):
        for group in range(GROUPS):
            frames = {"features": task.frame_shape[-1]}
            if task.frame_dtype == "uint8":
                frames["frames"] = rng.integers(0, brightest + 1, shape, dtype=np.uint8)
            reset = rng.random((STEPS, each)) < 0.2
            made.append(make_fragment(rng, STEPS, each, group=group, actions=task.actions, reset=reset, **frames))
    return made


@contextmanager
def sum_in_equal_pieces():
    """Statistics are added up in larger pieces on accelerators than on the CPU, which rounds otherwise: here, in equal ones."""
    pieces = {name: 65_536 for name in ("_PIECE", "_FEWEST_COLUMNS", "_MOST_COLUMNS")}
    with mock.patch.multiple(rlscale.noise.blocks, **pieces):
        yield


def learn(setting, device, updates=2):
    """That many updates of a new learner on the device."""
    learner = Learner(config_of(setting), setting.task, torch.device(device), setting.bfloat16)
    learned = Learned(np.empty(0), {}, [], [], [], 0, set())
    add, forward = BlockGradients.add, PolicyValueNet.forward

    def watched_add(self, batch, parts, matrices):
        before = len(fake.COUNTS.syncs)
        sums = add(self, batch, parts, matrices)
        learned.in_blocks += fake.COUNTS.syncs[before:]
        learned.passes += sum(len(part.positions) for part in parts)
        return sums

    def watched_forward(self, observation, tape=None):
        before = fake.COUNTS.products.copy()
        output = forward(self, observation, tape)
        learned.forward_types |= set(fake.COUNTS.products - before)
        return output

    watch = mock.patch.object(BlockGradients, "add", watched_add), mock.patch.object(PolicyValueNet, "forward", watched_forward)
    with watch[0], watch[1], sum_in_equal_pieces():
        for iteration in range(updates):
            with fake.counting() as counts:
                learned.results.append(learn_batch(learner, fragments_of(setting, iteration), iteration, 1e-3))
            learned.counts.append(counts)
    learned.weights, learned.state = learner.weights(), learner.get_state()
    return learned


def equal_updates(one, other):
    """Parameters, figures and the noise of two learners are the same to the last bit."""
    np.testing.assert_array_equal(one.weights, other.weights)
    for a, b in zip(one.results, other.results, strict=True):
        assert a.figures == b.figures, "figures differ"
        assert (a.observations, a.explained_variance, a.optimizer_steps) == (
            b.observations,
            b.explained_variance,
            b.optimizer_steps,
        )
        assert [(n.head, n.kind, n.optimizer_step) for n in a.noise] == [(n.head, n.kind, n.optimizer_step) for n in b.noise]
        assert {"joint", "policy", "value", "entropy"} <= {n.head for n in a.noise}
        for x, y in zip(a.noise, b.noise, strict=True):
            assert (x.adam is None) == (y.adam is None)
            for mine, theirs in ((x.statistics, y.statistics), *([(x.adam, y.adam)] if x.adam is not None else [])):
                for name in ("size", "square", "dot", "block"):
                    np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))


def check_update(setting, updates=2):
    """Learn on both devices: the same must come out, within the budgets of waits, bytes and types. Frames must fit there."""
    there = learn(setting, "fake", updates)
    # Types first: they say more than that numbers differ.
    assert there.forward_types == {"torch.bfloat16" if setting.bfloat16 else "torch.float32"}, there.forward_types
    assert there.in_blocks == [], "the host waits in the loop over blocks"
    before = 0
    for number, (counts, result) in enumerate(zip(there.counts, there.results, strict=True)):
        steps, before = result.optimizer_steps - before, result.optimizer_steps
        assert len(counts.syncs) <= steps, f"{len(counts.syncs)} waits in {steps} optimizer steps: {counts.syncs}"
        fragments = fragments_of(setting, number)
        frames = sum(fragment.frames.nbytes for fragment in fragments)
        observations = sum(fragment.reward.size for fragment in fragments)
        passes = there.passes / updates / observations + (setting.lag and steps > 1)  # with lag all go through once more
        actions = sum(fragment.action.nbytes for fragment in fragments)
        small = actions + observations * (SMALL + EACH_TIME * passes) + 64 * (steps + 5)
        crossed = counts.uploads.total()
        assert frames <= crossed <= frames + small, f"{crossed} bytes crossed; frames are {frames}, all else {small:.0f}"
        if fragments[0].frames.dtype == np.uint8:
            assert counts.uploads["torch.uint8"] == frames, "a frame crosses once, as the bytes that it is"
    equal_updates(there, learn(setting, "cpu", updates))
    return there
