"""One branch: a checkpoint learns on at a batch size and a learning rate, and its return is measured at the end."""

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rlscale.agents.checkpoints import load
from rlscale.agents.config import TrainConfig
from rlscale.agents.rollout import Evaluator
from rlscale.agents.session import Progress
from rlscale.agents.setup import RunSetup, prepare
from rlscale.envs import Task, find_task
from rlscale.noise import NotFiniteError

__all__ = ["Branch", "BranchResult", "branch_config", "evaluator", "learn", "own_stream", "run_branch"]


@dataclass(frozen=True)
class Branch:
    """What a branch is.

    Attributes:
        batch_size: observations of an iteration.
        learning_rate: of all its steps.
        seed: of its environments and actions.
        steps: iterations.
    """

    batch_size: int
    learning_rate: float
    seed: int
    steps: int


@dataclass(frozen=True)
class BranchResult(Branch):
    """How a branch ended.

    Attributes:
        observations: that it learned from.
        final_return: mean return of the policy at the end; None where the parameters are not finite any more.
        return_error: its standard error.
        seconds: it took.
    """

    observations: int
    final_return: float | None
    return_error: float
    seconds: float


def own_stream(run: int, branch: Branch) -> np.random.SeedSequence:
    """Random numbers that no other branch of the run with that seed has: of its environments, actions and reward noise."""
    return np.random.SeedSequence((run, branch.batch_size, branch.seed, round(branch.learning_rate * 1e12)))


def branch_config(config: TrainConfig, batch_size: int, seed: int) -> TrainConfig:
    """The run's settings at another batch size, in one process: more or fewer environments, and mini-batches in proportion.

    They are composed as the run's: `auto` would shuffle transitions at some sizes and environments at others.
    """
    update, rollout = config.update, config.rollout
    mini_batch = update.mini_batch
    if mini_batch is not None:
        mini_batch = max(batch_size // (config.batch // mini_batch), 1)
    return replace(
        config,
        seed=seed,
        resume=None,
        budget=replace(config.budget, observations=None, optimizer_steps=None, seconds=None, goal=None),
        rollout=replace(
            rollout,
            environments=batch_size // rollout.rollout_length,
            batch_size=None,
            fragment_environments=None,
            actors=0,
            actor_device="cpu",
            random_first_steps=0,
            ray_address=None,
        ),
        update=replace(
            update,
            mini_batch=mini_batch,
            shuffle="transitions" if config.shuffles_transitions else "environments",
            lr_rule="constant",
            anneal=False,
            warm_up=0,
            threads=1,
            device="cpu",
        ),
        noise=replace(
            config.noise,
            joint_noise_period=0,
            policy_noise_period=0,
            value_noise_period=0,
            entropy_noise_period=0,
            iteration_noise_period=0,
        ),
    )


def evaluator(setup: RunSetup, episodes: int, seed: int) -> Evaluator:
    """Evaluates policies of the run.

    Each evaluation needs a key of its own: with one key for all they share an error, and the fit takes them as independent.
    """
    update = setup.config.update
    return Evaluator(
        setup.task, update.network, update.width, episodes=episodes, bfloat16=setup.compute.acts_in_bfloat16, seed=seed, threads=1
    )


def run_branch(config: TrainConfig, learner: bytes, environments: bytes, branch: Branch, episodes: int, key: int) -> BranchResult:
    """Learn on from the checkpoint and measure the return at the end.

    Args:
        config: of the run.
        learner: the learner's state in the checkpoint, as `dump` writes it.
        environments: the state of a fleet of this batch size, likewise.
        branch: what to do.
        episodes: of the evaluation.
        key: of its random numbers.
    """
    started = time.perf_counter()
    setup, learned, observations = learn(config, learner, environments, branch)
    weights = learned["parameters"].numpy()
    mean, error = None, math.nan
    if np.isfinite(weights).all():
        with closing(evaluator(setup, episodes, config.seed)) as evaluating:
            at = evaluating.evaluate(weights, key).at(branch.steps)
        mean, error = at.return_mean, at.return_error
    return BranchResult(
        **asdict(branch),
        observations=observations,
        final_return=mean,
        return_error=error,
        seconds=time.perf_counter() - started,
    )


def learn(config: TrainConfig, learner: bytes, environments: bytes, branch: Branch) -> tuple[RunSetup, dict[str, Any], int]:
    """The setup of the branch, the learner's state at its end, and the observations that it learned from; see `run_branch`."""
    own = branch_config(config, branch.batch_size, int(own_stream(config.seed, branch).generate_state(1)[0]))
    own = replace(own, update=replace(own.update, learning_rate=branch.learning_rate))
    task: Task = find_task(config.task)
    setup = prepare(own, task)
    with closing(setup.start()) as session:
        state: dict[str, Any] = {
            "learner": without_momentum(load(learner)),
            "fleet": load(environments),
            "asked": [],
            "progress": vars(Progress()),
        }
        session.set_state(state)
        with momentum_from_zero(), suppress(NotFiniteError):  # a branch that diverges ends there
            for _ in range(branch.steps):
                while session.iterate() is None:
                    pass
        return setup, session.get_state()["learner"], session.progress.observations


def without_momentum(learner: dict[str, Any]) -> dict[str, Any]:
    """The learner's state with Adam's running mean of gradients at zero; that of squares, which scales the rate alone, is kept.

    The run's mean holds the noise of the run's batch size. A branch of large batches, which makes few steps at a larger rate,
    would spend them on that noise: eight steps of 2,500 observations of MinAtar Breakout gained nothing with it.
    """
    for state in learner["optimizer"]["state"].values():
        if "exp_avg" in state:
            state["exp_avg"].zero_()
    return learner


@contextmanager
def momentum_from_zero() -> Iterator[None]:
    """Within, Adam corrects the running mean of gradients as one that began at zero at the first step made here.

    PyTorch counts the steps of both running means together, and that of squares goes on from the checkpoint's: it divides the
    mean of gradients by 1 - β^(s+k) at the k-th step after s of the run, where 1 - β^k is due. What is between them is put into
    the rate of every single step, which the learner sets anew before each.
    """
    steps = 0

    def correct(optimizer: torch.optim.Optimizer, _arguments: Any, _named: Any) -> None:
        nonlocal steps
        steps += 1
        if isinstance(optimizer, torch.optim.Adam):
            for group in optimizer.param_groups:
                known = [float(optimizer.state[p]["step"]) for p in group["params"] if p in optimizer.state]
                decay, counted = group["betas"][0], max(known, default=0.0) + 1  # the hook comes before Adam counts this step
                group["lr"] *= (1 - decay**counted) / (1 - decay**steps)

    handle = register_optimizer_step_pre_hook(correct)
    try:
        yield
    finally:
        handle.remove()
