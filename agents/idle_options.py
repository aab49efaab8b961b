"""`check_idle_options` refuses options that would do nothing in a new run, of settings that can work.

This is no part of `check_config`: sweeps have a β₂ for every optimizer, what changes a recorded run's settings keeps the others,
and earlier versions took such options, whose runs go on.
"""

from rlscale.errors import UsageError

from .config import TrainConfig, Update

__all__ = ["check_idle_options"]


def check_idle_options(config: TrainConfig) -> None:
    """Refuse options of `rlscale train` that nothing would look at; the settings must have been checked.

    Raises:
        UsageError: names the flag and the mend.
    """
    u = config.update
    if u.beta2 != Update().beta2 and u.optimizer != "adam":
        raise UsageError("--beta2", f"{u.optimizer} has none", "Leave it out, or give --optimizer adam as well")
    if config.noise.iteration_noise_period and not config.shuffles_transitions:
        problem = "blocks of whole environments show that noise in every step"
        mend = "Leave it out" if u.stream else "Leave it out, or give --shuffle transitions as well"
        raise UsageError("--iteration-noise-period", problem, mend)
    device, _, number = u.device.partition(":")
    if u.learners > 1 and number and device != "cpu":
        problem = f"each of {u.learners} learners gets an accelerator of its own, by Ray's choice"
        raise UsageError("--device", problem, f"Give --device {device}")
