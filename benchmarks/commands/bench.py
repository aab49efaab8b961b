"""`rlscale bench`: measures a machine or a Ray cluster with a fixed suite, or compares two results.

rlscale bench [--ray-address A] [--rounds N] [--out FILE]        measure; the same command goes on where it stopped
rlscale bench --compare A B                                      ratios with their intervals
"""

import contextlib
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rlscale.agents.checks import require_positive
from rlscale.agents.cluster import LostWorkerError, connected, watch_head
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.agents.machine import describe_machine, find_commit, find_versions
from rlscale.cpus import usable_cpus
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.files import now, write_atomically

from ..bench import compare_files
from ..bench.suite import SUITE, TASK, UPDATE, VERSION, actor_counts, measure_round, show
from ..console import plain_console, say
from ..options import parse, refuse_given
from ..steps import Steps
from ..workers.options import check_cpus, cpus_for_actors, describe_nodes, hold_folder

__all__ = ["BenchOptions", "run", "run_bench"]


@dataclass(frozen=True)
class BenchOptions:
    """Measure a machine or a Ray cluster with a fixed suite, or compare two results."""

    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started."""
    cpus: int | None = None
    """CPUs that actors may use; None: all of this machine, or of the cluster those that nobody has reserved."""
    rounds: int = 5
    """Rounds; each measures everything once."""
    seconds: float = 3.0
    """Seconds for which each fleet is measured in a round, at least."""
    out: str | None = None
    """The result file; None: bench/<nodes>x<CPUs>.json. One of the same commit, versions and machines is continued."""
    compare: tuple[str, str] | None = None
    """Two result files: print what changed from the first to the second, and measure nothing."""


def run(arguments: list[str]) -> int:
    """Measure or compare, as the arguments say.

    Raises:
        UsageError: a cluster that cannot be used, or files that cannot be compared or continued.
        LostWorkerError: a Ray process or the head node was lost; complete rounds are kept, as after Ctrl-C.
    """
    options, command = parse(BenchOptions, "bench", arguments), ["rlscale", "bench", *arguments]
    try:
        return run_bench(options, command, plain_console())
    except (KeyboardInterrupt, LostWorkerError) as error:
        error.add_note(f"Rounds that were complete are kept; go on with: {shlex.join(command)}")
        raise


def run_bench(options: BenchOptions, command: list[str], console: Console) -> int:
    """Do what the options say; returns the exit code of the command.

    Raises:
        UsageError: a cluster that cannot be used, or files that cannot be compared or continued.
    """
    if options.compare is not None:
        others = [name for name in vars(options) if name != "compare"]
        refuse_given(options, others, "nothing is measured with --compare", "Leave it out")
        return compare_files(Path(options.compare[0]), Path(options.compare[1]), console)
    require_positive({"rounds": options.rounds, "seconds": options.seconds, "cpus": options.cpus})
    check_cpus(options.cpus, options.ray_address)
    task = find_task(TASK)
    config = default_config(task)
    rollout = replace(config.rollout, actors=1, ray_address=options.ray_address)
    config = replace(config, rollout=rollout, update=replace(config.update, **UPDATE))
    compute = resolve_compute(config)
    compute.prepare_process()
    here = usable_cpus()
    with (
        connected(options.ray_address, options.cpus or (1 if options.ray_address else here)),
        contextlib.ExitStack() as held,
    ):
        nodes = describe_nodes()
        cpus = cpus_for_actors(options.cpus, options.ray_address)
        facts = {
            "suite": SUITE,
            "version": VERSION,
            "command": command,
            "commit": find_commit(),
            "date": now(),
            "nodes": nodes,
            "cpus": cpus,
            "driver": describe_machine(compute.device),
            "versions": find_versions(),
            "precision": compute.precision,
            "seconds": options.seconds,
        }
        path = Path(options.out or f"bench/{sum(node['count'] for node in nodes)}x{nodes[0]['cpus']}.json")
        held.enter_context(hold_folder(path.parent))
        rounds = _read_rounds(path, facts)
        if rounds:
            say(console, f"{path} holds {len(rounds)} of {options.rounds} rounds already")
        counts = actor_counts(cpus, nodes)
        each = len(counts) + 2
        steps = Steps(console, max(options.rounds - len(rounds), 0) * each, each)
        with watch_head(options.ray_address), steps:
            while len(rounds) < options.rounds:
                rounds.append(measure_round(config, task, compute, counts, options.seconds, steps, len(rounds) + 1))
                write_atomically(path, (json.dumps({**facts, "rounds": rounds}, indent=1) + "\n").encode())
    show(console, rounds)
    say(console, f"wrote {path}")
    return 0


def _read_rounds(path: Path, facts: Mapping[str, Any]) -> list[dict[str, float]]:
    """Rounds in the file; none without a file. All rounds of a file are of one suite, commit, machine and so on.

    Raises:
        UsageError: the file is something else, or its rounds were measured otherwise.
    """
    if not os.path.exists(path):  # Path.exists raises where a name is too long
        return []
    mend = "Give another --out"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        before = _alike({"seconds": facts["seconds"], **record})  # older files do not say their seconds
        rounds: list[dict[str, float]] = [*record["rounds"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError("--out", f"{path} is no result of rlscale bench", mend) from None
    wanted = _alike(facts)
    if differing := [f"{name} {before.get(name)}, now {value}" for name, value in wanted.items() if before.get(name) != value]:
        raise UsageError("--out", f"{path} was measured otherwise: {'; '.join(differing)}", mend)
    return rounds


def _alike(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What all rounds of a file must agree in, for people."""
    nodes = ", ".join(f"{node['count']} × {node['cpus']} CPUs and {node['gpus']} GPUs" for node in facts["nodes"])
    plain = {name: facts[name] for name in ("suite", "version", "cpus", "precision", "seconds", "commit")}
    return {**plain, "nodes": nodes, **facts["driver"], **facts["versions"]}
