"""A new run takes no option that nothing would look at; `check_config` does, for recorded runs and sweeps."""

import pytest

from rlscale.agents.checks import check_config
from rlscale.agents.config import TrainConfig
from rlscale.agents.idle_options import check_idle_options
from rlscale.benchmarks.options import parse_train
from rlscale.errors import UsageError

ONE_STEP = "--epochs 1 --mini-batch None"
STREAM = f"--stream --advantage-scale running {ONE_STEP}"


def settings(words: str) -> TrainConfig:
    """The settings of a run, which can work."""
    config = parse_train(["classic/cartpole", *words.split()])
    check_config(config)
    return config


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--optimizer rmsprop --beta2 0.5", "--beta2: rmsprop has none. Leave it out, or give --optimizer adam as well"),
        ("--algorithm a2c --beta2 0.5", "--beta2: rmsprop has none. Leave it out, or give --optimizer adam as well"),
        (
            f"--iteration-noise-period 1 {ONE_STEP}",
            "--iteration-noise-period: blocks of whole environments show that noise in every step. "
            "Leave it out, or give --shuffle transitions as well",
        ),
        (
            f"--iteration-noise-period 1 {STREAM}",
            "--iteration-noise-period: blocks of whole environments show that noise in every step. Leave it out",
        ),
        (
            "--iteration-noise-period 1 --environments 8 --rollout-length 16 --mini-batch 32 --shuffle environments",
            "--iteration-noise-period: it is measured where transitions are shuffled, and steps of 2 whole environments show "
            "none. Leave it out, or give --shuffle transitions as well",
        ),
        (
            "--policy-noise-period 1 --environments 1 --rollout-length 128 --mini-batch 32",
            "--policy-noise-period: a single environment shows no noise between environments. "
            "Leave it out, or give more --environments",
        ),
        (
            "--learners 2 --device cuda:1",
            "--device: the accelerators are Ray's to choose: each of 2 learners gets one of its own. Give --device cuda",
        ),
        (
            "--actors 2 --actor-device cuda:1",
            "--actor-device: the accelerators are Ray's to choose: rollout actors share them. Give --actor-device cuda",
        ),
        (
            "--clones 4 --environments 32 --rollout-length 32 --mini-batch 256",
            "--clones: a mini-batch holds 2 environments and clones: too few to see noise between them. "
            "Give --mini-batch None, or more environments",
        ),
        (
            f"--batch-size adaptive --environments 64 --shuffle transitions {ONE_STEP}",
            "--batch-size: an adaptive batch follows the noise between environments, and transitions are shuffled. "
            "Use 8 environments or more, and no --shuffle transitions",
        ),
        (
            "--proximal-average 0",
            "--proximal-average: an average of age 0 is the present policy, so that no clip binds. Give one above zero",
        ),
    ],
)
def test_a_new_run_refuses_options_that_would_do_nothing(words, said):
    config = settings(words)
    with pytest.raises(UsageError) as refusal:
        check_idle_options(config)
    assert str(refusal.value) == said


@pytest.mark.parametrize(
    "words",
    [
        "--beta2 0.5",
        "--algorithm a2c",
        "--algorithm a2c --optimizer adam --beta2 0.5",
        f"--iteration-noise-period 0 {ONE_STEP}",
        "--iteration-noise-period 1 --shuffle transitions",
        "--learners 2 --device cuda",
        "--device cuda:1",
        "--actor-device cuda:1",
        "--actors 2 --actor-device cuda",
        f"--clones 4 --environments 32 {ONE_STEP}",
        f"--batch-size adaptive --environments 64 {ONE_STEP}",
        "--proximal-average 8",
    ],
)
def test_a_new_run_takes_options_that_do_something(words):
    check_idle_options(settings(words))
