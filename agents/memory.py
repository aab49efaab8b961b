"""How much memory a run's fragments and gradients take, and whether that is there: decided before the run, not found out by it.

A fragment is made in its worker (one copy), put into the object store (the second and last: actors and learners on one machine
share it), and read by the learner chunk by chunk. So a batch that is held costs its single frames once, and a streamed one only
the fragments under way. Nothing is allocated here.
"""

import math
import os
from dataclasses import dataclass, replace

import numpy as np

from rlscale.control_groups import available_bytes
from rlscale.envs import Task
from rlscale.errors import UsageError
from rlscale.text import format_bytes, parse_bytes

from .checks import check_learners, divisors_of
from .config import FEWEST_BLOCKS, MOST_BLOCKS, TrainConfig

__all__ = [
    "PROCESS_BYTES",
    "MemoryPlan",
    "count_parameters",
    "gradient_rows",
    "memory_plan",
    "require_network",
    "require_processes",
    "store_room",
]

FRAGMENT_BYTES = 64 << 20
GROUP_ENVIRONMENTS = 8  # of a group where groups are dealt out singly
FEWEST_ENVIRONMENTS = 4  # of a fragment, so that noise is seen between them
SMALL_ARRAYS = 19  # bytes of rewards, flags, log-probability and value of one observation
LEARNER_BYTES = 67  # of one observation of a held batch, beside its fragment and action: measured, 6.4 million of CartPole
# Measured on Linux with torch's CPU build: private memory of a process that has imported what it needs.
PROCESS_BYTES = {"run": 700 << 20, "ray": 400 << 20, "actor": 350 << 20, "learner": 500 << 20}
# Vectors of all parameters, beside the gradients of blocks: the parameters, their mean gradient, Adam's two, a checkpoint's
# copies and its bytes. Measured with 2 and 5 million parameters: 12 to 17.
LEARNER_VECTORS = 20
WORKER_VECTORS = 3  # the parameters as they came, a network of them, and its copy for acting
LONGEST_USUAL = 16_384  # steps of a rollout: of longer ones it is not the environments that take the memory
STORE_SHARE = 0.75  # of an object store that fragments may fill: from 80% on Ray writes what it holds to disk
PARAMETER_BYTES = 16 << 20  # of an object store, for the parameters
_NO_LIMIT = 1 << 62  # of bytes or observations


@dataclass(frozen=True)
class MemoryPlan:
    """What the fragments of a run take.

    Attributes:
        environments: of one fragment.
        groups: sets of environments in all, each giving one fragment a round; they take turns in this order.
        fragment_bytes: of one fragment.
        batch_fragments: that make an iteration batch; when adaptive, of one round.
        most_fragments: most that exist at once; what the actors are held back to.
        most_batch_fragments: most that one iteration batch may have.
    """

    environments: int
    groups: int
    fragment_bytes: int
    batch_fragments: int
    most_fragments: int
    most_batch_fragments: int

    @property
    def store_bytes(self) -> int:
        """Object store that holds them and the parameters without spilling; room that is not used takes no memory."""
        wanted = int(self.most_fragments * self.fragment_bytes / STORE_SHARE) + (128 << 20)
        return max(min(wanted, _shared_memory()), 128 << 20)


def store_room(size: int) -> int:
    """Bytes of fragments for which an object store of that size has room beside the parameters."""
    return max(int(STORE_SHARE * size) - PARAMETER_BYTES, 0)


def memory_plan(config: TrainConfig, task: Task, store: int | None = None, kept: int | None = None) -> MemoryPlan:
    """Cut the run's batches into fragments, and see whether they fit: into `--memory`, or else what this machine has to spare.

    Args:
        config: checked already.
        task: its task.
        store: bytes of fragments for which the object store is known to have room, whatever else this machine has to spare. None:
            with Ray what one on this machine can have; on an existing cluster any, since its store can be asked only once this
            process has joined it.
        kept: environments of a fragment where `--fragment-environments` is not given; None: as many as suit the settings.

    Raises:
        UsageError: they do not fit; says what is the largest batch that does. Or the gradients do not fit, or an adaptive batch
            cannot begin with one fragment.
    """
    r = config.rollout
    n = r.fragment_environments or kept or _fragment_environments(config, task)
    if config.adaptive:
        _check_first_batch(config, n)
    groups = r.environments // n
    size = fragment_bytes(task, r.rollout_length, n)
    batch = groups * config.rounds
    if store is None and r.ray_address is not None:
        store = _NO_LIMIT
    if store is None and config.actors:
        require_processes("--actors", config.actors, PROCESS_BYTES["actor"])
    own = None if r.memory is None else parse_bytes(r.memory, "--memory")
    if own is None and store is None:
        own = _spare_bytes(config, task, size)
    if store is None and config.rays:
        store = store_room(_shared_memory())
    budget = min(room for room in (own, store) if room is not None)
    enough = own is None or (store is not None and store < own)  # of all but the store
    fitting = budget // size
    if config.update.stream:
        wanted = _streamed_fragments(config, config.workers, batch)
        if config.elastic:  # there may come to be as many actors as groups
            wanted = max(wanted, min(_streamed_fragments(config, groups, batch), fitting))
        if wanted > fitting:
            needed = f"the {wanted} fragments of {format_bytes(size)} that are under way at once"
            if enough:
                larger = _larger_store(config)
                mend = f"{larger[0].upper()}{larger[1:]}, or give fewer --fragment-environments"
                raise UsageError(
                    "--stream", f"{needed} take more than Ray's object store has room for, {format_bytes(budget)}", mend
                )
            raise UsageError(
                "--memory", f"{format_bytes(budget)} are less than {needed}", "Give more, or fewer --fragment-environments"
            )
        return MemoryPlan(n, groups, size, batch, wanted, batch if not config.adaptive else 2**31)
    batches = 1 + r.lag
    if batches * batch > fitting:
        one = fragment_bytes(task, r.rollout_length, 1)
        more = [_larger_store(config) if enough else "give more --memory"]
        if _streamed_fragments(config, config.workers, batch) <= fitting:
            more.append(f"learn from it as it comes: --stream{_to_stream(config)}")
        raise _too_large(config, size * batch * batches, budget, fitting // batches // groups, budget // batches // one, more)
    most = fitting // batches if config.adaptive else batch
    return MemoryPlan(n, groups, size, batch, most * batches, most)


def _streamed_fragments(config: TrainConfig, actors: int, batch: int) -> int:
    """Most fragments of a stream that exist at once: each actor makes one while another waits, and each learner reads one.

    Of a batch that is not adaptive there are never more than all of it, and of the next one where that is begun early.
    """
    under_way = 2 * actors + config.update.learners
    return under_way if config.adaptive else min(under_way, batch * (1 + config.rollout.lag))


def _to_stream(config: TrainConfig) -> str:
    """The flags that --stream needs beside it."""
    u = config.update
    flags = "" if u.epochs == 1 and u.mini_batch is None else " --epochs 1 --mini-batch None"
    return flags + (" --advantage-scale running" if u.advantage_scale == "batch" else "")


def _larger_store(config: TrainConfig) -> str:
    """What makes the object store larger."""
    if config.rollout.ray_address is not None:
        return "start Ray's nodes with a larger --object-store-memory"
    return "give Ray's object store more room, which is /dev/shm (in a container --shm-size)"


def _too_large(config: TrainConfig, needed: int, budget: int, rounds: int, environments: int, more: list[str]) -> UsageError:
    r = config.rollout
    step = r.environments * r.rollout_length
    if not budget and (r.environments == config.workers or r.rollout_length > LONGEST_USUAL):
        return UsageError(
            "--rollout-length",
            f"rollouts of {r.rollout_length:,} steps, and the run's processes, leave no memory for fragments",
            "Use fewer steps, for example 128, and --batch-size for a large batch from them",
        )
    if not budget:
        return UsageError(
            "--environments",
            f"{r.environments:,} environments and the run's processes leave no memory for fragments",
            "Use fewer, and --batch-size for a large batch from them",
        )
    flag = "--batch-size" if r.batch_size is not None else "--environments"
    if rounds:
        largest = f"The largest that can is {rounds * step:,}"
    elif environments >= config.workers:
        fewer = environments // config.workers * config.workers
        largest = f"The largest that can is {fewer * r.rollout_length:,} (--environments {fewer})"
    else:
        largest = "Use shorter fragments (--rollout-length)"
    return UsageError(
        flag,
        f"an iteration batch of {config.batch:,} observations{' and the next one (--lag 1)' if r.lag else ''} takes "
        f"{format_bytes(needed)}, and there are {format_bytes(budget)} for it",
        f"{', '.join([largest, *more[:-1]])}, or {more[-1]}",
    )


def fragment_bytes(task: Task, steps: int, environments: int) -> int:
    """Bytes of one fragment: single frames with those carried in, and the small arrays."""
    frame = math.prod(task.frame_shape) * np.dtype(task.frame_dtype).itemsize
    return environments * ((task.frame_stack - 1 + steps) * frame + steps * (SMALL_ARRAYS + _action_bytes(task)))


def _action_bytes(task: Task) -> int:
    return task.room_for_actions(1).nbytes


def _fragment_environments(config: TrainConfig, task: Task) -> int:
    """As many as divide a worker's environments and keep the fragment small, with all clones of each."""
    r = config.rollout
    each = r.environments // config.workers
    most = max(FRAGMENT_BYTES // fragment_bytes(task, r.rollout_length, 1), 1)
    if config.adaptive or config.elastic:
        most = min(most, GROUP_ENVIRONMENTS * r.clones)
    whole = [d for d in divisors_of(each) if d % r.clones == 0] or [each]  # which `check_config` refuses
    return max((d for d in whole if d <= most), default=whole[0])


def _check_first_batch(config: TrainConfig, n: int) -> None:
    """Refuse an adaptive batch that cannot begin with one fragment of n environments.

    Where no noise is seen between those it would stay at one fragment for good; and every learner needs its share of them.
    """
    r = config.rollout
    least = FEWEST_ENVIRONMENTS * r.clones
    if n < least and r.fragment_environments is not None:
        problem = f"{n} environments are too few to see noise between them"
        raise UsageError("--fragment-environments", problem, f"Give at least {least}, and --environments a multiple of it")
    if n < least:
        group = GROUP_ENVIRONMENTS * r.clones * config.workers
        better = max(round(r.environments / group), 1) * group
        wide = [d for d in divisors_of(r.environments // config.workers) if d >= least and d % r.clones == 0]
        mends = [f"use for example {better}"] * (better != r.environments) + [
            f"give --fragment-environments {d}" for d in wide[:1]
        ]
        problem = f"{r.environments} come in fragments of {n}, too few to see noise between them"
        raise UsageError("--environments", problem, " or ".join(mends).capitalize())
    check_learners(config, n // r.clones, " of a fragment, with which an adaptive batch begins,")


def require_processes(flag: str, count: int, each: int) -> None:
    """Refuse more processes than this machine has memory for, before any of them takes other programs' memory.

    Args:
        flag: that asks for them.
        count: how many.
        each: bytes of one without its environments.

    Raises:
        UsageError: they do not fit.
    """
    available = available_bytes()
    if count * each > available:
        needed, there = format_bytes(count * each), format_bytes(available)
        problem = f"{count} of these processes take {needed} and their environments, and {there} are free"
        raise UsageError(flag, problem, f"Use at most {available // each}" if available > each else "End other programs first")


def gradient_rows(config: TrainConfig) -> int:
    """Block gradients, each as long as the parameters, that all learners together have room for at once, at most.

    H · K_h + K + max(K_h, K), where H of the single losses (policy, value, entropy) are measured, all in the first iteration.

    - K_h: blocks of such a measurement. Its matrices are freed afterwards, and come again.
    - K: rows of the joint loss, whose matrix a learner keeps: the blocks of an optimizer step, or 1 where its noise is never
      measured. Where an iteration's joint loss is measured as well, as shuffled mini-batches ask for, K_h if that is more.
    - max(K_h, K): products in Adam's metric leave gaps of up to as much in the memory that a process keeps. Measured: 25 rows
      where K_h was 32.

    A streamed batch has the same K blocks for all of them.
    """
    r, noise, update = config.rollout, config.noise, config.update
    environments, transitions = r.environments // r.clones, config.shuffles_transitions
    if transitions:
        step = min(noise.blocks or FEWEST_BLOCKS, config.mini_batch)
    else:
        steps = config.batch // config.mini_batch
        largest = _NO_LIMIT if config.adaptive else config.mini_batch  # an adaptive batch may come to hold many rounds
        equal = steps > 1 or update.learners > 1
        step = noise.step_blocks(largest, environments // steps, equal=equal, multiple=update.learners)
    head = step if update.stream else noise.head_blocks(environments, 1 if transitions else update.learners)
    joint = step if noise.joint_noise_period or update.stream else 1
    if transitions and noise.period("iteration", update.epochs):
        joint = max(joint, head)
    single = head * sum(noise.period(loss, update.epochs) > 0 for loss in ("policy", "value", "entropy"))
    return single + joint + max(head if single else 0, joint)


def _vectors(config: TrainConfig) -> int:
    """Vectors of all parameters that the run's processes on this machine have at once, block gradients included."""
    workers = config.workers if not config.elastic else config.actors
    rows = gradient_rows(config) if _learns_on_cpu(config) else 0
    return rows + LEARNER_VECTORS * config.update.learners + WORKER_VECTORS * workers


def _learns_on_cpu(config: TrainConfig) -> bool:
    from .compute import resolve_device

    return config.update.device in ("auto", "cpu") and resolve_device(config.update.device).type == "cpu"


def count_parameters(config: TrainConfig, task: Task) -> int:
    """Parameters of the network, without making any of them.

    Raises:
        UsageError: the network does not fit the task's observations, or is larger than any memory.
    """
    import torch

    from .networks import make_network

    with torch.device("meta"):
        network = make_network(task, config.update.network, config.seed, config.update.width)
    return sum(parameter.numel() for parameter in network.parameters())


def _network_bytes(config: TrainConfig, task: Task, spare: int) -> int:
    """Memory that grows with the network: 4 bytes times its parameters times the vectors of them.

    Args:
        config, task: of the run.
        spare: bytes that there are for them.

    Raises:
        UsageError: it takes more; says how many blocks there may be.
    """
    each = 4 * count_parameters(config, task)
    needed = each * _vectors(config)
    if needed <= spare or spare <= 0:
        return needed
    takes = f"{format_bytes(needed)}, and there are {format_bytes(spare)} for it"
    if not _learns_on_cpu(config):
        raise UsageError("--width", f"learning with {each // 4:,} parameters takes {takes}", "Use a narrower network")
    learning = f"learning with {each // 4:,} parameters, gradients of {gradient_rows(config)} blocks among it, takes {takes}"
    most = min(config.noise.blocks or MOST_BLOCKS, config.rollout.environments)
    for blocks in range(most, FEWEST_BLOCKS - 1, -1):
        fewer = replace(config, noise=replace(config.noise, blocks=blocks))
        if blocks % config.update.learners == 0 and each * _vectors(fewer) <= spare:
            raise UsageError("--blocks", learning, f"Use --blocks {blocks}, or a narrower network (--width)")
    raise UsageError("--width", learning, "Use a narrower network")


def require_network(config: TrainConfig, task: Task) -> None:
    """Refuse a network that this machine cannot learn with, however few the fragments, where blocks cannot be chosen.

    Raises:
        UsageError: it does not fit into memory, or the task's observations do not fit it.
    """
    try:
        _network_bytes(config, task, max(int(0.9 * available_bytes()) - PROCESS_BYTES["run"], 1))
    except UsageError as error:
        if error.field != "--blocks":
            raise
        raise UsageError("--width", error.problem, "Use a narrower network") from None


def _spare_bytes(config: TrainConfig, task: Task, size: int) -> int:
    """Memory that is free now, less what the run's processes need beside the fragments.

    Raises:
        UsageError: the gradients alone take more.
    """
    r = config.rollout
    learners = config.update.learners
    needed = PROCESS_BYTES["run"] + config.actors * PROCESS_BYTES["actor"] + max(config.actors, 1) * size
    needed += PROCESS_BYTES["ray"] if config.rays else 0
    needed += learners * PROCESS_BYTES["learner"] if learners > 1 else 0
    needed += r.environments * task.cost.memory_bytes
    spare = int(0.9 * available_bytes()) - needed
    spare -= _network_bytes(config, task, spare)
    if not config.update.stream:
        observations = size / fragment_bytes(task, r.rollout_length, 1) * r.rollout_length
        copies = learners if config.shuffles_transitions else 1  # else each has its own environments' columns
        spare = int(spare * size / (size + copies * (LEARNER_BYTES + _action_bytes(task)) * observations))
    return max(spare, 0)


def _shared_memory() -> int:
    """Bytes that are free where Ray keeps its object store."""
    shared = os.statvfs("/dev/shm")
    return shared.f_bavail * shared.f_frsize
