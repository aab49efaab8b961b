"""`rlscale workers`: measures a few fleets for minutes, predicts all others, says how many workers to buy, and checks itself.

How the measuring is done is in `calibration`, the arithmetic in `rlscale.sizing`, the page in
`rlscale.report.workers_page`.
"""

import contextlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from rlscale.agents.cluster import connected, watch_head
from rlscale.agents.compute import Compute, resolve_compute
from rlscale.agents.config import MOST_BLOCKS, TrainConfig, default_config
from rlscale.agents.machine import busy_cpus, describe_machine, find_commit, find_versions
from rlscale.cpus import usable_cpus
from rlscale.envs import Task, find_task
from rlscale.errors import UsageError
from rlscale.records.files import write_atomically
from rlscale.report.workers_page import WorkersPage, write_workers_page
from rlscale.sizing import FleetTime, LearnerTime, fit_learner, iteration

from ..console import plain_console, say
from ..steps import Steps
from .calibration import (
    FleetReading,
    Shape,
    fit_fleet,
    measure_emulator,
    measure_fleet,
    measure_learner,
    measured_steps,
    sample_fragments,
    timed_environments,
)
from .display import (
    LAGGED,
    say_choice,
    say_recommendation,
    say_resets,
    show_answer,
    show_fleets,
    show_plan,
    show_recommendation,
    show_validation,
)
from .kept import KeptFleets
from .options import (
    WorkersOptions,
    check_options,
    cpus_by_node,
    cpus_for_actors,
    describe_nodes,
    gpus_there,
    hold_folder,
    offered_cpus,
    share_beside_learner,
)
from .plan import Known, check_gpus, choose, find_frontier, gpus_to_act_on, make_plan, price_of, say_asked, say_beyond
from .recommendation import (
    candidates,
    recommend,
    to_measure,
    train_command,
    whole_groups,
)

__all__ = ["fit_updates", "measure", "run_workers", "say_if_busy"]

MOST_HELD_OUT = 12
SMALL_ROUNDS = 4  # updates from a small batch, which are short
_BUSY = 0.3  # CPUs of other programs that lower what is measured


def run_workers(options: WorkersOptions, command: list[str], console: Console | None = None) -> int:
    """Do what the options say; the exit code of the command.

    Raises:
        UsageError: a task, option, cluster or sweep that cannot be used, or a deadline or budget that no plan meets: the record
            and the page are written before.
    """
    with contextlib.ExitStack() as held:
        return _run(options, command, console or plain_console(), held)


def _run(options: WorkersOptions, command: list[str], console: Console, held: contextlib.ExitStack) -> int:
    """As `run_workers`; the folder of the record is held in `held`."""
    deadline = check_options(options)
    task = find_task(options.task)
    known = None if options.sweep is None else find_frontier(options.sweep, options.goal, task)
    config = base_config(options, task, known)
    mini_batches = None if known is None or known.mini_batches == 1 else known.mini_batches
    compute = resolve_compute(config)
    compute.prepare_process()
    check_gpus(options, compute)
    if options.lag and options.ray_address is None and compute.device.type == "cpu":
        raise _shared_cores("on this machine")
    folder = Path(options.out or f"workers/{config.task.replace('/', '-').replace(':', '-').replace('@', '-')}")
    busy = busy_cpus()
    with connected(options.ray_address, options.cpus or (1 if options.ray_address else usable_cpus())):
        cpus = cpus_for_actors(options.cpus, options.ray_address)
        nodes = cpus_by_node(options.ray_address)
        beside, there = share_beside_learner(options.ray_address), offered_cpus(options.ray_address)
        if options.lag and compute.device.type == "cpu" and beside == 1:
            raise _shared_cores("in this cluster of one machine")
        gpus = gpus_there()
        if options.lag and compute.device.type == compute.acting.type != "cpu" and not gpus_to_act_on(compute, gpus):
            raise _shared_cores("here", "GPU")
        if options.lag and compute.device.type == "cpu" and beside:
            shared = "actors on this machine compete with the learner at lag 1, which the predictions leave out"
            say(console, f"note: {shared}. Start Ray's head node with --num-cpus=0")
        clones = config.rollout.clones
        grid = candidates(task, cpus, nodes, clones)
        identity = {
            "commit": find_commit(),
            "versions": find_versions(),
            "task": config.task,
            "cpus": cpus,
            "machine": describe_machine(compute.device),
            "nodes": None if options.ray_address is None else describe_nodes(),
            "network": [config.update.network, config.update.width, compute.precision],
            "measured": [options.seconds, options.ray_address, options.actor_device, measured_steps(config)],
            "clones": clones,
        }
        held.enter_context(hold_folder(folder))
        kept = KeptFleets(folder, identity, again=options.again, busy=busy)
        say_what_is_kept(console, kept, folder)
        with watch_head(options.ray_address):
            shapes = to_measure(task, cpus, nodes, clones)
            smallest = task.cost.few * config.rollout.rollout_length if known is None else min(known.rates)
            if options.validate or to_make(shapes, kept, way_to_learn(config, mini_batches, smallest)):
                say_if_busy(console, busy)
            fleets, learning, emulator = measure(options, config, task, compute, shapes, kept, console, mini_batches, smallest)
            law = fit_fleet(fleets, config.rollout.rollout_length)
            learner = fit_updates(learning)
            found = recommend(options, config, task, law, learner, emulator, grid, known)
            validation = None
            if options.validate:
                validation = validate(options, config, task, compute, law, learner, fleets, grid, found.shape, kept, console)
    made = None
    if known is not None:
        made = make_plan(known, law, learner, price_of(options, compute, beside, there, gpus), cpus, options.lag)
    held_out = [] if validation is None else [Shape(**row["shape"]) for row in validation["rows"]]
    used = {reading.shape for reading in fleets} | set(held_out)
    record = {
        "command": command,
        "commit": find_commit(),
        "date": kept.date,
        "machine": describe_machine(compute.device),
        "busy_cpus": kept.busy,
        "versions": find_versions(),
        "task": config.task,
        "cpus": cpus,
        "precision": compute.precision,
        "fleets": [asdict(reading) for reading in fleets],
        "learner": learning,
        "emulator_observations_per_second": emulator,
        "recommendation": asdict(found),
        "validation": validation,
        "plan": None if made is None else [asdict(choice) for choice in made.choices],
        "identity": identity,
        "learning": kept.learning,
        "other_fleets": [asdict(reading) for reading in kept.fleets.values() if reading.shape not in used],
    }
    write_atomically(folder / "workers.json", (json.dumps(record, indent=1) + "\n").encode())
    kept.forget()
    show_fleets(console, law, fleets)
    show_recommendation(console, found)
    if (resets := say_resets(fleets)) is not None:
        say(console, resets)
    if validation is not None:
        show_validation(console, validation)
    currency = options.price_cpu_hour is not None
    page = folder / ("workers.html" if known is None else "plan.html")  # answers to two questions
    said, commands, unmet = None, {"The most observations per second": found.command}, None
    choice, words = None, []
    cautions = [] if known is None else list(known.warnings)
    if known is not None and made is not None:
        try:
            choice = choose(made, deadline, options.budget, currency=currency)
            environments = round(choice.batch_size / config.rollout.rollout_length / choice.workers)
            planned = Shape(choice.workers, 1, environments)
            words = train_command(options, config, planned, known, choice)
            timed = [reading["batch_size"] for reading in learning]
            beyond = say_beyond(planned, choice, [reading.shape for reading in fleets], timed)
            cautions += [] if beyond is None else [beyond]
            commands["The plan"] = words
            asked = say_asked(deadline, options.budget)
            offered = say_choice(choice, currency=currency, deadline=deadline)
            said = f"{config.task} to a return of {known.goal:g}, {asked}: {offered}"
        except UsageError as error:  # said on the page as well
            unmet, said = error, f"{config.task} to a return of {known.goal:g}: {error.problem}."
        said += f" {LAGGED}" if options.lag else ""
    first, *rest = say_recommendation(found)
    rest += [] if resets is None else [resets]
    shown = WorkersPage(
        task=config.task,
        answer=[f"{first}." if said is None else f"For the most observations per second: {first[0].lower()}{first[1:]}.", *rest],
        plan=said,
        run=commands,
        busy=say_busy(kept.busy, before=True),
        measured=[(r.shape.actors, r.shape.threads, r.shape.environments, r.rates) for r in fleets],
        law=replace(law, rollout_length=fleets[0].rollout_length),
        cpus=cpus,
        chosen=(found.shape.actors, found.shape.threads, found.shape.environments),
        planned=None if known is None or made is None else (known.goal, made),
        currency=currency,
        warnings=cautions,
        sources={key: record[key] for key in ("command", "commit", "date", "machine", "busy_cpus", "versions")},
    )
    write_workers_page(page, shown)
    if known is not None and made is not None:
        show_plan(console, made, known.goal, currency=currency, lag=options.lag)
        for caution in cautions:
            say(console, caution)
    for path in (folder / "workers.json", page):
        say(console, f"wrote {path}")
    if unmet is not None:
        raise unmet
    if choice is not None:
        show_answer(console, choice, words, currency=currency, deadline=deadline)
    return 0


def _shared_cores(where: str, what: str = "cores") -> UsageError:
    problem = f"{where} actors and learner share the same {what}"
    return UsageError("--lag", problem, f"Leave it out, or give a cluster or {'a' if what == 'cores' else 'another'} GPU")


def way_to_learn(config: TrainConfig, mini_batches: int | None, smallest: int | None = None) -> str:
    """What decides how long an update takes, as text: readings of the learner are used again where it is the same."""
    same = replace(config.update, learning_rate=0.0)
    behind = config.rollout.lag > 0  # then an update of several steps begins with a pass of its own
    return json.dumps([asdict(same), asdict(config.noise), mini_batches, smallest, behind], sort_keys=True)


def say_what_is_kept(console: Console, kept: KeptFleets, folder: Path) -> None:
    """Say which readings are not made again."""
    if not kept.fleets:
        return
    if not kept.ended:
        told = f"{len(kept.fleets)} of the fleets were measured before this command was stopped: {folder / 'measured.json'}"
    else:
        told = f"{len(kept.fleets)} fleets were measured on {kept.date}: {folder / 'workers.json'}; --again measures them anew"
    say(console, told)


def say_if_busy(console: Console, busy: float | None) -> None:
    """Say that other programs are working while something is to be measured."""
    told = say_busy(busy)
    if told is not None:
        say(console, told)


def say_busy(busy: float | None, *, before: bool = False) -> str | None:
    """That other programs work, or did before, while something is measured; None where not, or where that is not known."""
    if busy is None or busy <= _BUSY:
        return None
    if before:
        return f"other programs used {busy:.1f} CPUs of this machine while it was measured, so rates are lower than they could be"
    return f"this machine is busy: other programs use {busy:.1f} CPUs, and what is measured now is slower than it could be"


def base_config(options: WorkersOptions, task: Task, known: Known | None) -> TrainConfig:
    """How to act and learn: as the runs of the sweep, or else as the task's own default."""
    config = default_config(task) if known is None else known.config
    rollout = replace(
        config.rollout, actors=1, lag=options.lag, ray_address=options.ray_address, actor_device=options.actor_device
    )
    return replace(config, rollout=rollout, update=replace(config.update, device=options.device, threads=0))


def to_make(shapes: Sequence[Shape], kept: KeptFleets | None, way: str) -> int:
    """How many measurements `measure` will make of those fleets, the emulator and the learner."""
    if kept is None:
        return len(shapes) + 2
    return sum(shape not in kept.fleets for shape in shapes) + (kept.emulator is None) + (way not in kept.learning)


def measure(
    options: WorkersOptions,
    config: TrainConfig,
    task: Task,
    compute: Compute,
    shapes: Sequence[Shape],
    kept: KeptFleets | None,
    console: Console,
    mini_batches: int | None = None,
    smallest: int | None = None,
) -> tuple[list[FleetReading], list[dict[str, Any]], float]:
    """Fleets, updates, and the emulator's own rate; fleets that are kept are not measured again.

    An update is made in so many mini-batches an epoch, or in those of the configured size. That of the smallest batch whose time
    is asked for is measured as well, and of a small one in many blocks: what does not grow with the batch hardly shows in large
    ones.
    """
    way = way_to_learn(config, mini_batches, smallest)
    with Steps(console, to_make(shapes, kept, way)) as steps:
        emulator = None if kept is None else kept.emulator
        if emulator is None:
            steps.begin(f"the emulator alone, {task.cost.alone} environments")
            emulator = measure_emulator(task, task.cost.alone, options.seconds)
            if kept is not None:
                kept.keep_emulator(emulator)
        fleets = []
        for shape in shapes:
            reading = None if kept is None else kept.fleets.get(shape)
            if reading is None:
                steps.begin(str(shape))
                reading = measure_fleet(config, task, compute, shape, options.seconds)
                if kept is not None:
                    kept.keep(reading)
            fleets.append(reading)
        learned = None if kept is None else kept.learning.get(way)
        if learned is not None:
            return fleets, learned, emulator
        steps.begin("the learner")
        clones = config.rollout.clones
        environments = whole_groups(timed_environments(config, task, mini_batches), clones)
        fragments = sample_fragments(config, task, compute, environments, 2)
        several = config.update.mini_batch is None and mini_batches is None
        blocks = 8 if several else None
        learning = [measure_learner(config, task, compute, fragments[:n], blocks, mini_batches) for n in (1, 2)]
        if several:
            learning.append(measure_learner(config, task, compute, fragments, MOST_BLOCKS))
        if smallest is not None:
            length = measured_steps(config)
            fewest = config.noise.step_blocks(smallest, max(smallest // config.rollout.rollout_length, 1), equal=False)
            for environments, most in ((smallest // length, fewest), (MOST_BLOCKS, MOST_BLOCKS)):
                few = sample_fragments(config, task, compute, whole_groups(environments, clones), 1, length)
                blocks = most if several else None
                learning.append(measure_learner(config, task, compute, few, blocks, mini_batches, SMALL_ROUNDS))
        if kept is not None:
            kept.keep_learning(way, learning)
    return fleets, learning, emulator


def fit_updates(learning: Sequence[dict[str, Any]]) -> LearnerTime:
    """The learner's law from its readings."""
    points = [(r["batch_size"], r["blocks"] or 1, s) for r in learning for s in r["seconds"]]
    return fit_learner(*zip(*points, strict=True))


def validate(
    options: WorkersOptions,
    config: TrainConfig,
    task: Task,
    compute: Compute,
    law: FleetTime,
    learner: LearnerTime,
    fitted: Sequence[FleetReading],
    grid: Sequence[Shape],
    chosen: Shape,
    kept: KeptFleets,
    console: Console,
) -> dict[str, Any]:
    """Measure fleets that were not used for the fit: errors of the predictions, and the chosen fleet against the best of all.

    Only sampling is measured. The best is that of whole iterations, with the learner's predicted time.
    """
    before = [reading.shape for reading in fitted]
    held_out = [shape for shape in grid if shape not in before]
    if len(held_out) > MOST_HELD_OUT:
        picked = np.random.default_rng(0).choice(len(held_out), MOST_HELD_OUT, replace=False)
        held_out = [shape for i, shape in enumerate(held_out) if i in picked or shape == chosen]
    missing = [shape for shape in held_out if shape not in kept.fleets]
    with Steps(console, len(missing)) as steps:
        for shape in missing:
            steps.begin(f"held out: {shape}")
            kept.keep(measure_fleet(config, task, compute, shape, options.seconds))
    readings = [kept.fleets[shape] for shape in held_out]
    measuring = replace(law, rollout_length=readings[0].rollout_length)
    measured = {reading.shape: statistics.median(reading.rates) for reading in (*fitted, *readings)}
    rows: list[dict[str, Any]] = []
    for reading in readings:
        s = reading.shape
        predicted = measuring.rate(s.actors, s.environments, s.threads)
        error = predicted.known / measured[s] - 1
        rows.append({"shape": asdict(s), "predicted": asdict(predicted), "measured": measured[s], "error": error})
    errors = [abs(float(row["error"])) for row in rows]
    whole = {}  # observations per second, sampling as measured and learning as predicted
    for shape, rate in measured.items():
        batch = shape.actors * shape.environments * law.rollout_length
        blocks = config.noise.step_blocks(batch, shape.actors * shape.environments, equal=False)
        whole[shape] = batch / iteration(batch, rate, learner.seconds(batch, blocks), lag=options.lag).seconds
    best = max(whole, key=lambda shape: whole[shape])
    return {
        "held_out": [asdict(reading) for reading in readings],
        "rows": rows,
        "median_error": statistics.median(errors),
        "worst_error": max(errors),
        "best_measured": {"shape": asdict(best), "rate": measured[best]},
        "recommended_of_best": whole[chosen] / whole[best],
    }
