"""The checkpoint of a run: how it is written, opened and checked; `TrainedPolicy`, to act with; what a resumed run takes of it.

A resumed run keeps some settings, and its environments go on where they can. What is in a checkpoint is `Session.get_state`'s,
when one is written is `rlscale.agents.train`'s, and the file `rlscale.records.run`'s.
"""

import io
import shlex
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlscale.envs import BoxActions, Task, find_task
from rlscale.errors import UsageError
from rlscale.records import Run, RunRecord, read_run
from rlscale.records.run import read_checkpoint

from .checks import check_config
from .config import TrainConfig, config_from_dict, config_of_run
from .learning import what_is_followed
from .memory import MemoryPlan, count_parameters
from .networks import PARAMETER_ORDER, ActingNetwork, flatten_parameters, make_network

__all__ = ["TrainedPolicy", "dump", "kept_environments", "load", "load_checkpoint", "read_state", "why_afresh", "write_state"]

# What no part of a run can change: with another value it would be another run.
_FIXED: dict[str, Callable[[TrainConfig], object]] = {
    "--environments": lambda c: c.rollout.environments,
    "--rollout-length": lambda c: c.rollout.rollout_length,
    "--random-first-steps": lambda c: c.rollout.random_first_steps,
    "--algorithm": lambda c: c.update.algorithm,
    "--network": lambda c: c.update.network,
    "--width": lambda c: c.update.width,
    "--optimizer": lambda c: c.update.optimizer,
    "--seed": lambda c: c.seed,
}


def dump(state: Any) -> bytes:
    """A state as bytes, for a file or another process."""
    stored = io.BytesIO()
    torch.save(state, stored)
    return stored.getvalue()


def load(stored: bytes) -> Any:
    """The inverse of `dump`."""
    return torch.load(io.BytesIO(stored), map_location="cpu", weights_only=False)


def write_state(run: Run, config: TrainConfig, state: dict[str, Any]) -> None:
    """Write a session's state as the run's checkpoint, in the place of the one before."""
    facts = {"task": run.manifest["task"]["id"], "config": asdict(config), "parameter_order": PARAMETER_ORDER}
    run.save_checkpoint(dump({**facts, **state}))


def read_state(run: Run | RunRecord, task: Task, field: str = "RUN") -> dict[str, Any]:
    """The session's state in the last checkpoint of a run, with the settings it had then as `config`.

    Args:
        run: of that task.
        task: as it is now; a user's own may have changed.
        field: what the user named the run with, for the error.

    Raises:
        UsageError: there is none, it is damaged or of another task, its parameters mean something else here, or its policy is for
            other observations or actions than the task has.
    """
    stored: dict[str, Any] = load(read_checkpoint(run.folder, field))
    recorded = run.manifest["task"]["id"]
    if stored.get("task", recorded) != recorded:
        raise UsageError(field, f"its checkpoint is of {stored['task']}, not of {recorded}", "Restore it from a copy")
    # The manifest's settings are the last session's, which may have ended before it saved anything.
    config = config_from_dict(stored.setdefault("config", run.manifest["config"]))
    # In the first order only these networks were others: their parameters are as many, and would be taken for theirs of now.
    if stored.get("parameter_order", 1) != PARAMETER_ORDER and config.update.network in ("nature_cnn", "small_cnn"):
        raise UsageError(
            field,
            f"the checkpoint in {run.folder} is an earlier rlscale's, whose dense layers read images in another order",
            "Go on with the version that wrote it, or start a new run",
        )
    held, needed = stored["learner"]["parameters"].numel(), count_parameters(config, task)
    if held != needed:
        problem = f"its policy has {held:,} parameters, and {task.id} as it is now needs {needed:,}"
        raise UsageError(field, problem, "Restore the environment as it was, or train a new run")
    return stored


class TrainedPolicy:
    """The policy of a run's last checkpoint, to act with in a program of your own, on the CPU.

    Args:
        run: the run's folder.

    Attributes:
        task: that it was trained on; `rlscale.envs.make_env(task, n)` makes n of its environments.

    Raises:
        UsageError: there is no run or no checkpoint, or it cannot be used; the message says why.
    """

    def __init__(self, run: str | Path) -> None:
        record = read_run(run)
        config = config_of_run(record)
        self.task = find_task(config.task)
        self._network = make_network(self.task, config.update.network, 0, config.update.width)
        flatten_parameters(self._network).copy_(read_state(record, self.task)["learner"]["parameters"])
        self._acting = ActingNetwork(self._network, bfloat16=False)

    def act(self, observation: np.ndarray, generator: np.random.Generator | None = None) -> np.ndarray:
        """Actions for n observations: the most likely ones, or drawn as in training where a generator is given.

        Args:
            observation: (n, *task.observation_shape), as the task's environments give them.
            generator: draws the actions.

        Returns:
            (n,) int64 of discrete actions, (n, k) float32 of continuous ones, which an environment clips to its bounds.
        """
        distribution = self._network.distribution(self._acting(torch.from_numpy(observation)).policy)
        if generator is not None:
            return distribution.sample(generator)
        numbers = distribution.numbers().numpy()
        return numbers[:, : len(self.task.actions)] if isinstance(self.task.actions, BoxActions) else numbers.argmax(axis=1)


def load_checkpoint(run: Run, config: TrainConfig, task: Task) -> dict[str, Any]:
    """The run's checkpoint, checked against what is asked for now.

    Raises:
        UsageError: another task, settings that a run cannot change or that cannot work, or a checkpoint that cannot be used.
    """
    recorded = run.manifest["task"]["id"]
    if recorded != config.task:
        raise UsageError(
            "--resume",
            f"the run in {run.folder} is of task {recorded}, not {config.task}",
            f"Use: {shlex.join(['rlscale', 'train', recorded, '--resume', str(run.folder)])}",
        )
    stored = read_state(run, task, "--resume")
    before = config_from_dict(stored["config"])
    for flag, setting in _FIXED.items():
        if setting(before) != setting(config):
            raise UsageError(
                flag, f"a resumed run keeps {setting(before)}, not {setting(config)}", "Leave it out, or start a new run"
            )
    check_config(config)  # no sooner: its mends may be to change what a run keeps
    if what_is_followed(before) != what_is_followed(config):
        stored["window"] = []  # of another loss, or between other blocks, whose noise says nothing about this one's
    return stored


def kept_environments(checkpoint: dict[str, Any], config: TrainConfig) -> int | None:
    """Environments of a fragment with which those of the checkpoint can go on, whoever steps them now; None where none does.

    A run whose actors may become more begins with smaller groups, since an actor has at least one.
    """
    before = config_from_dict(checkpoint["config"])
    if not _has_states(checkpoint) or _kind(before) != _kind(config) or (config.elastic and not before.elastic):
        return None
    kept: int = checkpoint["fragment_environments"]
    return kept if config.rollout.environments // config.workers % kept == 0 else None


def why_afresh(checkpoint: dict[str, Any], config: TrainConfig, memory: MemoryPlan) -> str | None:
    """Why the checkpoint's environments cannot go on, in a few words; None where they do.

    Args:
        checkpoint: see `load_checkpoint`.
        config: of the run that goes on.
        memory: the fragments that its batches are made of.
    """
    before = config_from_dict(checkpoint["config"])
    if not _has_states(checkpoint):
        return "the checkpoint holds no state of them"
    if _kind(before) != _kind(config):
        return "their batches or their clones are of another kind now"
    saved = checkpoint["fragment_environments"], len(checkpoint["fleet"]["states"])
    if saved != (memory.environments, memory.groups):
        return f"they are {memory.groups} groups of {memory.environments} now, and were {saved[1]} of {saved[0]}"
    asked = max(checkpoint["asked"], default=0)
    if asked and before.rounds != config.rounds:
        return "a batch of another size had been begun"
    if asked > memory.most_batch_fragments:
        return f"a batch of {asked} fragments had been begun, and there is room for {memory.most_batch_fragments}"
    return None


def _has_states(checkpoint: dict[str, Any]) -> bool:
    """Whether its environments could be saved, and in the form of this version."""
    return isinstance(checkpoint["fleet"], dict) and "states" in checkpoint["fleet"]


def _kind(config: TrainConfig) -> tuple[int, bool]:
    """Of fragments, which go on as no other."""
    return config.rollout.clones, config.adaptive
