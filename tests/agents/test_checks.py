"""What cannot work is refused in one line that names the option and the mend, and what is accepted can be learned from."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlscale.agents.checks import check_config
from rlscale.agents.config import TrainConfig
from rlscale.agents.learning.batch import arrange_slots
from rlscale.agents.learning.blocks import BatchBlocks, what_is_followed
from rlscale.agents.memory import MemoryPlan, memory_plan
from rlscale.benchmarks.options import parse_train
from rlscale.envs import find_task
from rlscale.errors import UsageError

TASK = find_task("classic/cartpole")
ONE_STEP = "--epochs 1 --mini-batch None"
ADAPTIVE = f"--batch-size adaptive {ONE_STEP}"
STREAM = f"--stream --advantage-scale running {ONE_STEP}"
ROUNDS = "--rollout-length 128 --shuffle environments"


def accepted(words: str) -> TrainConfig:
    """The settings as a run takes them, after all of its checks."""
    config = parse_train(["classic/cartpole", *words.split()])
    check_config(config)
    memory_plan(config, TASK, store=1 << 40)
    return config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--clip 1e308", "--clip: 1e+308 is too large. Give 1,000,000 or less"),
        ("--threads 3000000000", "--threads: 3000000000 is too large. Give 65,536 or less"),
        (
            "--random-first-steps 18446744073709551615",
            "--random-first-steps: 18446744073709551615 is too large. Give 281,474,976,710,656 or less",
        ),
        (
            "--tuned-batch 281474976710656 --mini-batch 1",
            "--tuned-batch: 281474976710656 makes Adam's beta2 1 where a step has 1. Give less, or a lower --beta2",
        ),
        # An adaptive batch begins with one fragment, and would stay at it where that shows no noise.
        (
            f"{ADAPTIVE} --environments 13",
            "--environments: 13 come in fragments of 1, too few to see noise between them. "
            "Use for example 16 or give --fragment-environments 13",
        ),
        (
            f"{ADAPTIVE} --environments 22",
            "--environments: 22 come in fragments of 2, too few to see noise between them. "
            "Use for example 24 or give --fragment-environments 11",
        ),
        (
            f"{ADAPTIVE} --environments 44 --actors 4",
            "--environments: 44 come in fragments of 1, too few to see noise between them. "
            "Use for example 32 or give --fragment-environments 11",
        ),
        (
            f"{ADAPTIVE} --environments 3",
            "--environments: 3 come in fragments of 3, too few to see noise between them. Use for example 8",
        ),
        (
            f"{ADAPTIVE} --environments 64 --rollout-length 1000000",
            "--environments: 64 come in fragments of 1, too few to see noise between them. Give --fragment-environments 4",
        ),
        (
            f"{ADAPTIVE} --environments 16 --fragment-environments 2",
            "--fragment-environments: 2 environments are too few to see noise between them. "
            "Give at least 4, and --environments a multiple of it",
        ),
        (
            f"{ADAPTIVE} --environments 24 --clones 3 --fragment-environments 6",
            "--fragment-environments: 6 environments are too few to see noise between them. "
            "Give at least 12, and --environments a multiple of it",
        ),
        (
            f"{ADAPTIVE} --blocks 2",
            "--blocks: an adaptive batch follows no noise between 2 blocks. "
            "Give at least 3; 8 or more for a noise scale that says much",
        ),
        (
            "--lr-rule noise --blocks 2",
            "--blocks: --lr-rule noise follows no noise between 2 blocks. "
            "Give at least 3; 8 or more for a noise scale that says much",
        ),
        (
            "--lr-rule noise --shuffle environments --environments 32 --rollout-length 32 --mini-batch 64",
            "--lr-rule: it follows noise between at least 3 environments of a mini-batch, which has 2. "
            "Use more environments, larger mini-batches or another rule",
        ),
        (
            f"--lr-rule noise {STREAM} --environments 2",
            "--lr-rule: it follows noise between at least 3 environments of a mini-batch, which has 2. "
            "Use more environments, larger mini-batches or another rule",
        ),
        (
            f"--lr-rule noise --shuffle environments --clones 4 --environments 8 {ONE_STEP}",
            "--lr-rule: it follows noise between at least 3 environments of a mini-batch, which has 2. "
            "Use more environments, larger mini-batches or another rule",
        ),
        (
            "--lr-rule noise --mini-batch 2",
            "--lr-rule: it follows noise between at least 3 observations of a mini-batch, which has 2. "
            "Use more environments, larger mini-batches or another rule",
        ),
        (
            "--environments 8 --clones 4 --shuffle transitions",
            "--clones: shuffled transitions would be dealt to blocks apart from their copies. "
            "Use --shuffle environments; a sweep with clones takes no --mini-batches",
        ),
        # A streamed batch is dealt out by environments.
        (
            f"{STREAM} --shuffle transitions",
            "--shuffle: transitions of a streamed batch are never there together to be shuffled. Leave it out, or --stream",
        ),
        (
            f"{STREAM} --environments 4 --learners 3",
            "--learners: 4 environments do not divide over 3 learners. Use 4",
        ),
        (
            f"{ADAPTIVE} --actors auto --actor-price 0.1",
            "--actor-price: an adaptive batch changes what an actor gives. Leave it out",
        ),
        # Mini-batches of environments hold all rounds of them.
        (
            f"{ROUNDS} --environments 16 --batch-size 8192",
            "--mini-batch: 256 observations are no whole number of environments with 512 steps each. "
            "Use a multiple of 512, or --shuffle transitions",
        ),
        (
            f"{ROUNDS} --environments 24 --batch-size 9216 --mini-batch 1024",
            "--mini-batch: 1024 observations are no whole number of environments with 384 steps each. "
            "Use a multiple of 384, or --shuffle transitions",
        ),
        (
            f"{ROUNDS} --environments 16 --clones 8 --mini-batch 256",
            "--clones: 8 do not divide the 2 environments of a mini-batch. Use a divisor of them, or change --mini-batch",
        ),
        (
            f"{ROUNDS} --environments 24 --clones 3 --mini-batch 1024",
            "--clones: 3 do not divide the 8 environments of a mini-batch. Use a divisor of them, or change --mini-batch",
        ),
        # Each learner needs a share of every step and of every measurement.
        (
            f"{ADAPTIVE} --environments 24 --learners 3",
            "--learners: 8 environments of a fragment, with which an adaptive batch begins, do not divide over 3 learners. Use 4",
        ),
        (
            "--environments 16 --mini-batch 128 --learners 9 --shuffle transitions",
            "--learners: 9 cannot share the 8 blocks of a step. Use at most 8",
        ),
        (
            f"{ONE_STEP} --environments 4 --learners 5",
            "--learners: 5 cannot share the 4 blocks in which the noise of single losses is measured. Use at most 4",
        ),
        (
            f"{ONE_STEP} --shuffle environments --environments 8 --clones 4 --learners 4",
            "--learners: 2 environments do not divide over 4 learners. Use 2",
        ),
        # Options that nothing would look at.
        (
            "--lr-batch 512",
            "--lr-batch: --lr-rule constant does not depend on it. Give --lr-rule sqrt or linear as well, or --lr-batch None",
        ),
        (
            "--lr-batch 512 --lr-rule noise",
            "--lr-batch: --lr-rule noise does not depend on it. Give --lr-rule sqrt or linear as well, or --lr-batch None",
        ),
        (
            "--actor-cpus 2",
            "--actor-cpus: there are no actors to use them. Give --actors as well, or --threads for this process",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_mend(words, said):
    with pytest.raises(UsageError) as refusal:
        accepted(words)
    assert str(refusal.value) == said


@pytest.mark.parametrize(
    "words",
    [
        f"{ADAPTIVE} --environments 16",
        f"{ADAPTIVE} --environments 13 --fragment-environments 13",
        f"{ADAPTIVE} --environments 22 --fragment-environments 11",
        f"{ADAPTIVE} --environments 64 --rollout-length 1000000 --fragment-environments 4",
        f"{ADAPTIVE} --environments 12 --blocks 3",
        f"{ADAPTIVE} --environments 24 --learners 4",
        "--lr-rule noise --shuffle environments --environments 30 --rollout-length 32 --mini-batch 96",
        f"{STREAM} --environments 4 --learners 2",
        f"{ROUNDS} --environments 16 --batch-size 8192 --mini-batch 512",
        f"{ROUNDS} --environments 24 --clones 4 --mini-batch 1024",
        "--environments 16 --mini-batch 128 --learners 8 --shuffle transitions",
        "--environments 1 --mini-batch 32 --learners 2",
        f"{ONE_STEP} --environments 4 --learners 4",
        f"{ONE_STEP} --environments 4 --learners 5 --policy-noise-period 0 --value-noise-period 0 --entropy-noise-period 0 "
        "--iteration-noise-period 0",
        "--lr-batch 512 --lr-rule sqrt",
        "--lr-batch 512 --lr-rule linear",
        "--actors 1 --environments 32 --actor-cpus 2",
        "--actors auto --actor-cpus 2",
    ],
)
def test_the_mends_work(words):
    accepted(words)


def learned(config: TrainConfig, plan: MemoryPlan) -> list[list[int]]:
    """Observations of each learner in every optimizer step of an epoch of the run's first batch.

    Every learner has some in every step, and environments to measure single losses with; clones are in one fragment.
    """
    assert plan.environments % config.rollout.clones == 0
    groups = [0] if config.adaptive else list(range(plan.groups)) * config.rounds
    slots = arrange_slots(groups, plan.environments)
    shares = []
    for rank in range(config.update.learners):
        blocks = BatchBlocks(config, rank, slots, np.random.default_rng(0))
        batch = SimpleNamespace(
            of_environments=lambda columns, steps=blocks.steps: np.repeat(columns, steps),
            valid_cpu=np.ones(blocks.steps * blocks.environments, dtype=bool),
        )
        steps = [[len(block) for block in members] for _, members in blocks.of_mini_batches(batch)]
        assert all(sizes and min(sizes) > 0 for sizes in steps)
        shares.append([sum(sizes) for sizes in steps])
        if blocks.environments > 1:
            assert all(len(block) > 0 for block in blocks.of_heads()[1])
            assert blocks.of_heads()[1]
    return [list(step) for step in zip(*shares, strict=True)]


def test_what_is_accepted_gives_every_learner_its_share_and_every_step_its_size():
    """All steps are of the size that was asked for, and where blocks are environments learners have equally much to do."""
    found = {"refused": 0, "environments": 0, "transitions": 0}
    base = accepted("--rollout-length 2 --epochs 1")
    for environments, rounds, clones, learners, mini, kind in itertools.product(
        (2, 4, 6, 8, 12, 24), (1, 3), (1, 2, 3), (1, 2, 3, 4), (None, 2, 8, 24, 36),
        ("auto", "environments", "transitions", "stream", "adaptive"),
    ):  # fmt: skip
        size = "adaptive" if kind == "adaptive" else environments * 2 * rounds
        shuffle = kind if kind in ("environments", "transitions") else "auto"
        config = replace(
            base,
            rollout=replace(base.rollout, environments=environments, clones=clones, batch_size=size),
            update=replace(
                base.update,
                mini_batch=mini,
                learners=learners,
                shuffle=shuffle,
                stream=kind == "stream",
                advantage_scale="running",
            ),
        )
        try:
            check_config(config)
            plan = memory_plan(config, TASK, store=1 << 40)
        except UsageError:
            found["refused"] += 1
            continue
        steps = learned(config, plan)
        if kind != "adaptive":
            assert [sum(step) for step in steps] == [config.mini_batch] * (config.batch // config.mini_batch), config
        if not config.shuffles_transitions:
            assert all(len(set(step)) == 1 for step in steps), config
        found["transitions" if config.shuffles_transitions else "environments"] += 1
    assert min(found.values()) > 100


def test_of_several_learners_a_head_has_as_many_blocks_as_an_interval_needs():
    """34 environments are no multiple of eight; two blocks, the largest such number below 32, would never be resolved."""
    noise = TrainConfig("classic/cartpole").noise
    assert noise.head_blocks(34) == 32
    assert noise.head_blocks(34, 2) == 34
    assert noise.head_blocks(44, 4) == 44
    assert noise.head_blocks(48, 4) == 24
    assert noise.head_blocks(6, 2) == 6
    assert replace(noise, blocks=4).head_blocks(34, 2) == 34
    assert replace(noise, blocks=4).head_blocks(16, 2) == 4
    for environments, learners in itertools.product(range(8, 200), (2, 3, 4)):
        if environments % learners == 0:
            blocks = noise.head_blocks(environments, learners)
            assert environments % blocks == 0 == blocks % learners
            assert blocks >= 8


def test_noise_of_clones_or_of_another_loss_or_other_blocks_is_not_followed_any_more():
    config = TrainConfig("classic/cartpole")
    loss = "discount", "gae_lambda", "clip", "value_coef", "entropy_coef", "proximal_average"
    assert what_is_followed(config) == what_is_followed(replace(config, seed=3))
    for changed in (
        replace(config, rollout=replace(config.rollout, clones=2)),
        replace(config, rollout=replace(config.rollout, reward_noise=1.0)),
        replace(config, rollout=replace(config.rollout, cut_on_life_loss=False)),
        replace(config, noise=replace(config.noise, blocks=16)),
        replace(config, noise=replace(config.noise, followed_noise="joint")),
        replace(config, update=replace(config.update, shuffle="environments")),
        *(replace(config, update=replace(config.update, **{name: 0.3})) for name in loss),
        replace(config, update=replace(config.update, advantage_scale="running")),
    ):
        assert what_is_followed(changed) != what_is_followed(config)
