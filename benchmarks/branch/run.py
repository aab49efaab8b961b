"""`run_branches`: the noise at a checkpoint, and branches from it side by side.

The record, `branches.json`, is written anew after every branch, so that a stopped command goes on where it was. What it shows is
in `findings`.
"""

import hashlib
import json
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from rlscale.agents.checkpoints import dump, load, read_state
from rlscale.agents.cluster import LostWorkerError
from rlscale.agents.config import TrainConfig, config_of_run
from rlscale.agents.frozen import FrozenRun
from rlscale.agents.learning.frozen import HessianNoise, pooled
from rlscale.agents.learning.optimizer import POLICY_PART
from rlscale.agents.learning.results import NoiseRecord
from rlscale.agents.machine import describe_machine, find_commit, find_versions
from rlscale.agents.setup import RunSetup, prepare
from rlscale.cpus import usable_cpus
from rlscale.envs import find_task, make_env
from rlscale.errors import UsageError
from rlscale.noise import pool
from rlscale.records import read_run
from rlscale.records.files import dump_json, hold_folder, write_atomically
from rlscale.report.branch_page import write_branch_page

from ..console import say
from ..steps import Steps
from .branches import Branch, BranchResult, branch_config, evaluator, own_stream, run_branch
from .findings import as_json, find_page, fit
from .options import BranchOptions, BranchPlan, make_plan

__all__ = ["Checkpoint", "run_branches"]

RECORD = "branches.json"
START_EVALUATIONS = 8
FEWEST_BLOCKS = 8  # environments, or groups of clones, of a batch whose noise is measured
APART = 20  # steps that environments play on between the states that two seeds start from


@dataclass(frozen=True)
class Checkpoint:
    """Where the branches start.

    Attributes:
        config: of the run.
        learner: the learner's state, as `dump` writes it.
        optimizer_steps, observations: of the run so far.
    """

    config: TrainConfig
    learner: bytes
    optimizer_steps: int
    observations: int


def run_branches(options: BranchOptions, command: list[str], console: Console) -> Path:
    """Do what the options say; the path of the record.

    Raises:
        UsageError: a run, option or folder that cannot be used, or so many branches diverged that too few are left.
        KeyboardInterrupt: stopped; what had ended is recorded, and a note says how to go on.
        LostWorkerError: a process that made branches died; likewise.
    """
    record = read_run(Path(options.run))
    config = config_of_run(record)
    _check_environments(config)
    stored = read_state(record, find_task(config.task))
    plan = make_plan(options, config, record)
    learner = stored["learner"]
    at = Checkpoint(config, dump(learner), learner["optimizer_steps"], stored["progress"]["observations"])
    folder = Path(options.out or record.folder / "branches")
    with hold_folder(folder):
        return _make(at, plan, folder / RECORD, options.jobs or usable_cpus(), command, console)


def _check_environments(config: TrainConfig) -> None:
    """Before anything is measured.

    Raises:
        UsageError: the task's environments cannot be saved.
    """
    with closing(make_env(find_task(config.task), 1)) as env:
        env.reset(np.zeros(1, dtype=np.int64))
        state = env.get_state()
    if state is None:
        mend = "Branches need a task whose can: classic, toy and MinAtar"
        raise UsageError("RUN", f"environments of {config.task} cannot be saved in the midst of their episodes", mend)


def _make(at: Checkpoint, plan: BranchPlan, path: Path, jobs: int, command: list[str], console: Console) -> Path:
    """Make the branches that the record lacks, and say what all of them show; the path of the record."""
    written = _open(path, plan, at, command)
    branches = list(_branches(plan))
    done = {_key(r): r for r in written["branches"]}
    left = [branch for branch in branches if _key(asdict(branch)) not in done]

    def save() -> None:
        write_atomically(path, (dump_json(written, indent=1) + "\n").encode())

    def keep(result: BranchResult) -> None:
        written["branches"].append(asdict(result))
        save()

    phases = (written["start"] is None) + (written["noise"] is None and plan.noise_batches > 0)
    with Steps(console, len(left) + phases, alike=phases + sum(map(len, plan.rates))) as steps:
        if written["start"] is None:
            steps.begin("return at the checkpoint")
            written["start"] = _start(at, plan)
            save()
        if written["noise"] is None and plan.noise_batches:
            steps.begin("noise at the checkpoint")
            written["noise"] = _noise(at, plan)
            save()
        try:
            _run(at, plan, left, jobs, steps, keep)
        except (KeyboardInterrupt, LostWorkerError) as error:
            error.add_note(f"What had ended is recorded in {path}; the same command goes on.")
            raise
    frontier = fit(written)
    written["fit"] = as_json(frontier)
    save()
    shown = find_page(written, frontier)
    for line in shown.answer:
        say(console, line)
    for title, columns, rows in shown.tables:
        table = Table(*columns, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    page = path.with_suffix(".html")
    write_branch_page(page, shown)
    say(console, f"wrote {path} and {page}")
    return path


def _open(path: Path, plan: BranchPlan, at: Checkpoint, command: list[str]) -> dict[str, Any]:
    """The record as it is there, or a new one.

    Raises:
        UsageError: the one that is there is damaged, or of another plan or checkpoint; or the largest branch finds no memory.
    """
    parameters = hashlib.sha256(load(at.learner)["parameters"].numpy().tobytes()).hexdigest()
    counts = {"optimizer_steps": at.optimizer_steps, "observations": at.observations}
    asked = json.loads(dump_json({"task": at.config.task, "plan": asdict(plan), **counts, "parameters_sha256": parameters}))
    setup = _check_memory(at.config, plan)
    if path.exists():
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            known = {name: found.get(name, asked[name] if name == "parameters_sha256" else None) for name in asked}
            whole = {"start", "noise"} <= found.keys() and all(map(_key, found["branches"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            whole = False
        if not whole:
            raise UsageError("--out", f"{path} is no record of branches", "Choose another folder, or restore it from a copy")
        if known != asked:
            raise UsageError("--out", f"{path} holds branches of another plan or checkpoint", "Choose another folder")
        return found
    return {
        **asked,
        "command": command,
        "commit": find_commit(),
        "versions": find_versions(),
        "machine": describe_machine(setup.compute.device),
        "start": None,
        "noise": None,
        "branches": [],
        "fit": None,
    }


def _check_memory(config: TrainConfig, plan: BranchPlan) -> RunSetup:
    """The smallest branch's setup.

    Raises:
        UsageError: one does not fit; `prepare` would name options of `rlscale train`.
    """
    task, setups = find_task(config.task), []
    for size in (plan.sizes[0], plan.sizes[-1]):
        try:
            setups.append(prepare(branch_config(config, size, 0), task))
        except UsageError as error:
            problem = f"a branch of {size:,} observations an iteration cannot be made here: {error.problem}"
            raise UsageError("--batch-sizes", problem, "Use smaller ones") from error
    return setups[0]


def _branches(plan: BranchPlan) -> Iterator[Branch]:
    """Every branch, so ordered that each prefix holds all sizes and rates as evenly as it can."""
    for seed in range(plan.seeds):
        for size, rates in zip(plan.sizes, plan.rates, strict=True):
            for rate in rates:
                yield Branch(size, rate, seed, plan.steps(size))


def _key(branch: dict[str, Any]) -> tuple[int, float, int]:
    return branch["batch_size"], branch["learning_rate"], branch["seed"]


def _start(at: Checkpoint, plan: BranchPlan) -> dict[str, float]:
    """Mean return at the checkpoint, over `START_EVALUATIONS` evaluations, and its standard error."""
    setup = prepare(branch_config(at.config, plan.sizes[0], at.config.seed), find_task(at.config.task))
    weights = load(at.learner)["parameters"].numpy()
    with closing(evaluator(setup, plan.episodes, at.config.seed)) as evaluating:
        found = [evaluating.evaluate(weights, key).at(1) for key in range(START_EVALUATIONS)]
    error = math.sqrt(sum(e.return_error**2 for e in found)) / len(found)
    return {"return": sum(e.return_mean for e in found) / len(found), "error": error}


def _frozen(at: Checkpoint, size: int, seed: int) -> FrozenRun:
    """Of so many observations a batch; environments whose episodes all have one length begin out of step with each other."""
    task, config = find_task(at.config.task), branch_config(at.config, size, seed)
    first_steps = at.config.rollout.random_first_steps or task.sweep.random_first_steps
    config = replace(config, rollout=replace(config.rollout, random_first_steps=first_steps))
    return FrozenRun(prepare(config, task), load(at.learner))


def _noise(at: Checkpoint, plan: BranchPlan) -> dict[str, Any]:
    """The noise scale at the checkpoint's parameters, by loss and metric, in batches of the run's own size."""
    rollout = at.config.rollout
    batch = max(at.config.batch, FEWEST_BLOCKS * rollout.clones * rollout.rollout_length)
    with closing(_frozen(at, batch, at.config.seed + 1)) as frozen:
        frozen.play(plan.burn_in)
        measured = [frozen.measure() for _ in range(plan.noise_batches)]
        spent = frozen.observations
    records = [records for records, _ in measured]
    curved = [hessian for _, hessian in measured if hessian is not None]
    return {"observations": spent, "batch_size": batch, "scales": list(_scales(records, curved))}


def _scales(records: Sequence[list[NoiseRecord]], curved: Sequence[HessianNoise]) -> Iterator[dict[str, Any]]:
    of: dict[tuple[str, str], list[Any]] = {}
    for head in ("joint", POLICY_PART, "policy", "value"):
        of[head, "plain"], of[head, "adam"] = pooled(records, head), pooled(records, head, adam=True)
    of["joint", "hessian"] = [h.joint for h in curved]
    of[POLICY_PART, "hessian"] = [h.policy_parameters for h in curved]
    for (head, metric), statistics in of.items():
        if not statistics:
            continue
        found = pool(statistics)
        low, high = found.interval
        if metric == "hessian" and min(found.trace_cov, found.grad_sq) <= 0:
            low, high = 0.0, math.inf  # it bends downwards along the noise or the gradient: no batch size follows from it
        yield {
            "head": head,
            "metric": metric,
            "value": found.b_simple if (found.b_simple or 0.0) > 0 else None,
            "interval": [low, high],
            "trace": found.trace_cov,
            "square": found.grad_sq,
        }


def _run(
    at: Checkpoint, plan: BranchPlan, branches: list[Branch], jobs: int, steps: Steps, keep: Callable[[BranchResult], None]
) -> None:
    """Make the branches; `keep` gets each result as it ends, whichever ends first: a branch depends on its own description alone.

    Raises:
        LostWorkerError: a process that made one died.
    """
    if not branches:
        return
    frozen: dict[int, FrozenRun] = {}
    context = multiprocessing.get_context("spawn")
    waiting: set[Future[BranchResult]] = set()
    left = iter(branches)
    states: dict[tuple[int, int], bytes] = {}
    keys = {branch: START_EVALUATIONS + number for number, branch in enumerate(_branches(plan))}
    # Ctrl-C reaches the workers as well; they leave it to this process, which ends them.
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
    with pool as workers:
        try:
            while True:
                while len(waiting) < jobs and (branch := next(left, None)) is not None:
                    steps.begin(f"B {branch.batch_size:,}  rate {branch.learning_rate:.3g}  seed {branch.seed}", len(waiting))
                    state = _state(at, plan, branch, frozen, states)
                    waiting.add(workers.submit(run_branch, at.config, at.learner, state, branch, plan.episodes, keys[branch]))
                if not waiting:
                    return
                for one in wait(waiting, return_when=FIRST_COMPLETED).done:
                    waiting.remove(one)
                    keep(one.result())
        except BaseException as error:  # stopped: what a branch has learned so far is of no use, unless it has just ended
            ended = [one for one in waiting if one.done() and not one.cancelled() and one.exception() is None]
            for worker in multiprocessing.active_children():
                worker.terminate()
            for one in ended:
                keep(one.result())
            if isinstance(error, BrokenProcessPool):
                raise LostWorkerError("a process that made a branch died, perhaps for want of memory") from error
            raise
        finally:
            for fleet in frozen.values():
                fleet.close()


def _state(
    at: Checkpoint, plan: BranchPlan, branch: Branch, frozen: dict[int, FrozenRun], states: dict[tuple[int, int], bytes]
) -> bytes:
    """Environments of the branch's batch size in the midst of episodes: the same for all its rates, others for every seed.

    From there on they have random numbers of the branch's own.
    """
    size, seed, run = branch.batch_size, branch.seed, at.config.seed
    if (size, seed) not in states:
        if size not in frozen:
            frozen[size] = _frozen(at, size, run + 2)
            frozen[size].play(plan.burn_in)
        played = sum(1 for s, _ in states if s == size)
        for number in range(played, seed + 1):
            if number:
                frozen[size].go_on_from(load(states[size, number - 1]), np.random.SeedSequence((run, size, number)))
                frozen[size].play(APART)
            states[size, number] = dump(frozen[size].environments())
    frozen[size].go_on_from(load(states[size, seed]), own_stream(run, branch))
    return dump(frozen[size].environments())
