"""`rlscale workers`: measures a few fleets for minutes, predicts all others, says how many workers to buy, and checks itself.

What is measured, and how the predictions are checked, is in `measuring`, the arithmetic in `rlscale.sizing`, the page in
`rlscale.report.workers_page`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rlscale.agents.cluster import connected, watch_head
from rlscale.agents.cluster.resources import (
    cpus_by_node,
    cpus_for_actors,
    describe_nodes,
    gpus_there,
    offered_cpus,
    share_beside_learner,
)
from rlscale.agents.compute import Compute, resolve_compute
from rlscale.agents.config import TrainConfig, default_config
from rlscale.agents.machine import busy_cpus, describe_machine, find_code, find_commit, find_versions
from rlscale.cpus import usable_cpus
from rlscale.envs import Task, find_task
from rlscale.errors import UsageError
from rlscale.records.files import folder_name, hold_folder, write_atomically
from rlscale.report.workers_page import WorkersPage, write_workers_page
from rlscale.sizing import Choice, CostPlan, FleetTime

from ..console import plain_console, say
from .calibration import Shape, measured_steps
from .display import (
    LAGGED,
    say_busy,
    say_choice,
    say_if_busy,
    say_recommendation,
    say_resets,
    say_what_is_kept,
    show_answer,
    show_fleets,
    show_plan,
    show_recommendation,
    show_validation,
)
from .kept import KeptFleets
from .measuring import Measuring, Readings, check_laws, held_out
from .options import WorkersOptions, check_options
from .plan import Known, check_gpus, choose, find_frontier, gpus_to_act_on, make_plan, price_of, say_asked, say_beyond
from .recommendation import (
    Recommendation,
    candidates,
    recommend,
    shape_of,
    that_fit,
    to_measure,
    train_command,
)

__all__ = ["run_workers"]


@dataclass(frozen=True)
class Study:
    """What is asked, of which runs: known before anything is measured."""

    options: WorkersOptions
    command: list[str]
    deadline: float | None  # in seconds
    task: Task
    known: Known | None  # of the sweep, where one was named
    config: TrainConfig
    compute: Compute
    console: Console

    @property
    def folder(self) -> Path:
        """Of the record and the page."""
        return Path(self.options.out or f"workers/{folder_name(self.config.task)}")

    @property
    def currency(self) -> bool:
        """Whether costs are in one; else they are in CPU hours."""
        return self.options.price_cpu_hour is not None

    def check_lag(self, beside: float) -> None:
        """At lag 1 actors and learner need processors of their own; `beside` is the part of the actors on the learner's machine.

        Raises:
            UsageError: they have none.
        """
        learns, acts = self.compute.device.type, self.compute.acting.type
        if learns != "cpu":
            if acts == learns and not gpus_to_act_on(self.compute, gpus_there()):
                raise _shared_cores("here", "GPU")
        elif beside == 1:
            raise _shared_cores("in this cluster of one machine")
        elif beside:
            shared = "actors on this machine compete with the learner at lag 1, which the predictions leave out"
            say(self.console, f"note: {shared}. Start Ray's head node with --num-cpus=0")

    def identity(self, cpus: int) -> dict[str, Any]:
        """What must agree where readings are used again."""
        options, config = self.options, self.config
        return {
            "commit": find_code(),
            "versions": find_versions(),
            "task": config.task,
            "cpus": cpus,
            "machine": describe_machine(self.compute.device),
            "nodes": None if options.ray_address is None else describe_nodes(),
            "network": [config.update.network, config.update.width, self.compute.precision],
            "measured": [options.seconds, options.ray_address, options.actor_device, measured_steps(config)],
            "clones": config.rollout.clones,
        }

    def answer(self, known: Known, made: CostPlan, readings: Readings) -> Answer:
        """What the plan says to the deadline and the budget; on a cluster this process must have joined it.

        Raises:
            UsageError: no choice of the plan fits into memory.
        """
        options, config = self.options, self.config
        plan = that_fit(options, config, self.task, made, known)
        goal, cautions = f"{config.task} to a return of {known.goal:g}", list(known.warnings)
        if left := sorted({c.batch_size for c in made.choices} - {c.batch_size for c in plan.choices}):
            sizes = ", ".join(f"{size:,.0f}" for size in left)
            cautions.append(f"The plan leaves out the batch sizes that do not fit into memory here: {sizes}.")
        lagged = f" {LAGGED}" if options.lag else ""
        try:
            choice = choose(plan, self.deadline, options.budget, currency=self.currency)
        except UsageError as error:  # said on the page as well
            return Answer(known.goal, plan, f"{goal}: {error.problem}.{lagged}", cautions, unmet=error)
        planned = shape_of(choice, config.rollout.rollout_length)
        timed = [reading["batch_size"] for reading in readings.learning]
        beyond = say_beyond(planned, choice, [reading.shape for reading in readings.fleets], timed)
        cautions += [] if beyond is None else [beyond]
        offered = say_choice(choice, currency=self.currency, deadline=self.deadline)
        said = f"{goal}, {say_asked(self.deadline, options.budget)}: {offered}{lagged}"
        return Answer(known.goal, plan, said, cautions, choice, train_command(options, config, planned, known, choice))

    def record(self, found: Findings) -> dict[str, Any]:
        """All of it, as workers.json holds it."""
        kept, readings, validation = found.kept, found.readings, found.validation
        held_out = [] if validation is None else [Shape(**row["shape"]) for row in validation["rows"]]
        used = {reading.shape for reading in readings.fleets} | set(held_out)
        return {
            "command": self.command,
            "commit": find_commit(),
            "date": kept.date,
            "machine": describe_machine(self.compute.device),
            "busy_cpus": kept.busy,
            "versions": find_versions(),
            "task": self.config.task,
            "cpus": found.cpus,
            "precision": self.compute.precision,
            "fleets": [asdict(reading) for reading in readings.fleets],
            "learner": readings.learning,
            "emulator_observations_per_second": readings.emulator,
            "recommendation": asdict(found.recommended),
            "validation": validation,
            "plan": None if found.answer is None else [asdict(choice) for choice in found.answer.plan.choices],
            "identity": kept.identity,
            "learning": kept.learning,
            "other_fleets": [asdict(reading) for reading in kept.fleets.values() if reading.shape not in used],
        }

    def page(self, found: Findings, record: Mapping[str, Any]) -> WorkersPage:
        """What of it the page shows."""
        fleets, shape, answer = found.readings.fleets, found.recommended.shape, found.answer
        first, *rest = say_recommendation(found.recommended)
        if answer is not None:
            first = f"For the most observations per second: {first[0].lower()}{first[1:]}"
        resets = say_resets(fleets)
        commands: dict[str, Sequence[str]] = {"The most observations per second": found.recommended.command}
        if answer is not None and answer.choice is not None:
            commands["The plan"] = answer.command
        return WorkersPage(
            task=self.config.task,
            answer=[f"{first}.", *rest, *([] if resets is None else [resets])],
            plan=None if answer is None else answer.said,
            run=commands,
            busy=say_busy(found.kept.busy, before=True),
            measured=[(r.shape.actors, r.shape.threads, r.shape.environments, r.rates) for r in fleets],
            law=replace(found.law, rollout_length=fleets[0].rollout_length),
            cpus=found.cpus,
            chosen=(shape.actors, shape.threads, shape.environments),
            planned=None if answer is None else (answer.goal, answer.plan),
            currency=self.currency,
            warnings=[] if answer is None else answer.cautions,
            sources={key: record[key] for key in ("command", "commit", "date", "machine", "busy_cpus", "versions")},
        )


@dataclass(frozen=True)
class Findings:
    """What was measured, and what follows from it."""

    cpus: int  # that actors may use
    kept: KeptFleets
    readings: Readings
    law: FleetTime
    recommended: Recommendation
    validation: dict[str, Any] | None
    answer: Answer | None  # where a sweep was named


@dataclass(frozen=True)
class Answer:
    """What the sweep's plan says to the deadline or budget: a choice and what to type for it, or why there is none."""

    goal: float
    plan: CostPlan
    said: str  # on the page
    cautions: Sequence[str]
    choice: Choice | None = None
    command: Sequence[str] = ()
    unmet: UsageError | None = None


def run_workers(options: WorkersOptions, command: list[str]) -> int:
    """Do what the options say; the exit code of the command.

    Raises:
        UsageError: a task, option, cluster or sweep that cannot be used, or a deadline or budget that no plan meets: the record
            and the page are written before.
    """
    study = begin(options, command)
    with contextlib.ExitStack() as held:  # the folder, until the page is written
        found = find_out(study, held)
        record = study.record(found)
        write_atomically(study.folder / "workers.json", (json.dumps(record, indent=1) + "\n").encode())
        found.kept.forget()
        show_fleets(study.console, found.law, found.readings.fleets)
        show_recommendation(study.console, found.recommended)
        if (resets := say_resets(found.readings.fleets)) is not None:
            say(study.console, resets)
        if found.validation is not None:
            show_validation(study.console, found.validation)
        page = study.folder / ("workers.html" if study.known is None else "plan.html")  # answers to two questions
        write_workers_page(page, study.page(found, record))
    if (answer := found.answer) is not None:
        show_plan(study.console, answer.plan, answer.goal, currency=study.currency, lag=options.lag)
        for caution in answer.cautions:
            say(study.console, caution)
    for path in (study.folder / "workers.json", page):
        say(study.console, f"wrote {path}")
    if answer is not None and answer.unmet is not None:
        raise answer.unmet
    if answer is not None and answer.choice is not None:
        show_answer(study.console, answer.choice, answer.command, currency=study.currency, deadline=study.deadline)
    return 0


def begin(options: WorkersOptions, command: list[str]) -> Study:
    """Check what was asked, as far as that is possible without Ray."""
    deadline = check_options(options)
    task = find_task(options.task)
    known = None if options.sweep is None else find_frontier(options.sweep, options.goal, task)
    config = base_config(options, task, known)
    compute = resolve_compute(config)
    compute.prepare_process()
    check_gpus(options, compute)
    if options.lag and options.ray_address is None and compute.device.type == "cpu":
        raise _shared_cores("on this machine")
    return Study(options, command, deadline, task, known, config, compute, plain_console())


def find_out(study: Study, held: contextlib.ExitStack) -> Findings:
    """Measure, fit, recommend, validate, plan; the folder of the record is held in `held`."""
    options, task, known, config, console = study.options, study.task, study.known, study.config, study.console
    address, clones = options.ray_address, config.rollout.clones
    busy = busy_cpus()
    with connected(address, options.cpus or (1 if address else usable_cpus())):
        cpus, nodes = cpus_for_actors(options.cpus, address), cpus_by_node(address)
        beside = share_beside_learner(address)
        if options.lag:
            study.check_lag(beside)
        price = price_of(options, study.compute, beside, offered_cpus(address), gpus_there())
        grid, shapes = candidates(task, cpus, nodes, clones), to_measure(task, cpus, nodes, clones)
        identity = study.identity(cpus)
        held.enter_context(hold_folder(study.folder))
        kept = KeptFleets(study.folder, identity, again=options.again, busy=busy)
        say_what_is_kept(console, kept, study.folder)
        mini_batches = None if known is None or known.mini_batches == 1 else known.mini_batches
        smallest = task.cost.few * config.rollout.rollout_length if known is None else min(known.rates)
        measuring = Measuring(config, task, study.compute, options.seconds, console, kept, mini_batches, smallest)
        with watch_head(address):
            if options.validate or measuring.missing(shapes):
                say_if_busy(console, busy)
            readings = measuring.measure(shapes)
            laws = readings.fit(config.rollout.rollout_length)
            found = recommend(options, config, task, laws, grid, known)
            validation = None
            if options.validate:
                others = measuring.measure_held_out(held_out(grid, readings.fleets, found.shape))
                validation = check_laws(config, laws, readings.fleets, others, found.shape)
            answer = None
            if known is not None:
                answer = study.answer(known, make_plan(known, laws.fleet, laws.learner, price, cpus, options.lag), readings)
    return Findings(cpus, kept, readings, laws.fleet, found, validation, answer)


def _shared_cores(where: str, what: str = "cores") -> UsageError:
    problem = f"{where} actors and learner share the same {what}"
    return UsageError("--lag", problem, f"Leave it out, or give a cluster or {'a' if what == 'cores' else 'another'} GPU")


def base_config(options: WorkersOptions, task: Task, known: Known | None) -> TrainConfig:
    """How to act and learn: as the runs of the sweep, or else as the task's own default."""
    config = default_config(task) if known is None else known.config
    rollout = replace(
        config.rollout, actors=1, lag=options.lag, ray_address=options.ray_address, actor_device=options.actor_device
    )
    return replace(config, rollout=rollout, update=replace(config.update, device=options.device, threads=0))
