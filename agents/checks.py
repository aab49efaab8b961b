"""`check_config` refuses settings that cannot work, each in one line that names the flag, what is wrong and the mend."""

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from rlscale.errors import UsageError

from .config import FEWEST_BLOCKS, FOLLOWED_BLOCKS, NoiseSettings, TrainConfig

__all__ = ["check_config", "check_learners", "divisors_of", "fit_defaults", "require_not_negative", "require_positive"]

MOST_FITTED = 2**48  # steps of an iteration batch whose divisors are looked for; beyond it nothing fits into memory
MOST_GROWTH = 1000  # of snapshots; a run has none but the first with any larger one

_MOST = {"clip": 1e6, "threads": 2**16, "random_first_steps": 2**48, "tuned_batch": 2**48}  # with more nothing could be computed
_POSITIVE = (
    *("environments", "rollout_length", "batch_size", "exchange_rate", "fragment_environments", "actor_cpus"),
    *("clones", "epochs", "mini_batch", "width", "learning_rate", "clip", "max_grad_norm", "chunk", "learners", "lr_batch"),
    *("straggler_seconds", "tuned_batch", "observations", "optimizer_steps", "seconds", "checkpoint_seconds"),
)
_NOT_NEGATIVE = (
    *("seed", "actors", "random_first_steps", "reward_noise", "actor_price", "threads", "warm_up", "entropy_coef", "value_coef"),
    "proximal_average",
    *("joint_noise_period", "policy_noise_period", "value_noise_period", "entropy_noise_period", "iteration_noise_period"),
)


def require_positive(flags: Mapping[str, float | None]) -> None:
    """Refuse a number that is not above zero or not finite; None is no number.

    Raises:
        UsageError: names the flag.
    """
    for flag, value in flags.items():
        _refuse_if(value is not None and math.isinf(value), flag, f"{value} is not finite", "Give a number, or leave it out")
        _refuse_if(value is not None and not value > 0, flag, f"{value} is not a positive number", "Give one above zero")


def require_not_negative(flags: Mapping[str, float | None]) -> None:
    """Refuse a number that is below zero or not finite, and a seed that is too large; None is no number.

    Raises:
        UsageError: names the flag.
    """
    for flag, value in flags.items():
        _refuse_if(value is not None and math.isinf(value), flag, f"{value} is not finite", "Give a number, or leave it out")
        _refuse_if(value is not None and not value >= 0, flag, f"{value} is not zero or more", "Give zero or more")
        _refuse_if(flag == "seed" and (value or 0) >= 2**63, flag, f"{value} is too large", "Give one below 2**63")


def check_config(config: TrainConfig) -> None:
    """Refuse settings that cannot work.

    Raises:
        UsageError: names the flag and the mend.
    """
    r, u, b = config.rollout, config.update, config.budget
    settings: dict[str, Any] = {
        "seed": config.seed,
        **vars(r),
        **vars(u),
        **vars(config.noise),
        **vars(b),
        **vars(config.recording),
    }
    numbers = {name: None if isinstance(value, str) else value for name, value in settings.items()}  # None for auto and adaptive
    require_positive({name.replace("_", "-"): numbers[name] for name in _POSITIVE})
    require_not_negative({name.replace("_", "-"): numbers[name] for name in _NOT_NEGATIVE})
    for name, most in _MOST.items():
        problem = f"{numbers[name]} is too large"
        _refuse_if((numbers[name] or 0) > most, name.replace("_", "-"), problem, f"Give {most:,.0f} or less")
    for flag, value in (("discount", u.discount), ("gae-lambda", u.gae_lambda)):
        _refuse_if(not 0 <= value <= 1, flag, f"{value} is not between 0 and 1", "Give for example 0.99")
    _refuse_if(not 0 <= u.beta2 < 1, "beta2", f"{u.beta2} is not between 0 and 1", "Give for example 0.99")
    growth = config.recording.snapshot_growth
    _refuse_if(  # null stands in records of earlier versions, which took an infinite one
        growth != 0 and not 1 < (growth or 0) <= MOST_GROWTH,
        "snapshot-growth",
        f"{growth} is no factor above 1 and at most {MOST_GROWTH:,}",
        "Give for example 1.06, or 0 for no snapshots",
    )
    kept = config.resume is not None  # a resumed run's environments, so that only the actors can be changed
    fitting = (
        _nearest_divisor(r.environments, config.workers) if kept else max(r.environments // config.workers, 1) * config.workers
    )
    _refuse_if(
        r.environments % config.workers != 0,
        "actors" if kept else "environments",
        f"{r.environments} environments do not divide over {r.actors} actors",
        f"Use for example {fitting}",
    )
    no_actors = "Give --actors as well"
    _refuse_if(
        r.ray_address is not None and not config.rays, "ray-address", "there are no actors to place on a cluster", no_actors
    )
    _refuse_if(
        r.straggler_seconds is not None and not r.actors, "straggler-seconds", "there are no actors to wait for", no_actors
    )
    _refuse_if(
        r.actor_cpus != 1 and not r.actors,
        "actor-cpus",
        "there are no actors to use them",
        "Give --actors as well, or --threads for this process",
    )
    prices = r.actor_price is not None
    _refuse_if(
        prices and not config.elastic,
        "actor-price",
        "it decides how many actors a run keeps, and their number is fixed",
        "Give --actors auto as well",
    )
    _refuse_if(prices and config.adaptive, "actor-price", "an adaptive batch changes what an actor gives", "Leave it out")
    _check_batch(config)
    _check_invariance(config)
    _check_fragments(config)
    _check_noise(config)
    check_learners(config, r.environments // r.clones)
    _refuse_if(
        u.anneal and b.observations is None,
        "anneal",
        "the learning rate needs an end to fall to",
        "Give --observations or --no-anneal",
    )
    _refuse_if(
        b.observations is None and b.optimizer_steps is None and b.seconds is None,
        "observations",
        "the run would have no end",
        "Give --observations, --optimizer-steps or --seconds",
    )
    _refuse_if(b.goal is not None and not math.isfinite(b.goal), "goal", f"{b.goal} is no return", "Give a finite number")


def _check_batch(config: TrainConfig) -> None:
    """How an iteration batch is made up and cut into mini-batches."""
    r, mini = config.rollout, config.mini_batch
    step = r.environments * r.rollout_length
    size = r.batch_size if isinstance(r.batch_size, int) else step
    _refuse_if(
        size % step != 0,
        "batch-size",
        f"{size:,} is no multiple of {r.environments} environments x {r.rollout_length} steps = {step:,}",
        f"Use for example {max(round(size / step), 1) * step}",
    )
    _refuse_if(
        mini > config.batch or config.batch % mini != 0,
        "mini-batch",
        f"{mini} does not divide the iteration batch of {config.batch}",
        f"Use for example {_nearest_divisor(config.batch, mini)}",
    )
    steps = r.rollout_length * config.rounds
    _refuse_if(
        config.update.shuffle == "environments" and mini % steps != 0,
        "mini-batch",
        f"{mini} observations are no whole number of environments with {steps} steps each",
        f"Use a multiple of {steps}, or --shuffle transitions",
    )
    _refuse_if(
        config.adaptive and config.update.mini_batch is not None,
        "batch-size",
        "an adaptive batch is the batch of one optimizer step",
        "Give --mini-batch None, and best --epochs 1",
    )
    _refuse_if(
        r.exchange_rate is not None and not config.adaptive,
        "exchange-rate",
        "only an adaptive batch size follows it",
        "Give --batch-size adaptive as well",
    )


def _check_invariance(config: TrainConfig) -> None:
    """An averaged proximal policy, and settings that were found at another batch size."""
    u = config.update
    _refuse_if(
        u.lr_batch is not None and u.lr_rule not in ("sqrt", "linear"),
        "lr-batch",
        f"--lr-rule {u.lr_rule} does not depend on it",
        "Give --lr-rule sqrt or linear as well, or --lr-batch None",
    )
    _refuse_if(
        u.proximal_average is not None and u.clip is None,
        "proximal-average",
        "without a clip nothing depends on the proximal policy",
        "Give --clip 0.2 as well",
    )
    _refuse_if(
        u.tuned_batch is not None and config.adaptive,
        "tuned-batch",
        "an adaptive batch has no size that settings could be fitted to",
        "Leave it out, or give --batch-size a number",
    )
    _refuse_if(
        u.tuned_batch is not None and u.lr_rule != "constant",
        "tuned-batch",
        f"--lr-rule {u.lr_rule} would scale the learning rate a second time",
        "Leave out one of them",
    )
    never_forgets = u.optimizer == "adam" and config.kept(u.beta2) == 1  # rounded
    problem = f"{u.tuned_batch} makes Adam's beta2 1 where a step has {config.mini_batch}"
    _refuse_if(never_forgets, "tuned-batch", problem, "Give less, or a lower --beta2")


def _check_fragments(config: TrainConfig) -> None:
    """How an iteration batch is cut into fragments and streamed."""
    r, u = config.rollout, config.update
    each = r.environments // config.workers
    n = r.fragment_environments or each
    _refuse_if(
        each % n != 0,
        "fragment-environments",
        f"{n} do not divide the {each} environments of {'an actor' if r.actors else 'this process'}",
        f"Use for example {_nearest_divisor(each, n)}",
    )
    _refuse_if(
        n % r.clones != 0,
        "clones",
        f"{r.clones} do not divide the {n} environments of a fragment",
        "Use a divisor of them, or change --environments",
    )
    _refuse_if(r.clones > 1 and r.reward_noise > 0, "clones", "clones would get rewards of their own", "Leave out --reward-noise")
    _refuse_if(
        r.clones > 1 and config.shuffles_transitions,
        "clones",
        "shuffled transitions would be dealt to blocks apart from their copies",
        "Use --shuffle environments; a sweep with clones takes no --mini-batches",
    )
    mini = config.mini_batch // (r.rollout_length * config.rounds)
    _refuse_if(
        not config.shuffles_transitions and mini % r.clones != 0,
        "clones",
        f"{r.clones} do not divide the {mini} environments of a mini-batch",
        "Use a divisor of them, or change --mini-batch",
    )
    _refuse_if(
        u.stream and u.shuffle == "transitions",
        "shuffle",
        "transitions of a streamed batch are never there together to be shuffled",
        "Leave it out, or --stream",
    )
    _refuse_if(
        u.stream and not (u.epochs == 1 and u.mini_batch is None),
        "stream",
        "a batch that is freed as it is learned from is seen once",
        "Give --epochs 1 --mini-batch None as well",
    )
    _refuse_if(
        u.stream and u.advantage_scale == "batch",
        "stream",
        "advantages cannot be normalized over a batch that is not here yet",
        "Give --advantage-scale running, or none",
    )
    _refuse_if(
        (u.stream or u.learners > 1) and r.rollout_length < 2,
        "rollout-length",
        "fragments of one step may hold nothing but resets",
        "Give at least 2",
    )


def _check_noise(config: TrainConfig) -> None:
    """What is measured of the noise, and what depends on it."""
    r, blocks, transitions = config.rollout, config.noise.blocks, config.shuffles_transitions
    _refuse_if(
        blocks is not None and blocks < 2,
        "blocks",
        f"{blocks} blocks cannot show noise",
        "Give at least 2; 8 or more for an interval that says much",
    )
    for follows, what in ((config.adaptive, "an adaptive batch"), (config.update.lr_rule == "noise", "--lr-rule noise")):
        _refuse_if(
            follows and not config.noise.joint_noise_period,
            "joint-noise-period",
            f"{what} needs the noise to be measured",
            "Give 1",
        )
        _refuse_if(
            follows and blocks is not None and blocks < FOLLOWED_BLOCKS,
            "blocks",
            f"{what} follows no noise between {blocks} blocks",
            f"Give at least {FOLLOWED_BLOCKS}; {FEWEST_BLOCKS} or more for a noise scale that says much",
        )
    parts = config.mini_batch if transitions else config.mini_batch // (r.rollout_length * config.rounds * r.clones)
    _refuse_if(
        config.update.lr_rule == "noise" and parts < FOLLOWED_BLOCKS,
        "lr-rule",
        f"it follows noise between at least {FOLLOWED_BLOCKS} {'observations' if transitions else 'environments'} of a "
        f"mini-batch, which has {parts}",
        "Use more environments, larger mini-batches or another rule",
    )
    _refuse_if(
        config.noise.followed_noise != NoiseSettings().followed_noise
        and not config.adaptive
        and config.update.lr_rule != "noise",
        "followed-noise",
        "only an adaptive batch and --lr-rule noise follow it",
        "Give --batch-size adaptive as well",
    )
    _refuse_if(
        config.noise.followed_noise == "joint_adam" and config.update.optimizer != "adam",
        "followed-noise",
        f"nothing is measured in Adam's metric with {config.update.optimizer}",
        "Give joint",
    )


def check_learners(config: TrainConfig, environments: int, of: str = "") -> None:
    """Every learner must have equally many blocks of equally many environments, or of shuffled transitions at least one block.

    Args:
        config: the settings.
        environments: of the batch that is shared; the clones of one count once.
        of: what they are those of, for the message.

    Raises:
        UsageError: names the flag and the mend.
    """
    r, learners, noise = config.rollout, config.update.learners, config.noise
    if learners == 1:
        return
    if config.shuffles_transitions:
        blocks = noise.blocks
        _refuse_if(
            (blocks or 0) % learners != 0, "blocks", f"{blocks} do not divide over {learners} learners", "Use a multiple of them"
        )
        step = min(blocks or FEWEST_BLOCKS, config.mini_batch, environments * r.clones * r.rollout_length * config.rounds)
        _refuse_if(step < learners, "learners", f"{learners} cannot share the {step} blocks of a step", f"Use at most {step}")
        losses = ("policy", "value", "entropy", "iteration")
        measured = environments * r.clones > 1 and any(noise.period(loss, config.update.epochs) for loss in losses)
        head = noise.head_blocks(environments)
        _refuse_if(
            measured and head < learners,
            "learners",
            f"{learners} cannot share the {head} blocks in which the noise of single losses is measured{of}",
            f"Use at most {head}",
        )
        return
    _refuse_if(
        environments % learners != 0,
        "learners",
        f"{environments} environments{of} do not divide over {learners} learners",
        f"Use {_nearest_divisor(environments, learners)}",
    )
    step = environments // max(config.batch // config.mini_batch, 1)
    _refuse_if(
        step % learners != 0,
        "learners",
        f"the {step} environments of a mini-batch do not divide over {learners} learners",
        f"Use {_nearest_divisor(step, learners)}, or larger mini-batches",
    )


def _refuse_if(wrong: bool, flag: str, problem: str, mend: str) -> None:
    if wrong:
        raise UsageError(f"--{flag}", problem, mend)


def divisors_of(number: int) -> list[int]:
    """All divisors, ascending; of a number of environments as large as anybody may type."""
    lower = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*lower, *(number // d for d in lower)})


def _nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of a number that is nearest to the wanted one, as a ratio; the wanted one where it would take long to find."""
    if number > MOST_FITTED:
        return wanted
    return min(divisors_of(number), key=lambda d: abs(math.log(d / wanted)), default=1)


def fit_defaults(config: TrainConfig, typed: Container[str]) -> TrainConfig:
    """The settings, with defaults changed that do not fit what was typed: nobody shall hear of an option that he did not type.

    Environments become a multiple of the actors, and a mini-batch a divisor of the iteration batch that is near the default; one
    of eight whole environments or more if there is such a one, so that rollout noise can be measured.

    Args:
        config: as parsed.
        typed: flags that were given.
    """
    r, u = config.rollout, config.update
    if "--environments" not in typed and r.environments % config.workers:
        environments = -(-r.environments // config.workers) * config.workers
        config = replace(config, rollout=replace(r, environments=environments))
    if (
        "--mini-batch" not in typed
        and u.mini_batch is not None
        and 0 < config.batch < MOST_FITTED
        and config.batch % u.mini_batch
    ):
        whole = config.rollout.rollout_length * config.rounds
        near = [d for d in divisors_of(config.batch) if u.mini_batch / 2 <= d <= u.mini_batch * 2]
        rollout = [d for d in near if d % whole == 0 and d // whole >= FEWEST_BLOCKS]
        best = min(rollout or near, key=lambda d: abs(math.log(d / config.mini_batch)), default=config.batch)
        config = replace(config, update=replace(u, mini_batch=best))
    return config
