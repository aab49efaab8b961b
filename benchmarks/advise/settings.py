"""From a predicted critical batch size to settings of PPO, and to the lines that set them in three libraries."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlscale.agents.compute import resolve_device
from rlscale.agents.config import TrainConfig
from rlscale.errors import UsageError
from rlscale.estimate import Estimate

from ..workers.recommendation import flags_that_differ

__all__ = ["Settings", "as_advised", "configured", "flags_beside", "lines_for", "settings_for", "settings_of"]

MINI_BATCHES = 4  # least number of optimizer steps of one pass over an iteration batch
LARGEST = 2**17  # optimization batch that is suggested
_MOST_RATE = 4.0  # times the default learning rate: beyond it nobody has looked


@dataclass(frozen=True)
class Settings:
    """PPO as people run it, with a suggested batch.

    Attributes:
        actors: Ray actors.
        environments: of all actors together.
        rollout_length: steps of each environment an iteration. Both differ a little from what the run had, where only so
            mini-batches divide the batch.
        fewest_environments, usual_length: the same without that, for libraries whose mini-batches need not divide the batch.
        mini_batch: steps of environments in an optimizer step; those that only reset one are no observations.
        epochs: passes over an iteration batch.
        learning_rate: the task's own, times the root of the growth of the mini-batch.
        tuned_rate: the same for a run with `--tuned-batch`, which is told the rate at that batch; else the learning rate itself.
    """

    actors: int
    environments: int
    rollout_length: int
    fewest_environments: int
    usual_length: int
    mini_batch: int
    epochs: int
    learning_rate: float
    tuned_rate: float

    @property
    def batch_size(self) -> int:
        """Observations of an iteration batch."""
        return self.environments * self.rollout_length


def as_advised(config: TrainConfig, usual: TrainConfig, ray_address: str | None = None) -> TrainConfig:
    """How a run trains that follows the advice, before `Settings` are put in: as the one that was read, where it can.

    A batch of one size that is held, one learner for all, and so many actors of one CPU each: what belongs to another way of
    running is left out, since with it `check_config` would refuse every mini-batch that is advised.

    Args:
        config: of the run that was read.
        usual: of its task and algorithm by default.
        ray_address: of the cluster that it is to run on.
    """
    rollout = replace(
        config.rollout,
        environments=config.batch // config.rollout.rollout_length,  # a batch that was filled in rounds is still the usual one
        batch_size=None,
        exchange_rate=None,
        fragment_environments=None,
        lag=0,
        actors=1,
        actor_price=None,
        actor_cpus=1,
        actor_device=_here(config.rollout.actor_device, "cpu"),
        ray_address=ray_address,
    )
    # Without a budget of observations, as in this command's own training, there is no end to anneal to: nobody chose that.
    anneal = usual.update.anneal if config.budget.observations is None else config.update.anneal
    update = replace(
        config.update, anneal=anneal, learners=1, stream=False, threads=0, device=_here(config.update.device, "auto")
    )
    return replace(usual, rollout=rollout, update=update)


def _here(device: str, otherwise: str) -> str:
    """A device, or another one where this machine has none of its kind."""
    try:
        resolve_device(device)
    except UsageError:
        return otherwise
    return device


def flags_beside(config: TrainConfig, usual: TrainConfig) -> list[str]:
    """What `rlscale train` must be told beside `Settings`: the algorithm, and what is not as by default.

    Args:
        config: to be trained with, as of `configured`.
        usual: of its task and algorithm by default.
    """
    r, u = config.rollout, config.update
    rollout = replace(usual.rollout, actors=r.actors, environments=r.environments, rollout_length=r.rollout_length)
    update = replace(usual.update, mini_batch=u.mini_batch, epochs=u.epochs, learning_rate=u.learning_rate)
    algorithm = [] if u.algorithm == "ppo" else ["--algorithm", u.algorithm]
    return [*algorithm, *flags_that_differ(r, rollout), *flags_that_differ(u, update)]


def settings_for(config: TrainConfig, suggestion: Estimate, actors: int) -> Settings:
    """The task's own settings with an optimization batch as suggested, to the next power of two.

    Args:
        config: how the task is trained by default.
        suggestion: predicted critical batch size in steps of environments; where only its lower end is known that is taken. Where
            nothing is known, or less than the usual batch, that stays.
        actors: to spread the environments over.
    """
    usual = config.update.mini_batch or config.batch
    wanted = suggestion.value or (suggestion.interval or (0.0, math.inf))[0]
    size = usual if wanted <= usual else max(usual, int(min(2 ** round(math.log2(wanted)), LARGEST)))
    return settings_of(config, size, actors)


def settings_of(config: TrainConfig, size: int, actors: int) -> Settings:
    """The task's own settings with mini-batches of a size, no smaller than by default; other arguments as of `settings_for`."""
    usual, steps = config.update.mini_batch or config.batch, config.rollout.rollout_length
    most = config.batch if size == usual else max(config.batch, MINI_BATCHES * size)
    first = max(1, math.ceil(most / (steps * actors)))
    told, growth = config.update.learning_rate, math.sqrt(size / usual)
    rate = told / math.sqrt(config.batch_divisor) * min(growth, _MOST_RATE)
    if size != usual:
        rate = float(f"{rate:.4g}")  # as many digits as sweeps name
    return Settings(
        actors=actors,
        **_divided(actors, first, steps, size),
        fewest_environments=actors * first,
        usual_length=steps,
        mini_batch=size,
        epochs=config.update.epochs,
        learning_rate=rate,
        tuned_rate=rate if config.update.tuned_batch is None else told * min(1.0, _MOST_RATE / growth),
    )


def _divided(actors: int, first: int, steps: int, size: int) -> dict[str, int]:
    """Environments and rollout length of a batch that mini-batches of that size divide, as near as can be to what was asked for.

    Args:
        actors: that have equally many environments.
        first: environments of each, the fewest that are enough.
        steps: rollout length that was asked for.
        size: of a mini-batch.
    """

    def changed(made: tuple[int, int]) -> tuple[float, int]:
        each, length = made
        return abs(math.log(length / steps)) + abs(math.log(each * length / (first * steps))), each

    units = ((each, size // math.gcd(size, actors * each)) for each in range(first, 4 * first + 1))
    each, length = min(((each, max(round(steps / unit), 1) * unit) for each, unit in units), key=changed)
    return {"environments": actors * each, "rollout_length": length}


def configured(config: TrainConfig, settings: Settings) -> TrainConfig:
    """The configuration of `rlscale train` with these settings, and with an average of PPO-EWMA as old in observations."""
    rollout = replace(
        config.rollout,
        actors=settings.actors,
        environments=settings.environments,
        rollout_length=settings.rollout_length,
        batch_size=None,
    )
    age = config.update.proximal_average
    if age is not None and config.update.tuned_batch is None:  # which scales it by itself
        age *= config.mini_batch / settings.mini_batch
    update = replace(config.update, mini_batch=settings.mini_batch, learning_rate=settings.tuned_rate, proximal_average=age)
    return replace(config, rollout=rollout, update=update)


def lines_for(
    task: str, settings: Settings, learners: int = 1, algorithm: str = "ppo", beside: Sequence[str] = ()
) -> dict[str, str]:
    """What to type or write, by the name of the tool; of A2C none for RLlib, which has no such algorithm.

    Args:
        task: what is trained.
        settings: of the whole job.
        learners: of an RLlib job, whose batch and mini-batch are those of one learner.
        algorithm: ppo or a2c.
        beside: what else `rlscale train` must be told, see `flags_beside`.
    """
    s = settings
    theirs = replace(s, environments=s.fewest_environments, rollout_length=s.usual_length)
    ours = (
        f"rlscale train {task} --actors {s.actors} --environments {s.environments} --rollout-length {s.rollout_length} "
        f"--mini-batch {s.mini_batch} --epochs {s.epochs} --learning-rate {s.tuned_rate:g}"
    )
    ours += f" {shlex.join(beside)}" if beside else ""
    if algorithm == "a2c":
        rollouts = math.ceil(s.mini_batch / s.usual_length)  # that library's makes one optimizer step of all of them
        a2c = f"A2C(policy, make_vec_env(env, n_envs={rollouts}), n_steps={s.usual_length}, learning_rate={s.learning_rate:g})"
        return {"rlscale": ours, "Stable-Baselines3": a2c}
    several = f".learners(num_learners={learners})" if learners > 1 else ""
    each = theirs.environments // s.actors
    taught = theirs.batch_size // learners  # no more of all learners than the runners' fragments hold, which RLlib would refuse
    return {
        "rlscale": ours,
        "RLlib": (
            f"config.env_runners(num_env_runners={s.actors}, num_envs_per_env_runner={each}, "
            f"rollout_fragment_length={s.usual_length})"
            f"{several}.training(train_batch_size_per_learner={taught}, "
            f"minibatch_size={min(math.ceil(s.mini_batch / learners), taught)}, num_epochs={s.epochs}, "
            f"lr={s.learning_rate:g})"
        ),
        "Stable-Baselines3": (
            f"PPO(policy, make_vec_env(env, n_envs={theirs.environments}), n_steps={s.usual_length}, "
            f"batch_size={s.mini_batch}, n_epochs={s.epochs}, learning_rate={s.learning_rate:g})"
        ),
    }
