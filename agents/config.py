"""`TrainConfig`: every setting of a run, with its default and its help text, which `rlscale train --help` shows.

The defaults written here are those of ordinary PPO; `default_config` puts in what a task or the A2C preset changes.
`rlscale.agents.checks` refuses settings that cannot work.
"""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal

import tyro

from rlscale.cpus import usable_cpus
from rlscale.envs import Network, Task
from rlscale.errors import UsageError
from rlscale.records import RunRecord, kind_of

__all__ = [
    "Budget",
    "NoiseSettings",
    "Recording",
    "Rollout",
    "TrainConfig",
    "Update",
    "config_from_dict",
    "config_of_run",
    "default_config",
]

MOST_BLOCKS = 32
FOLLOWED_BLOCKS = 3  # of a measurement that a batch size or a rate follows: two blocks tell nothing
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
    goal: float | None = None
    """Mean raw return of the last 100 finished episodes at which the run ends."""


@dataclass(frozen=True)
class Rollout:
    """How experience is made."""

    environments: int = 16
    """Environments in all, spread evenly over the actors."""
    rollout_length: int = 128
    """Steps of each environment per iteration. Iteration batch = environments x rollout length."""
    batch_size: int | Literal["adaptive"] | None = None
    """Iteration batch: a multiple of environments x rollout length, filled in rounds; None: one; adaptive: follows the noise."""
    exchange_rate: float | None = None
    """Adaptive: observations that an optimizer step is worth, r in B = sqrt(r x noise scale); None: B = noise scale."""
    fragment_environments: int | None = None
    """Environments of one fragment, the piece that travels; None: as many as keep it under 64 MiB, at most 8 where
    the batch is adaptive or the number of actors `auto`."""
    lag: Literal[0, 1] = 0
    """1: actors sample the next iteration with the present policy while this one is learned; 0: they wait."""
    memory: str | None = None
    """Most memory that fragments may take, for example 12GiB; None: what the machine has to spare."""
    actors: int | Literal["auto"] = 0
    """Ray actors that sample side by side; 0 samples in this process; auto: as many as there are CPUs for, also later on."""
    actor_price: float | None = None
    """Auto: an actor's cost as a share of the rest; keeps the number that samples cheapest. None: all there is room for."""
    actor_cpus: int = 1
    """CPUs, and threads, of each Ray actor."""
    straggler_seconds: float | None = None
    """A Ray actor that finishes no fragment for so long is replaced; None: 30, or 5 times what the slowest took if longer."""
    actor_device: str = "cpu"
    """Where policies act: cpu, or an accelerator (cuda), for a machine with more cores than its GPU needs."""
    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started when actors are asked for."""
    cut_on_life_loss: bool = True
    """Atari: a lost life ends the return, while the game goes on."""
    random_first_steps: int = 0
    """Up to so many random steps per environment before the run, to set them out of step (the paper: 500)."""
    reward_noise: float = 0.0
    """An experiment: standard deviation of noise on every reward that is learned from; the advantage scale stays as without."""
    clones: int = 1
    """An experiment: so many copies of every environment in a batch, all alike, which multiply the noise scale by as many."""


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
    """Step size (see --lr-rule)."""
    beta2: float = 0.999
    """Adam: how much of its running mean of squared gradients is kept each step; 0.99 forgets after some 100 steps."""
    lr_rule: Literal["constant", "sqrt", "linear", "noise"] = "constant"
    """With batch B: rate, rate x sqrt(B/b), rate x B/b, or rate / (1 + noise scale/B); B in observations per optimizer step."""
    lr_batch: int | None = None
    """The b that the learning rate was found at, for sqrt and linear; None: 256, the default mini-batch."""
    tuned_batch: int | None = None
    """Observations per optimizer step that the settings were found at: rate, Adam's betas and averages are fitted to B."""
    warm_up: int = 0
    """Optimizer steps over which the rate rises linearly from zero."""
    anneal: bool = False
    """Let the learning rate fall linearly to zero at the last observation of the budget."""
    discount: float = 0.99
    """Discount factor of the return (gamma)."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    clip: float | None = 0.2
    """PPO's clip range; None for no clip."""
    proximal_average: float | None = None
    """PPO-EWMA: clip about an average of past policies; its center of mass in optimizer steps (the paper's beta 0.889 is 8)."""
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
    """Where the learner works: cpu, or an accelerator (cuda, cuda:1); auto takes the machine's accelerator when it has one."""
    threads: int = 0
    """CPU threads of each learner, and of sampling in this process; 0: all cores, less those of actors that work meanwhile."""
    learners: int = 1
    """Learner processes that share every update, each with its environments' blocks (Ray actors, gloo or NCCL)."""
    stream: bool = False
    """Learn from fragments as they come and free them: memory does not grow with the batch. One epoch, one step."""
    chunk: int | None = None
    """Most observations in the network at once, which bounds memory; None: 4096 on CUDA, else 512, or 1024 small ones."""


@dataclass(frozen=True)
class NoiseSettings:
    """What is measured of the gradient noise. A period is in iterations; 0 measures never, 1 always."""

    joint_noise_period: int = 1
    """The joint loss, at every optimizer step of the first epoch of every so many iterations."""
    blocks: int | None = None
    """Blocks per measurement, at most one an environment, or the next number that divides a mini-batch's environments equally;
    None: 8 to 32, so that one holds 256 observations if it can, and 8 of shuffled transitions."""
    policy_noise_period: int | None = None
    """The policy loss on the whole iteration batch; None: densely at first, later every 128 / epochs iterations (some 2%)."""
    value_noise_period: int | None = None
    """The value loss, likewise."""
    entropy_noise_period: int | None = None
    """The entropy bonus, likewise."""
    iteration_noise_period: int | None = None
    """The joint loss, likewise, where mini-batches are shuffled transitions, which show no noise between environments."""
    followed_noise: Literal["policy_last_layer", "joint", "joint_adam"] = "policy_last_layer"
    """What an adaptive batch and --lr-rule noise follow: the noise of the policy loss in its last layer, or of the joint loss.
    The rule follows mini-batch noise where transitions are shuffled."""

    def step_blocks(self, observations: int, environments: int, *, equal: bool, multiple: int = 1) -> int:
        """Blocks of an optimizer step; smaller ones than 256 observations would slow the learner down.

        Args:
            observations: of the step.
            environments: of the step; there are at most as many blocks.
            equal: every block must hold equally many environments, so that all steps of an epoch are of one size.
            multiple: of which the number must be one, so that so many learners have equally many (with `equal`).
        """
        wanted = min(max(observations // 256, FEWEST_BLOCKS), MOST_BLOCKS) if self.blocks is None else self.blocks
        return _equal_blocks(wanted, environments, multiple) if equal else min(wanted, environments)

    def head_blocks(self, environments: int, multiple: int = 1) -> int:
        """Blocks of a measurement of one head, which is rare and may take smaller ones; for several learners as above."""
        wanted = MOST_BLOCKS if self.blocks is None else self.blocks
        return min(wanted, environments) if multiple == 1 else _equal_blocks(wanted, environments, multiple)

    def period(self, head: str, epochs: int) -> int:
        """Iterations between two measurements of that head, in the long run; 0 for never."""
        chosen: int | None = getattr(self, f"{head}_noise_period")
        return _power_of_two(128 // epochs) if chosen is None else chosen

    def due(self, head: str, iteration: int, epochs: int) -> bool:
        """Whether that head is measured in that iteration.

        Where no period was chosen it grows with the run, from 1 to the one of the long run, so that a run of a minute says
        something. It is a power of two, and about a quarter to an eighth of the iterations so far: so each is measured of the
        first eight, every second up to the sixteenth, every fourth up to the thirty-second.
        """
        period = self.period(head, epochs)
        if period and getattr(self, f"{head}_noise_period") is None:
            period = min(period, _power_of_two(iteration // 4))
        return period > 0 and iteration % period == 0


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
    track: Literal["wandb"] | None = None
    """Log to Weights & Biases as well; its own variables (WANDB_PROJECT, WANDB_MODE=offline) say where."""
    report: bool = False
    """Write the report page when the run ends."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a policy on one task and measure the gradient noise on the way."""

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
    def adaptive(self) -> bool:
        """Whether the iteration batch follows the measured noise scale."""
        return self.rollout.batch_size == "adaptive"

    @property
    def batch(self) -> int:
        """Steps of one iteration batch, masked ones included; when adaptive, of one round of all environments."""
        return self.rollout.environments * self.rollout.rollout_length * self.rounds

    @property
    def rounds(self) -> int:
        """Fragments that every environment gives to one iteration batch, all by one policy."""
        size = self.rollout.batch_size
        return size // (self.rollout.environments * self.rollout.rollout_length) if isinstance(size, int) else 1

    @property
    def elastic(self) -> bool:
        """Whether the number of actors follows what the cluster has room for."""
        return self.rollout.actors == "auto"

    @property
    def actors(self) -> int:
        """Ray actors that the run begins with; when elastic, those that this machine's cores allow."""
        r = self.rollout
        return max(usable_cpus() // r.actor_cpus, 1) if r.actors == "auto" else r.actors

    @property
    def workers(self) -> int:
        """Rollout workers over which environments are spread evenly; when elastic 1, for groups of them are dealt out singly."""
        return 1 if self.elastic else max(self.actors, 1)

    @property
    def rays(self) -> bool:
        """Whether the run needs Ray."""
        return self.actors > 0 or self.update.learners > 1

    @property
    def overlaps(self) -> bool:
        """Whether actors sample while the learner learns."""
        return bool(self.rollout.actors) and (self.update.stream or self.rollout.lag > 0)

    @property
    def mini_batch(self) -> int:
        """Steps of one optimization batch."""
        return self.batch if self.update.mini_batch is None else self.update.mini_batch

    @property
    def batch_divisor(self) -> float:
        """c: an optimizer step sees 1/c of the observations that the settings were found at; 1 where none were named."""
        tuned = self.update.tuned_batch
        return 1.0 if tuned is None else tuned / self.mini_batch

    def kept(self, share: float) -> float:
        """What a running mean keeps each step so that it forgets after as many observations as one that kept `share` at c = 1."""
        return float(share ** (1 / self.batch_divisor))

    @property
    def shuffles_transitions(self) -> bool:
        """Whether mini-batches are made of shuffled transitions, not of whole environments, as always when streaming."""
        if self.update.stream:
            return False
        if self.update.shuffle == "auto":
            steps = self.rollout.rollout_length * self.rounds
            return self.mini_batch % steps != 0 or self.mini_batch // steps < FEWEST_BLOCKS
        return self.update.shuffle == "transitions"


def default_config(task: Task, algorithm: str = "ppo") -> TrainConfig:
    """The settings a run of this task has when the user says nothing."""
    usual = task.training
    rollout = Rollout(environments=usual.environments, rollout_length=usual.rollout_length)
    update = Update(
        epochs=usual.epochs,
        learning_rate=usual.learning_rate,
        anneal=usual.anneal,
        discount=task.discount,
        gae_lambda=usual.gae_lambda,
        entropy_coef=usual.entropy_coef,
        network=task.network,
    )
    if algorithm == "a2c":
        rollout = replace(rollout, rollout_length=5)
        update = replace(
            update,
            algorithm="a2c",
            epochs=1,
            mini_batch=None,
            clip=None,
            optimizer="rmsprop",
            learning_rate=7e-4,
            anneal=False,
            gae_lambda=1.0,
        )
    return TrainConfig(task=task.id, budget=Budget(observations=usual.observations), rollout=rollout, update=update)


def _equal_blocks(wanted: int, environments: int, multiple: int) -> int:
    """Of the numbers of blocks with equally many environments, that nearest below what is wanted; not fewer than are enough."""
    least = min(FEWEST_BLOCKS, wanted, environments)
    enough = [k for k in range(multiple, environments + 1, multiple) if environments % k == 0 and k >= least]
    return max((k for k in enough if k <= wanted), default=enough[0])


def _power_of_two(most: int) -> int:
    """The largest power of two up to `most`, at least 1."""
    return 1 << max(most.bit_length() - 1, 0)


def config_from_dict(stored: dict[str, Any]) -> TrainConfig:
    """The inverse of `dataclasses.asdict`; settings that a later version added get their defaults."""
    return _build(TrainConfig, stored)


def config_of_run(run: RunRecord, field: str = "RUN") -> TrainConfig:
    """Settings of a recorded run, for going on with it.

    Args:
        run: its record.
        field: what the user named it with, for the error.

    Raises:
        UsageError: it learned from examples, or it is the record of another library's job: these have other settings, and no
            checkpoint.
    """
    stored = run.manifest["config"]
    if (kind := kind_of(stored)) != "training":
        job = "is the record of another library's job, whose policy that library keeps"
        what = "learned from examples and has no policy" if kind == "supervised" else job
        raise UsageError(field, f"{run.folder} {what}", "Name a run of rlscale train")
    return config_from_dict(stored)


def _build(kind: Any, stored: dict[str, Any]) -> Any:
    sections = {f.name: f.default_factory for f in fields(kind) if is_dataclass(f.default_factory)}
    known = {f.name: stored[f.name] for f in fields(kind) if f.name in stored}
    return kind(**{name: _build(sections[name], value) if name in sections else value for name, value in known.items()})
