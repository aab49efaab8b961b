"""How any run or job learned, in the terms of `rlscale train`: one of our own, of RLlib, or of Stable-Baselines3.

What its noise says is in `rlscale.analysis.reading`; what is advised, in `run` and `settings`.
"""

import statistics
from dataclasses import replace
from operator import itemgetter
from typing import Any, Literal

from rlscale.agents.config import Rollout, TrainConfig, Update, config_from_dict, config_of_run
from rlscale.envs import Task, find_task
from rlscale.errors import UsageError
from rlscale.records import RunRecord, kind_of

__all__ = ["as_this_task", "config_of", "is_foreign", "learners_of", "task_of", "valid_share"]


def task_of(record: RunRecord) -> Task | None:
    """The task of a run; None where rlscale does not know it, as of a job of another library."""
    try:
        return find_task(record.manifest["task"]["id"])
    except UsageError:
        return None


def is_foreign(record: RunRecord) -> bool:
    """Whether it is a job of another library."""
    return kind_of(record.manifest["config"]) in ("rllib", "sb3")


def config_of(record: RunRecord) -> TrainConfig:
    """How the run learned, at the rate that it had, or at the one that `--tuned-batch` begins from.

    Of a job of RLlib or Stable-Baselines3, what its settings are called here.

    Raises:
        UsageError: a job that had no learning rate but 0, or a run that learned from examples.
    """
    stored = record.manifest["config"]
    # A schedule begins near 0 where it warms up and ends near 0 where it decays: the rate that was chosen is the largest.
    rate = max(row["learning_rate"] for row in record.rows)
    if not is_foreign(record):
        config = _filled(config_of_run(record, "--run"), record)
        if config.update.lr_rule == "constant":
            return config
        # A rule made that rate for the run's batch; the advice scales it itself, and names no rule that would do so again.
        update = replace(config.update, learning_rate=rate, lr_rule="constant", lr_batch=None)
        return replace(config, update=update)
    if not rate > 0:
        problem = f"{record.folder} is of a job whose learning rate was 0 in every iteration"
        raise UsageError("--run", problem, "Name one that learned")
    actors = 0
    algorithm: Literal["ppo", "a2c"] = "ppo"
    if kind_of(stored) == "sb3":
        job = stored["sb3"]
        environments = int(job["n_envs"])
        batch = environments * int(job["n_steps"])
        epochs, mini_batch = job.get("n_epochs"), job.get("batch_size")
        algorithm = "a2c" if epochs is None else "ppo"  # not by its name, which a user's subclass changes
    else:
        job = stored["rllib"]
        actors = int(job.get("num_env_runners") or 0)
        environments = max(actors, 1) * int(job.get("num_envs_per_env_runner") or 1)
        each, learners = job.get("_train_batch_size_per_learner"), learners_of(record)  # as RLlib stores them
        batch = int(each * learners if each else job.get("train_batch_size") or 4000)
        epochs, mini_batch = job.get("num_epochs"), (job.get("minibatch_size") or 0) * learners
    rollout = Rollout(environments=environments, rollout_length=max(1, batch // environments), actors=actors)
    # Of a rollout that is smaller Stable-Baselines3 takes the whole; and RLlib's may not be a multiple of the environments.
    size = min(int(mini_batch or batch), environments * rollout.rollout_length)
    update = Update(algorithm=algorithm, epochs=int(epochs or 1), mini_batch=size, learning_rate=rate)
    return TrainConfig(task=record.manifest["task"]["id"], rollout=rollout, update=update)


def learners_of(record: RunRecord) -> int:
    """Learners of an RLlib job, each of which has a batch of its own; 1 of any other run, whose batch is the whole."""
    return max(int(record.manifest["config"].get("rllib", {}).get("num_learners") or 0), 1)


def valid_share(record: RunRecord) -> float:
    """Of the steps of the run's batches, those that were observations; a job of another library counts observations alone."""
    if is_foreign(record):
        return 1.0
    return min(sum(row["batch_observations"] for row in record.rows) / sum(_steps(record)), 1.0)


def as_this_task(job: TrainConfig, usual: TrainConfig) -> TrainConfig:
    """The batch, epochs and rate of another library's job; everything else as the task is trained here."""
    update = replace(
        usual.update, epochs=job.update.epochs, mini_batch=job.update.mini_batch, learning_rate=job.update.learning_rate
    )
    rollout = replace(
        usual.rollout, environments=job.rollout.environments, rollout_length=job.rollout.rollout_length, batch_size=None
    )
    return replace(usual, rollout=rollout, update=update)


def _filled(config: TrainConfig, record: RunRecord) -> TrainConfig:
    """The same with a batch of one size, that of the run on average, where its own followed the noise."""
    if not config.adaptive:
        return config
    environments = max(round(statistics.fmean(_steps(record)) / config.rollout.rollout_length), 1)
    return replace(config, rollout=replace(config.rollout, environments=environments, batch_size=None, exchange_rate=None))


def _steps(record: RunRecord) -> list[int]:
    """Steps of environments in the batch of each row, which a resumed run may have changed and an adaptive one does.

    Early records did not say of what fragments a session's batches were made: there each had the configured size, and one that
    followed the noise counts as observations alone.
    """
    found, config = [], config_from_dict(record.manifest["config"])
    for row in record.rows:
        begun = [one for one in record.manifest["segments"] if one["first_iteration"] <= row["iteration"]]
        last: dict[str, Any] = max(begun, key=itemgetter("first_iteration"), default={})
        if "memory" in last and "fragments" in row:
            length = last["config"]["rollout"]["rollout_length"]
            found.append(row["fragments"] * last["memory"]["environments"] * length)
        else:
            found.append(row["batch_observations"] if config.adaptive else config.batch)
    return found
