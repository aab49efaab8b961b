"""`TrainConfig`: every setting of a run, its default, its help text and its check. One home for each; nothing is trained here.

The defaults written here are those of ordinary PPO; `default_config` puts in what a task or the A2C preset changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal

import tyro

from envs import Task
from envs.tasks import Network
from rlscale.errors import UsageError

__all__ = [
    "Budget",
    "NoiseSettings",
    "Recording",
    "Rollout",
    "TrainConfig",
    "Update",
    "check_config",
    "config_from_dict",
    "config_to_dict",
    "default_config",
    "require_not_negative",
    "require_positive",
]

MOST_BLOCKS = 32
FEWEST_BLOCKS = 8  # under so few an interval says little; then transitions are shuffled, and the noise is labelled so


@dataclass(frozen=True)
class Budget:
    """When the run ends: at whichever comes first."""

    observations: int | None = 1_000_000
    """Observations (agent steps) to sample in all; None for no limit."""
    optimizer_steps: int | None = None
    """Parameter changes to make in all."""
    seconds: float | None = None
    """Seconds of this session; a resumed run gets them anew."""


@dataclass(frozen=True)
class Rollout:
    """How experience is made."""

    environments: int = 16
    """Environments in all, spread evenly over the actors."""
    rollout_length: int = 128
    """Steps of each environment per iteration. Iteration batch = environments x rollout length."""
    actors: int = 0
    """Ray actors that sample side by side; 0 samples in this process."""
    actor_cpus: int = 1
    """CPUs, and threads, of each Ray actor."""
    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started when actors are asked for."""
    cut_on_life_loss: bool = True
    """Atari: a lost life ends the return, while the game goes on."""
    random_first_steps: int = 0
    """Up to so many random steps per environment before the run, to set them out of step (the paper: 500)."""


@dataclass(frozen=True)
class Update:
    """How the learner learns from an iteration batch."""

    algorithm: Literal["ppo", "a2c"] = "ppo"
    """a2c is a preset: one epoch, one step, no clip, RMSProp, 5-step rollouts; any of it can still be changed."""
    epochs: int = 4
    """Passes over each iteration batch."""
    mini_batch: int | None = 256
    """Observations per optimizer step (the optimization batch); None takes the whole iteration batch."""
    shuffle: Literal["auto", "environments", "transitions"] = "auto"
    """What mini-batches are made of: whole environments, or shuffled transitions where those would give under 8 blocks."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Adam (eps 1e-5), or RMSProp (alpha 0.99, eps 1e-5)."""
    learning_rate: float = 2.5e-4
    """Step size."""
    anneal: bool = False
    """Let the learning rate fall linearly to zero at the last observation of the budget."""
    discount: float = 0.99
    """Discount factor of the return (gamma)."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip: float | None = 0.2
    """PPO's clip range; None for no clip."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    max_grad_norm: float | None = 0.5
    """Clip the gradient to this norm; None for no clip. The noise is measured before."""
    advantage_scale: Literal["batch", "running", "none"] = "batch"
    """Normalize advantages over the iteration batch, divide by a running scale, or leave them."""
    network: Network = "mlp"
    """Policy and value network."""
    width: int | None = None
    """Units of its hidden dense layers; None: 512, 256, 128 and 64 in the networks' order."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """auto: bfloat16 for convolutional networks where the processor computes in it, else float32."""
    device: str = "auto"
    """Where the learner works: cpu, cuda, cuda:1; auto takes CUDA when there is one."""
    threads: int = 0
    """CPU threads of the learner, and of sampling in this process; 0 for all cores."""
    chunk: int | None = None
    """Most observations in the network at once, which bounds memory; None: 4096 on CUDA, else 256, or 1024 small ones."""


@dataclass(frozen=True)
class NoiseSettings:
    """What is measured of the gradient noise. A period is in iterations; 0 measures never, 1 always."""

    joint_noise_period: int = 1
    """The joint loss, at every optimizer step of the first epoch of every so many iterations."""
    blocks: int | None = None
    """Blocks per measurement, at most one an environment; None: 8 to 32, so that one holds 256 observations if it can."""
    policy_noise_period: int | None = None
    """The policy loss on the whole iteration batch; None: every 128 / epochs iterations (all heads: some 3% of the time)."""
    value_noise_period: int | None = None
    """The value loss, likewise."""
    entropy_noise_period: int | None = None
    """The entropy bonus, likewise."""

    def step_blocks(self, observations: int, environments: int, *, equal: bool) -> int:
        """Blocks of an optimizer step; smaller ones than 256 observations would slow the learner down.

        Args:
            observations: of the step.
            environments: of the step; there are at most as many blocks.
            equal: every block must hold equally many environments, so that all steps of an epoch are of one size.
        """
        wanted = min(max(observations // 256, FEWEST_BLOCKS), MOST_BLOCKS) if self.blocks is None else self.blocks
        if not equal:
            return min(wanted, environments)
        enough = [
            k for k in range(1, environments + 1) if environments % k == 0 and k >= min(FEWEST_BLOCKS, wanted, environments)
        ]
        return max((k for k in enough if k <= wanted), default=enough[0])

    def head_blocks(self, environments: int) -> int:
        """Blocks of a measurement of one head, which is rare and may take smaller ones."""
        return min(MOST_BLOCKS if self.blocks is None else self.blocks, environments)

    def period(self, head: str, epochs: int) -> int:
        """Iterations between two measurements of that head; 0 for never."""
        chosen: int | None = getattr(self, f"{head}_noise_period")
        return max(1, 128 // epochs) if chosen is None else chosen


@dataclass(frozen=True)
class Recording:
    """What is kept of the run."""

    run: str | None = None
    """Folder of the run; default runs/<task>-<date>-<time>. An existing run is never overwritten."""
    checkpoint_seconds: float = 120.0
    """Seconds between checkpoints; one more is written when the run ends or is stopped."""
    snapshot_growth: float = 0.0
    """Keep the policy each time the optimizer steps have grown by this factor (1.06: every 6%); 0 keeps none."""
    tensorboard: bool = False
    """Write TensorBoard events as well, into the run's folder."""
    report: bool = False
    """Write the report page when the run ends."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a policy on one task and measure the gradient noise of every update."""

    task: Annotated[str, tyro.conf.Positional]
    """The task, for example atari/pong; 'rlscale tasks' lists them."""
    seed: int = 0
    """Seed of everything: weights, environments, actions, shuffling."""
    resume: str | None = None
    """Go on with the run in this folder, with its own settings."""
    budget: Budget = field(default_factory=Budget)
    rollout: Rollout = field(default_factory=Rollout)
    update: Update = field(default_factory=Update)
    noise: NoiseSettings = field(default_factory=NoiseSettings)
    recording: Recording = field(default_factory=Recording)

    @property
    def batch(self) -> int:
        """Steps of one iteration batch, masked ones included."""
        return self.rollout.environments * self.rollout.rollout_length

    @property
    def mini_batch(self) -> int:
        """Steps of one optimization batch."""
        return self.batch if self.update.mini_batch is None else self.update.mini_batch

    @property
    def shuffles_transitions(self) -> bool:
        """Whether mini-batches are made of shuffled transitions, not of whole environments."""
        if self.update.shuffle == "auto":
            whole = self.mini_batch % self.rollout.rollout_length == 0
            return not whole or self.mini_batch // self.rollout.rollout_length < FEWEST_BLOCKS
        return self.update.shuffle == "transitions"


def default_config(task: Task, algorithm: str = "ppo") -> TrainConfig:
    """The settings a run of this task has when the user says nothing."""
    rollout = Rollout(environments=task.environments, rollout_length=task.rollout_length)
    update = Update(discount=task.discount, network=task.network)
    if task.kind != "atari":
        update = replace(update, epochs=8, learning_rate=1e-3, entropy_coef=0.0, gae_lambda=0.9)
    if algorithm == "a2c":
        rollout = replace(rollout, rollout_length=5)
        update = replace(
            update, algorithm="a2c", epochs=1, mini_batch=None, clip=None, optimizer="rmsprop", learning_rate=7e-4, gae_lambda=1.0
        )
    return TrainConfig(task=task.id, rollout=rollout, update=update)


def require_positive(flags: Mapping[str, float | None]) -> None:
    """Refuse a number that is not above zero; None is no number.

    Raises:
        UsageError: names the flag.
    """
    for flag, value in flags.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise UsageError(f"--{flag}", f"{value} is not a positive number", "Give one above zero")


def require_not_negative(flags: Mapping[str, float | None]) -> None:
    """Refuse a number below zero, and one that is not finite; None is no number.

    Raises:
        UsageError: names the flag.
    """
    for flag, value in flags.items():
        if value is not None and not (value >= 0 and math.isfinite(value)):
            raise UsageError(f"--{flag}", f"{value} is not zero or more", "Give zero or more")


def check_config(config: TrainConfig) -> None:
    """Refuse settings that cannot work.

    Raises:
        UsageError: names the flag and the mend.
    """
    r, u, n, b = config.rollout, config.update, config.noise, config.budget
    positive: dict[str, float | None] = {
        "environments": r.environments,
        "rollout-length": r.rollout_length,
        "actor-cpus": r.actor_cpus,
        "epochs": u.epochs,
        "mini-batch": u.mini_batch,
        "width": u.width,
        "learning-rate": u.learning_rate,
        "clip": u.clip,
        "max-grad-norm": u.max_grad_norm,
        "chunk": u.chunk,
        "observations": b.observations,
        "optimizer-steps": b.optimizer_steps,
        "seconds": b.seconds,
        "checkpoint-seconds": config.recording.checkpoint_seconds,
    }
    require_positive(positive)
    not_negative: dict[str, float | None] = {
        "seed": config.seed,
        "actors": r.actors,
        "random-first-steps": r.random_first_steps,
        "threads": u.threads,
        "entropy-coef": u.entropy_coef,
        "value-coef": u.value_coef,
        "joint-noise-period": n.joint_noise_period,
        "policy-noise-period": n.policy_noise_period,
        "value-noise-period": n.value_noise_period,
        "entropy-noise-period": n.entropy_noise_period,
    }
    require_not_negative(not_negative)
    if config.seed >= 2**63:
        raise UsageError("--seed", f"{config.seed} is too large", "Give one below 2**63")
    for flag, value in (("discount", u.discount), ("gae-lambda", u.gae_lambda)):
        if not 0 <= value <= 1:
            raise UsageError(f"--{flag}", f"{value} is not between 0 and 1", "Give for example 0.99")
    if n.blocks is not None and n.blocks < 2:
        raise UsageError(
            "--blocks", f"{n.blocks} blocks cannot show noise", "Give at least 2; 8 or more for an interval that says much"
        )
    growth = config.recording.snapshot_growth
    if growth != 0 and not growth > 1:
        raise UsageError(
            "--snapshot-growth", f"{growth} does not grow", "Give a factor above 1, for example 1.06, or 0 for no snapshots"
        )
    if r.actors and r.environments % r.actors:
        down = max(r.environments // r.actors, 1) * r.actors
        raise UsageError(
            "--environments", f"{r.environments} environments do not divide over {r.actors} actors", f"Use for example {down}"
        )
    if r.ray_address is not None and not r.actors:
        raise UsageError("--ray-address", "there are no actors to place on a cluster", "Give --actors as well")
    mini = config.mini_batch
    if mini > config.batch or config.batch % mini:
        raise UsageError(
            "--mini-batch",
            f"{mini} does not divide the iteration batch of {config.batch}",
            f"Use for example {_nearest_divisor(config.batch, mini)}",
        )
    if u.shuffle == "environments" and mini % r.rollout_length:
        raise UsageError(
            "--mini-batch",
            f"{mini} observations are no whole number of environments with {r.rollout_length} steps each",
            f"Use a multiple of {r.rollout_length}, or --shuffle transitions",
        )
    if u.anneal and b.observations is None:
        raise UsageError("--anneal", "the learning rate needs an end to fall to", "Give --observations")
    if b.observations is None and b.optimizer_steps is None and b.seconds is None:
        raise UsageError("--observations", "the run would have no end", "Give --observations, --optimizer-steps or --seconds")


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0] if number < 1 << 20 else [number]
    return min(divisors, key=lambda d: abs(math.log(d / wanted)))


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain nested dictionaries, for the manifest."""
    return asdict(config)


def config_from_dict(stored: dict[str, Any]) -> TrainConfig:
    """The inverse of `config_to_dict`; settings that a later version added get their defaults."""
    return _build(TrainConfig, stored)


def _build(kind: Any, stored: dict[str, Any]) -> Any:
    values = {}
    for f in fields(kind):
        if f.name in stored:
            section = f.default_factory if not isinstance(f.default_factory, type(field().default_factory)) else None
            is_section = section is not None and is_dataclass(section)
            values[f.name] = _build(section, stored[f.name]) if is_section else stored[f.name]
    return kind(**values)
