"""`NoiseCallback`: a callback of Stable-Baselines3 that measures the noise of a job and keeps a record of it.

A row of the record is an iteration: a rollout and the training on it. The callback hears of the end of the training only when the
next rollout begins, or the job ends.
"""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor, is_vecenv_wrapped

from rlscale.errors import UsageError
from rlscale.noise import noise_scale
from rlscale.records.run import Run

from ..job_record import check_measurement, command_line, job_config, job_facts, open_job, refuse_existing
from ..learning import NoiseRecord
from ..machine import describe_machine
from .measure import measure_rollout

__all__ = ["NoiseCallback"]

# What Stable-Baselines3 logs of a training: our name of it, and the factor between both.
_FIGURES = {
    "train/policy_gradient_loss": ("policy_loss", 1.0),  # PPO's
    "train/policy_loss": ("policy_loss", 1.0),  # A2C's
    "train/value_loss": ("value_loss", 0.5),  # that library's has no ½
    "train/entropy_loss": ("entropy", -1.0),
    "train/approx_kl": ("approx_kl", 1.0),
    "train/clip_fraction": ("clip_fraction", 1.0),
    "train/explained_variance": ("explained_variance", 1.0),
}


class NoiseCallback(BaseCallback):  # type: ignore[misc]  # Stable-Baselines3 is not checked
    """Measures the gradient noise of a PPO or A2C job of Stable-Baselines3, and keeps a record of the job.

    Args:
        run: folder of the record to be written. `rlscale report`, `compare` and `advise` read it.
        every: measure in the first rollout and in every so many-th after it. None: every 4th of PPO and every 100th of A2C, which
            makes one step a rollout, so that measuring each would take more time than learning.
        blocks: number of blocks at most. Blocks are sets of environments where there are at least eight environments, else sets
            of episodes and of pieces of them.

    Raises:
        UsageError: settings that cannot be used, or the folder exists.
    """

    def __init__(self, run: str | Path, *, every: int | None = None, blocks: int = 16) -> None:
        super().__init__()
        check_measurement(1 if every is None else every, blocks)
        self._folder, self._asked, self._blocks = Path(run).absolute(), every, blocks
        refuse_existing(self._folder)
        self._command = command_line()
        self._created = False  # the record's folder, by this callback
        self._job: tuple[Any, ...] = ()  # the model of the record, and what a restored copy of it has in common with it
        self._run: Run | None = None
        self._hook: Any = None
        self._iteration = self._optimizer_steps = self._observations = 0
        self._seconds = 0.0  # up to the last row, and of the sessions before
        self._row: dict[str, Any] | None = None  # of the iteration under way, from the end of its rollout on
        self._counted: list[tuple[float, int]] = []  # return and length so far of every environment's episode
        self._others = 0.0  # seconds of this rollout that other callbacks took
        self._timed: list[BaseCallback] = []  # these

    def _on_training_start(self) -> None:
        """`learn` begins: open the record, or go on with it where this same callback has kept it before."""
        self._close()  # a `learn` that an error or Ctrl-C ended has not called `_on_training_end`
        model = self.model
        if not isinstance(model, PPO | A2C) or type(model).train not in (PPO.train, A2C.train):
            raise UsageError("model", f"{type(model).__name__} does not train by PPO's or A2C's loss", "Use PPO or A2C itself")
        self._every = self._asked or (4 if isinstance(model, PPO) else 100)
        facts = self._facts(model)
        job = (facts["task"]["id"], type(model).__name__, facts["seed"], facts["parameters"])
        if self._created and self._is_another(model, job):
            problem = f"{self._folder} is the record of another model's job"
            raise UsageError("run", problem, "Give every job a NoiseCallback and a folder of its own")
        go_on = self._created and not self.locals["reset_num_timesteps"]
        environments = "as they were" if go_on and not all(model._last_episode_starts) else "new"  # as after `set_env`
        self._run = open_job(self._folder, facts, go_on=self._created)
        self._created, self._job = True, (model, *job)
        self._run.begin_segment(facts, self._iteration, environments)
        self._hook = model.policy.optimizer.register_step_post_hook(self._count_step)
        self._monitored = _monitored(model.env)
        # An episode that goes on from the `learn` before was counted there in part. `set_env` begins all anew, whatever is asked.
        before = dict(enumerate(self._counted))
        self._counted = [(0.0, 0) if starts else before.get(i, (0.0, 0)) for i, starts in enumerate(model._last_episode_starts)]
        self._time_others(self.locals.get("callback"))
        self._started = time.perf_counter()

    def _is_another(self, model: Any, job: tuple[Any, ...]) -> bool:
        """Whether a model is neither the record's nor that one restored: it is of another kind, or has learned nothing yet."""
        before, *known = self._job
        return model is not before and (job != tuple(known) or (self._iteration > 0 and not model._n_updates))

    def _time_others(self, callback: Any) -> None:
        """Take the time of the callbacks beside this one: an evaluation within a rollout is no sampling."""
        self._timed = [other for other in _leaves(callback) if other is not self]
        for other in self._timed:
            other.on_step = partial(self._time_other, other.on_step)

    def _time_other(self, on_step: Callable[[], bool]) -> bool:
        begun = time.perf_counter()
        try:
            return on_step()
        finally:
            self._others += time.perf_counter() - begun

    def _count_step(self, *_: Any) -> None:
        self._optimizer_steps += 1

    def _on_rollout_start(self) -> None:
        """The training on the rollout before has ended."""
        self._finish_row()
        self._episodes: list[tuple[float, int]] = []
        self._rollout_started, self._others = time.perf_counter(), 0.0

    def _on_step(self) -> bool:
        """Count the returns of the episodes that end: those of `Monitor` where there is one.

        A monitored environment may be done without an episode's end, at a lost life of an Atari game. `Monitor` says nothing
        then, and the rewards of one life are no episode's return.
        """
        for i, (reward, done, info) in enumerate(
            zip(self.locals["rewards"], self.locals["dones"], self.locals["infos"], strict=True)
        ):
            total, length = self._counted[i][0] + float(reward), self._counted[i][1] + 1
            self._counted[i] = (0.0, 0) if done else (total, length)
            episode = info.get("episode") if done or self._monitored[i] else None
            if done and episode is None and not self._monitored[i]:
                episode = {"r": total, "l": length}
            if episode is not None:
                self._episodes.append((float(episode["r"]), int(episode["l"])))
        return True

    def _on_rollout_end(self) -> None:
        """The rollout is complete and nothing was learned from it yet: measure, if it is due."""
        begin = time.perf_counter()
        noise: list[NoiseRecord] = []
        if self._iteration % self._every == 0:
            noise = measure_rollout(self.model, self._blocks, self._optimizer_steps)
            self._log(noise)
        now = time.perf_counter()
        batch = int(self.model.n_steps * self.model.n_envs)
        returns, lengths = [r for r, _ in self._episodes], [length for _, length in self._episodes]
        self._row = {
            "iteration": self._iteration,
            "observations": self._observations + batch,
            "batch_observations": batch,
            "episodes": len(returns),
            "return_mean": sum(returns) / len(returns) if returns else None,
            "return_min": min(returns, default=None),
            "return_max": max(returns, default=None),
            "episode_length_mean": sum(lengths) / len(lengths) if lengths else None,
            "sampling_seconds": begin - self._rollout_started - self._others,
            "transfer_seconds": None,
            "noise_seconds": now - begin,
            "noise": [record.entry() for record in noise],
        }

    def _log(self, noise: list[NoiseRecord]) -> None:
        """Show this measurement among what Stable-Baselines3 logs, under `noise/`."""
        for record in noise:
            measured = noise_scale(record.statistics)
            figures = {"trace_cov": measured.trace_cov, "grad_sq": measured.grad_sq, "b_simple": measured.b_simple}
            for name, value in figures.items():
                key = f"noise/{record.head}/{name}"
                if value is not None:
                    self.logger.record(key, value)
                else:  # what an earlier measurement left there would be shown beside the figures of this one
                    self.logger.name_to_value.pop(key, None)
                    self.logger.name_to_excluded.pop(key, None)

    def _finish_row(self) -> None:
        """Complete the row of the iteration whose training has ended, and write it."""
        if self._row is None or self._run is None:
            return
        now = time.perf_counter()
        elapsed = now - self._rollout_started
        self._seconds, self._started = self._seconds + now - self._started, now
        logged = self.logger.name_to_value
        self._run.append(
            {
                **self._row,
                "optimizer_steps": self._optimizer_steps,
                "seconds": self._seconds,
                "learning_rate": float(self.model.policy.optimizer.param_groups[0]["lr"]),
                **{field: factor * float(logged[name]) for name, (field, factor) in _FIGURES.items() if name in logged},
                "learning_seconds": elapsed - self._row["sampling_seconds"] - self._others,
                "observations_per_second": self._row["batch_observations"] / elapsed,
            }
        )
        self._iteration, self._observations = self._iteration + 1, self._row["observations"]
        self._row = None

    def _on_training_end(self) -> None:
        """`learn` ends: write the last row and close the record."""
        self._finish_row()
        self._seconds += time.perf_counter() - self._started
        if self._run is not None:
            self._run.set_state("finished")
        self._close()

    def _close(self) -> None:
        """Let go of the record and the model.

        A row whose iteration has not ended is dropped, and its iteration made again; what was observed for it was observed.
        """
        if self._row is not None:
            self._observations, self._row = self._row["observations"], None
        for other in self._timed:
            other.__dict__.pop("on_step", None)
        self._timed = []
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if self._run is not None:
            self._run.close()
            self._run = None

    def _facts(self, model: Any) -> dict[str, Any]:
        """Task, settings, versions and machine of the job, for the manifest."""
        settings = {"algorithm": type(model).__name__} | {k: v for k, v in vars(model).items() if not k.startswith("_")}
        return job_facts(
            task=_task_name(model.env),
            preprocessing="Stable-Baselines3's environment and wrappers",
            config=job_config("sb3", settings, self._every, self._blocks, model.n_envs),
            seed=model.seed,
            command=self._command,
            machine=describe_machine(model.device),
            device=str(model.device),
            threads=torch.get_num_threads(),
            parameters=sum(p.numel() for p in model.policy.parameters() if p.requires_grad),
        )


def _leaves(callback: Any) -> list[BaseCallback]:
    """The callbacks in a list, and in lists within it; none where `learn` was not called."""
    if isinstance(callback, CallbackList):
        return [leaf for one in callback.callbacks for leaf in _leaves(one)]
    return [callback] if isinstance(callback, BaseCallback) else []


def _monitored(env: Any) -> list[bool]:
    """Of which environments Stable-Baselines3 itself counts the episodes."""
    if is_vecenv_wrapped(env, VecMonitor):
        return [True] * env.num_envs
    try:
        known = list(env.env_is_wrapped(Monitor))
    except Exception:  # a vector environment of the user's own need not know, and may refuse in any way
        known = []
    return known if len(known) == env.num_envs else [False] * env.num_envs  # Isaac Lab's answers once for all of them


def _task_name(env: Any) -> str:
    """The environments' id at Gymnasium; that of their class where they were not made by one.

    It is read from what an environment says of itself, `<Monitor<CartPole-v1>>`: its spec may not be one that can be pickled.
    """
    try:
        said = str(env.env_method("__str__", indices=[0])[0])
    except Exception:  # as above; Isaac Lab's passes `indices` on to the method
        said = ""
    innermost = re.search(r"<([^<> ]+)[^<>]*>+$", said)
    return innermost[1] if innermost else type(env.unwrapped).__name__
