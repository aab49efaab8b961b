"""`rlscale bench`: a named, versioned suite for a machine or a Ray cluster, with one result file for each.

    rlscale bench [--ray-address A] [--rounds N] [--out FILE]        measure; the same command goes on where it stopped
    rlscale bench --compare A B                                      ratios with their spread

Every round measures everything once, so that the spread over rounds holds the drift of the machines. All figures are observations
per second of Atari Pong. Change VERSION whenever what is measured changes: files of two versions are not compared.
"""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from rlscale.agents.cluster.connect import connect, disconnect, watch_head
from rlscale.agents.config import NoiseSettings, TrainConfig, default_config, require_positive
from rlscale.agents.learning.batch import arrange_slots
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.remote_learners import learn_batch
from rlscale.agents.machine import describe_machine, find_commit, find_versions
from rlscale.agents.session import Session
from rlscale.envs import Task, find_task
from rlscale.errors import UsageError
from rlscale.records.files import write_atomically
from rlscale.text import format_quantity

from ..steps import Steps
from ..workers.calibration import Shape, measure_fleet, sample_fragments
from .compare import compare_files

__all__ = ["BenchOptions", "run_bench"]

SUITE, VERSION = "rlscale-bench", 1
TASK = "atari/pong"
ENVIRONMENTS = 32  # of an actor
FRAGMENTS = 2  # of 64 environments x 32 steps, for the learner alone
ITERATIONS = 2  # counted, end to end
NOTHING = NoiseSettings(joint_noise_period=0, policy_noise_period=0, value_noise_period=0, entropy_noise_period=0)
JOINT = replace(NOTHING, joint_noise_period=1)


@dataclass(frozen=True)
class BenchOptions:
    """Measure a machine or a Ray cluster with a fixed suite, or compare two results."""

    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started."""
    cpus: int | None = None
    """CPUs that actors may use; None: all of this machine, or of the cluster."""
    rounds: int = 5
    """Rounds; each measures everything once."""
    seconds: float = 3.0
    """Seconds that each fleet is measured for in a round, at least."""
    out: str | None = None
    """The result file; None: bench/<nodes>x<CPUs>.json. One that is there already is continued."""
    compare: tuple[str, str] | None = None
    """Two result files: print what changed from the first to the second, and measure nothing."""


def run_bench(options: BenchOptions, command: list[str], console: Console | None = None) -> int:
    """Do what the options say; the exit code of the command.

    Raises:
        UsageError: a cluster that cannot be used, or files that cannot be compared or continued.
    """
    console = console or Console()
    if options.compare is not None:
        return compare_files(Path(options.compare[0]), Path(options.compare[1]), console)
    require_positive({"rounds": options.rounds, "seconds": options.seconds, "cpus": options.cpus})
    task = find_task(TASK)
    config = default_config(task)
    config = replace(config, rollout=replace(config.rollout, actors=1, ray_address=options.ray_address))
    session = Session(config, task)
    local = len(os.sched_getaffinity(0))
    connect(options.ray_address, options.cpus or (1 if options.ray_address else local))
    try:
        nodes = describe_nodes()
        cpus = options.cpus or sum(node["cpus"] * node["count"] for node in nodes)
        facts = {
            "suite": SUITE,
            "version": VERSION,
            "command": command,
            "commit": find_commit(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "nodes": nodes,
            "cpus": cpus,
            "driver": describe_machine(session.device),
            "versions": find_versions(),
            "precision": session.precision,
        }
        path = Path(options.out or f"bench/{sum(node['count'] for node in nodes)}x{nodes[0]['cpus']}.json")
        rounds = read_rounds(path, facts)
        if rounds:
            console.print(f"{path} holds {len(rounds)} of {options.rounds} rounds already", highlight=False, soft_wrap=True)
        counts = actor_counts(cpus, nodes)
        steps = Steps(console, max(options.rounds - len(rounds), 0) * (len(counts) + 2))
        with watch_head(options.ray_address), steps:
            while len(rounds) < options.rounds:
                rounds.append(measure_round(config, task, session, counts, options.seconds, steps, len(rounds) + 1))
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, (json.dumps({**facts, "rounds": rounds}, indent=1) + "\n").encode())
    finally:
        disconnect()
    show(console, rounds)
    console.print(f"wrote {path}", highlight=False, soft_wrap=True)
    return 0


def describe_nodes() -> list[dict[str, Any]]:
    """The cluster's machines, those that are alike counted together; nothing that names them, and nothing that varies."""
    import ray

    kinds = Counter(
        (int(r.get("CPU", 0)), int(r.get("GPU", 0))) for r in (node["Resources"] for node in ray.nodes() if node["Alive"])
    )
    return [{"cpus": cpus, "gpus": gpus, "count": count} for (cpus, gpus), count in sorted(kinds.items(), reverse=True)]


def read_rounds(path: Path, facts: Mapping[str, Any]) -> list[dict[str, float]]:
    """Rounds that were measured already, on the same machines with the same suite.

    Raises:
        UsageError: the file is something else.
    """
    if not path.exists():
        return []
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        same = all(record[name] == facts[name] for name in ("suite", "version", "nodes", "cpus", "precision"))
        rounds: list[dict[str, float]] = record["rounds"]
    except (OSError, ValueError, KeyError, TypeError):
        same, rounds = False, []
    if not same:
        raise UsageError("--out", f"{path} holds something else, or another machine's result", "Name another file")
    return rounds


def actor_counts(cpus: int, nodes: Sequence[Mapping[str, Any]]) -> list[int]:
    """Actors of the fleets: powers of two, all CPUs, and as many as whole nodes have."""
    counts = {2**k for k in range(16)} | {cpus}
    total = 0
    for node in nodes:
        for _ in range(node["count"] if len(nodes) > 1 or node["count"] > 1 else 0):
            total += node["cpus"]
            counts.add(total)
    return sorted(n for n in counts if 0 < n <= cpus)


def measure_round(
    config: TrainConfig, task: Task, session: Session, counts: Sequence[int], seconds: float, steps: Steps, number: int
) -> dict[str, float]:
    """Observations per second of everything, once."""
    found: dict[str, float] = {}
    for count in counts:
        steps.begin(f"round {number}: {count} actor{'s' * (count > 1)}")
        reading = measure_fleet(config, task, session, Shape(count, 1, ENVIRONMENTS), seconds)
        found[f"sampling, {count} actor{'s' * (count > 1)}"] = statistics.median(reading.rates)
    steps.begin(f"round {number}: the learner")
    found |= measure_learning(config, task, session)
    steps.begin(f"round {number}: end to end")
    found["end to end, 4 epochs, noise measured"] = measure_whole(config, task, max(counts))
    return found


def measure_learning(config: TrainConfig, task: Task, session: Session) -> dict[str, float]:
    """One epoch and one step of a batch, without any noise measurement and with the joint one; the default update as well."""
    fragments = sample_fragments(config, task, session, 64, FRAGMENTS)
    environments = 64 * FRAGMENTS
    slots = arrange_slots(range(FRAGMENTS), 64)
    rollout = replace(config.rollout, environments=environments, rollout_length=fragments[0].steps)
    single = replace(config.update, epochs=1, mini_batch=None)
    variants = {
        "learning, one step": (single, NOTHING),
        "learning, one step, noise measured": (single, JOINT),
        "learning, 4 epochs of mini-batches": (config.update, NOTHING),
    }
    found = {}
    for name, (update, noise) in variants.items():
        learner = Learner(
            replace(config, rollout=rollout, update=update, noise=noise), task, session.device, session.precision == "bfloat16"
        )
        seconds = []
        for turn in range(3 if update is single else 2):
            begin = perf_counter()
            learn_batch(learner, fragments, turn, 1e-5, slots)
            seconds.append(perf_counter() - begin)
        found[name] = environments * fragments[0].steps / statistics.median(seconds[1:])
    return found


def measure_whole(config: TrainConfig, task: Task, actors: int) -> float:
    """Sampling and learning in turn, as `rlscale train` does; of the noise only the joint one, which every update yields."""
    rollout = replace(config.rollout, actors=actors, environments=16 * actors, rollout_length=64)
    session = Session(replace(config, rollout=rollout, noise=JOINT), task)
    try:
        session.start()
        rows = [iterated[0] for _ in range(ITERATIONS + 1) if (iterated := session.iterate()) is not None]
    finally:
        session.close()
    return sum(row["batch_observations"] for row in rows[1:]) / (rows[-1]["seconds"] - rows[0]["seconds"])


def show(console: Console, rounds: Sequence[Mapping[str, float]]) -> None:
    """Medians with the middle half."""
    table = Table(title=f"{SUITE} {VERSION}: observations per second, Atari Pong", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("")
    table.add_column("median [middle half]", justify="right")
    for name in rounds[0]:
        values = [row[name] for row in rounds if name in row]
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        table.add_row(name, f"{format_quantity(middle)} [{format_quantity(low)}, {format_quantity(high)}]")
    console.print(table)
