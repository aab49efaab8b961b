"""`run_advise`: train for a minute or read a run, measure a few fleets, put both together.

What a run or another library's job was is read in `job`; what is said of it all is in `rlscale.report.advice_page`.
"""

import json
import shlex
import statistics
import time
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from rich.console import Console

from rlscale.agents.cluster import LostWorkerError, connected, watch_head
from rlscale.agents.cluster.resources import cpus_by_node, cpus_for_actors
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import TrainConfig, default_config
from rlscale.agents.machine import busy_cpus, find_commit
from rlscale.agents.setup import can_begin
from rlscale.agents.train import train
from rlscale.analysis.predictions import shows_value_alone
from rlscale.analysis.reading import read_noise
from rlscale.cpus import usable_cpus
from rlscale.envs import Task, find_task
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.records import RunRecord, folder_name, read_run
from rlscale.records.files import make_folder, now, write_atomically
from rlscale.report.advice_page import Advice, Throughput, advice_lines, write_advice_page
from rlscale.sizing import ScaleOut, scale_out

from ..console import plain_console, say
from ..options import flag_of
from ..steps import Steps
from ..workers.calibration import Laws, Shape
from ..workers.display import say_if_busy
from ..workers.kept import KeptFleets
from ..workers.measuring import Measuring
from ..workers.recommendation import CLOSE, gain_of_twice, predict, to_measure
from .fastest import learning_times, shortest, with_steps
from .job import as_this_task, config_of, is_foreign, learners_of, task_of, valid_share
from .options import AdviseOptions, check_options, refuse_to_measure
from .settings import Settings, as_advised, configured, flags_beside, lines_for, settings_for, settings_of

__all__ = ["run_advise"]

_NOTHING = Estimate(None, None, "nothing is known")


def run_advise(options: AdviseOptions, command: list[str]) -> int:
    """Do what the options say; the exit code of the command.

    Raises:
        UsageError: a task, run, option or cluster that cannot be used.
        KeyboardInterrupt: stopped; the run that was trained is kept, and a note says how to go on from it.
        LostWorkerError: a Ray process or the head node was lost; likewise.
    """
    check_options(options)
    started = time.monotonic()
    console = plain_console(stderr=options.json)
    folder, record, task = _read_run(options, console) if options.run is not None else _train_run(options, command, console)
    config = config_of(record)
    if config.rollout.clones > 1:
        problem = f"{record.folder} has {config.rollout.clones} clones of every environment, noise that no other run has"
        raise UsageError("--run", problem, "Name one without")
    make_folder(folder, "--out")
    try:
        advice = _advice(options, record, task, config, command, console, started)
    except (KeyboardInterrupt, LostWorkerError, UsageError) as error:
        if options.run is None:
            error.add_note(_run_is_kept(options, folder / "run"))
        raise
    page, path = folder / "advice.html", folder / "advice.json"
    write_advice_page(page, advice, record)
    text = json.dumps(advice.as_json(), indent=1)
    write_atomically(path, (text + "\n").encode())
    if options.json:
        print(text)
        return 0
    for line in advice_lines(advice):
        say(console, line)
    say(console, f"wrote {page} and {path}")
    return 0


def _read_run(options: AdviseOptions, console: Console) -> tuple[Path, RunRecord, Task | None]:
    """The folder for the advice, the run that `--run` names, and its task; None for another library's, if none is named."""
    assert options.run is not None
    record = read_run(Path(options.run), "--run")
    task = None if options.task is None else find_task(options.task)
    if task is not None and not is_foreign(record) and record.manifest["task"]["id"] != task.id:
        problem = f"{options.run} is a run of {record.manifest['task']['id']}, not of {task.id}"
        raise UsageError("TASK", problem, "Leave the task out, or name a run of it")
    task = task or task_of(record)
    if task is None:
        refuse_to_measure(options, record.manifest["task"]["id"])
    else:
        say_if_busy(console, busy_cpus())
    if not record.rows:
        raise UsageError("--run", f"{record.folder} has no finished iteration", "Let it run longer")
    return Path(options.out or options.run), record, task


def _train_run(options: AdviseOptions, command: list[str], console: Console) -> tuple[Path, RunRecord, Task]:
    """The folder for the advice, a short run of the task that was trained in it, and the task."""
    assert options.task is not None
    task = find_task(options.task)
    folder = Path(options.out or f"advice/{folder_name(task.id)}-{datetime.now():%Y%m%d-%H%M%S}")
    make_folder(folder, "--out")
    if (folder / "run").exists():
        mend = f"Choose another folder, or read that run: {_go_on_from(options, folder / 'run')}"
        raise UsageError("--out", f"{folder} holds a run already", mend)
    if options.ray_address is not None:
        with connected(options.ray_address, 1):
            pass  # one that cannot be joined is told of before the training
    say_if_busy(console, busy_cpus())
    record = _trained(options, task, folder / "run", command, console)
    if not record.rows:
        raise UsageError("--seconds", f"no iteration of {task.id} ended within {options.seconds:g} seconds", "Give more")
    return folder, record, task


def _trained(options: AdviseOptions, task: Task, folder: Path, command: list[str], console: Console) -> RunRecord:
    """A run of the task's own settings, in which every update of the first epoch measures the noise of every loss."""
    config = default_config(task)
    config = replace(
        config,
        seed=options.seed,
        budget=replace(config.budget, seconds=options.seconds, observations=None),
        update=replace(config.update, anneal=False),  # a run so short has no end for the rate to fall to
        noise=replace(config.noise, policy_noise_period=1, value_noise_period=1),
    )
    what = f"training {task.id} for {options.seconds:g} seconds"
    with Steps(console, 1) as steps:
        steps.begin(what)
        outcome = train(config, folder, command=command)
    if outcome.state == "stopped":
        error = KeyboardInterrupt()
        error.add_note(_run_is_kept(options, folder))
        raise error
    return read_run(folder)


def _advice(
    options: AdviseOptions,
    record: RunRecord,
    task: Task | None,
    config: TrainConfig,
    command: list[str],
    console: Console,
    started: float,
) -> Advice:
    """What follows from the run, which learned as `config` says, and from what is measured here of a task that rlscale knows."""
    reading = read_noise(record)
    suggestion = _NOTHING if shows_value_alone(reading.suggestion, reading.policy) else reading.suggestion
    valid = valid_share(record)
    suggestion = suggestion.map(lambda observations: observations / valid)  # in steps, as the settings count
    settings = settings_for(config, suggestion, max(config.actors, 1))
    throughput: Throughput | None = None
    more: list[ScaleOut] = []
    beside: list[str] = []
    if task is not None:
        usual = default_config(task, config.update.algorithm)
        advised = as_advised(as_this_task(config, usual) if is_foreign(record) else config, usual, options.ray_address)
        settings, throughput, more = _measured(options, advised, task, suggestion, console)
        beside = flags_beside(configured(advised, settings), usual)
    lines = lines_for("TASK" if task is None else task.id, settings, learners_of(record), config.update.algorithm, beside)
    return Advice(
        task=record.manifest["task"]["id"] if task is None else task.id,
        known=task is not None,
        run=str(record.folder),
        reading=reading,
        throughput=throughput,
        more=more,
        unit="machine" if options.ray_address is None else "cluster",
        price_hour=options.price_hour,
        mini_batch=config.update.mini_batch or config.batch,
        settings=asdict(settings) | {"batch_size": settings.batch_size},
        lines={name: line for name, line in lines.items() if task is not None or name != "rlscale"},
        seconds=time.monotonic() - started,
        command=command,
        commit=find_commit(),
        date=now(),
        has_goals=task is None or bool(task.goals),
        valid=valid,
    )


def _run_is_kept(options: AdviseOptions, folder: Path) -> str:
    return f"The run is kept; go on from it with: {_go_on_from(options, folder)}"


def _go_on_from(options: AdviseOptions, folder: Path) -> str:
    """The same command, with a run in the place of the training."""
    training = ("task", "run", "seconds", "seed")
    others = {name: value for name, value in vars(options).items() if name not in training}
    typed = (flag_of(name, value) for name, value in others.items() if value != getattr(AdviseOptions, name))
    return shlex.join(["rlscale", "advise", "--run", str(folder), *(word for words in typed for word in words)])


def _measured(
    options: AdviseOptions, config: TrainConfig, task: Task, suggestion: Estimate, console: Console
) -> tuple[Settings, Throughput, list[ScaleOut]]:
    """Settings for the actors that are worth having here, what bounds their throughput, and what more machines would give.

    The configuration is that of `as_advised`.
    """
    compute = resolve_compute(config)
    compute.prepare_process()
    measuring = Measuring(config, task, compute, options.fleet_seconds, console, KeptFleets(None, {}))
    with connected(options.ray_address, options.cpus or (1 if options.ray_address else usable_cpus())):
        cpus = cpus_for_actors(options.cpus, options.ray_address)
        with watch_head(options.ray_address):
            readings = measuring.measure(to_measure(task, cpus, cpus_by_node(options.ray_address)))
        critical = suggestion.value or (suggestion.interval or (0.0, 0.0))[0]
        times = learning_times(config, task, compute, critical)
    laws = readings.fit(config.rollout.rollout_length)
    law, learner = laws.fleet, laws.learner
    found = []
    for actors in sorted({*range(1, min(cpus, 8) + 1), *(2**k for k in range(16) if 2**k <= cpus), cpus}):
        usual = settings_for(config, _NOTHING, actors)
        sampling = law.rate(actors, usual.environments // actors).known
        fitting: dict[int, Settings] = {}
        for size in times:
            offered = settings_of(config, max(size, config.update.mini_batch or config.batch), actors)
            if can_begin(configured(config, offered), task):
                fitting[size] = offered
        if not fitting:
            continue
        timed = {size: times[size] for size in fitting}
        size = shortest(critical, 1 / sampling, timed) if critical > 0 else min(timed)
        # All of the learner's time but what the mini-batch changes stays as it was measured. Two measurements scatter: what is
        # left is no less than the whole time that was measured with this mini-batch.
        saved = times[min(times)] - times[size]
        learns = replace(learner, observation=max(learner.observation - saved, min(learner.observation, times[size])))
        settings = fitting[size]
        shape = Shape(actors, 1, settings.environments // actors)
        rounds = replace(law, rollout_length=settings.rollout_length)
        found.append((settings, rounds, predict(config, task, Laws(rounds, learns, laws.emulator), shape)))
    if not found:
        given = "" if config.rollout.memory is None else f", of which the run was given {config.rollout.memory}"
        raise UsageError("RUN", f"no settings near its own fit into memory here{given}", "Advise on a run of smaller batches")
    best = max(one.end_to_end for *_, one in found)
    settings, rounds, chosen = next(each for each in found if each[-1].end_to_end >= CLOSE * best)
    valid = statistics.fmean(reading.valid for reading in readings.fleets)  # what only resets an environment is no observation
    passes = chosen.iteration.sampling_seconds + chosen.iteration.learning_seconds / config.update.epochs
    throughput = Throughput(
        actors=chosen.shape.actors,
        environments=chosen.shape.environments,
        cpus=cpus,
        sampling=chosen.rate.map(lambda rate: valid * rate),
        end_to_end=valid * chosen.end_to_end,
        one_pass=valid * chosen.batch_size / passes,
        shares=chosen.shares,
        doubled=gain_of_twice(rounds, chosen),
        timed=len(times),
    )
    # With a fixed number of optimizer steps an iteration, the iteration batch is critical where its mini-batches are.
    more = []
    if critical > 0:
        steps = settings.batch_size / settings.mini_batch
        learns = learner if config.update.mini_batch is None else with_steps(learner, times, steps)
        more = scale_out(critical * steps, rounds, learns, workers=chosen.shape.actors)
    return settings, throughput, more
