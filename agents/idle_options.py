"""`check_idle_options` refuses options that would do nothing, or measure nothing, in a new run, of settings that can work.

This is no part of `check_config`: sweeps have a β₂ for every optimizer, what changes a recorded run's settings keeps the others,
earlier versions took such options, whose runs go on, and a sweep's smallest batches may hold one environment with its clones.
"""

from rlscale.errors import UsageError

from .config import FEWEST_BLOCKS, TrainConfig, Update

__all__ = ["check_adaptive", "check_idle_options", "hides_noise"]


def hides_noise(config: TrainConfig) -> bool:
    """Whether a mini-batch holds too few different environments, their clones aside, to see the noise between them."""
    return config.rollout.clones > 1 and config.noise.joint_noise_period > 0 and _different(config) < 3


def _different(config: TrainConfig) -> int:
    return config.mini_batch // (config.rollout.rollout_length * config.rounds * config.rollout.clones)


def check_adaptive(config: TrainConfig) -> None:
    """Refuse an adaptive batch of shuffled transitions, which would follow the wrong noise, in a resumed run too.

    Raises:
        UsageError: names the flag and the mend.
    """
    if config.adaptive and config.shuffles_transitions:
        problem = "an adaptive batch follows the noise between environments, and transitions are shuffled"
        raise UsageError("--batch-size", problem, f"Use {FEWEST_BLOCKS} environments or more, and no --shuffle transitions")


def check_idle_options(config: TrainConfig) -> None:
    """Refuse options of `rlscale train` that nothing would look at; the settings must have been checked.

    Raises:
        UsageError: names the flag and the mend.
    """
    u = config.update
    if u.proximal_average == 0:
        problem = "an average of age 0 is the present policy, so that no clip binds"
        raise UsageError("--proximal-average", problem, "Give one above zero")
    check_adaptive(config)
    if hides_noise(config):
        held = _different(config)
        problem = f"a mini-batch holds {held} environment{'s' * (held != 1)} and clones: too few to see noise between them"
        raise UsageError("--clones", problem, "Give --mini-batch None, or more environments")
    if u.beta2 != Update().beta2 and u.optimizer != "adam":
        raise UsageError("--beta2", f"{u.optimizer} has none", "Leave it out, or give --optimizer adam as well")
    if config.rollout.environments // config.rollout.clones < 2:
        for head in ("policy", "value", "entropy", "iteration"):
            if getattr(config.noise, f"{head}_noise_period"):
                problem = "a single environment shows no noise between environments"
                raise UsageError(f"--{head}-noise-period", problem, "Leave it out, or give more --environments")
    if config.noise.iteration_noise_period and not config.shuffles_transitions:
        problem = "blocks of whole environments show that noise in every step"
        if (held := _different(config)) < 3:
            problem = f"it is measured where transitions are shuffled, and steps of {held} whole environments show none"
        mend = "Leave it out" if u.stream else "Leave it out, or give --shuffle transitions as well"
        raise UsageError("--iteration-noise-period", problem, mend)
    for flag, given, count, whose in (
        ("--device", u.device, u.learners if u.learners > 1 else 0, f"each of {u.learners} learners gets one of its own"),
        ("--actor-device", config.rollout.actor_device, config.rollout.actors, "rollout actors share them"),
    ):
        device, _, number = given.partition(":")
        if count and number and device != "cpu":
            raise UsageError(flag, f"the accelerators are Ray's to choose: {whose}", f"Give {flag} {device}")
