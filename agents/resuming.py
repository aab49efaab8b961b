"""What a resumed run takes from its checkpoint, and what it cannot take: settings that it keeps, and environments that go on.

Writing the checkpoint is `rlscale.agents.train`'s, and what is in it `Session.get_state`'s.
"""

import io
import shlex
from collections.abc import Callable
from typing import Any

import torch

from rlscale.envs import Task
from rlscale.errors import UsageError
from rlscale.records import Run
from rlscale.records.run import read_checkpoint

from .checks import check_config
from .config import TrainConfig, config_from_dict
from .learning import what_is_followed
from .memory import MemoryPlan
from .networks import PARAMETER_ORDER

__all__ = ["check_network", "kept_environments", "load_checkpoint", "why_afresh"]

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


def load_checkpoint(run: Run, config: TrainConfig) -> dict[str, Any]:
    """The run's checkpoint, checked against what is asked for now.

    Raises:
        UsageError: another task, settings that a run cannot change or that cannot work, no checkpoint, a damaged one, or an
            earlier version's.
    """
    recorded = run.manifest["task"]["id"]
    if recorded != config.task:
        raise UsageError(
            "--resume",
            f"the run in {run.folder} is of task {recorded}, not {config.task}",
            f"Use: {shlex.join(['rlscale', 'train', recorded, '--resume', str(run.folder)])}",
        )
    stored: dict[str, Any] = torch.load(io.BytesIO(read_checkpoint(run.folder)), map_location="cpu", weights_only=False)
    if stored.get("task", recorded) != recorded:
        raise UsageError("--resume", f"its checkpoint is of {stored['task']}, not of {recorded}", "Restore it from a copy")
    # The manifest's settings are the last session's, which may have ended before it saved anything.
    stored.setdefault("config", run.manifest["config"])
    before = config_from_dict(stored["config"])
    for flag, setting in _FIXED.items():
        if setting(before) != setting(config):
            raise UsageError(
                flag, f"a resumed run keeps {setting(before)}, not {setting(config)}", "Leave it out, or start a new run"
            )
    check_config(config)  # no sooner: its mends may be to change what a run keeps
    if stored.get("parameter_order", 1) != PARAMETER_ORDER and before.update.network in ("nature_cnn", "small_cnn"):
        raise UsageError(
            "--resume",
            f"the checkpoint in {run.folder} is an earlier rlscale's, whose dense layers read images in another order",
            "Go on with the version that wrote it, or start a new run",
        )
    if what_is_followed(before) != what_is_followed(config):
        stored["window"] = []  # of another loss, or between other blocks, whose noise says nothing about this one's
    return stored


def check_network(field: str, checkpoint: dict[str, Any], task: Task, parameters: int) -> None:
    """Refuse a checkpoint whose policy is for other observations or actions than the task has: a user's own may have changed.

    Raises:
        UsageError: it has not that many parameters; `field` is what the user named the run with.
    """
    held = checkpoint["learner"]["parameters"].numel()
    if held != parameters:
        problem = f"its policy has {held:,} parameters, and {task.id} as it is now needs {parameters:,}"
        raise UsageError(field, problem, "Restore the environment as it was, or train a new run")


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
