"""`run_bench`: round after round of the suite, each written to the result file, or the comparison of two such files."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from rlscale.agents.checks import require_positive
from rlscale.agents.cluster import connected, watch_head
from rlscale.agents.cluster.resources import cpus_for_actors, describe_nodes
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.agents.machine import describe_machine, find_code, find_versions
from rlscale.cpus import usable_cpus
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.files import hold_folder, now, write_atomically

from ..console import say
from ..options import check_cpus, refuse_given
from ..steps import Steps
from .compare import compare_files
from .options import BenchOptions
from .suite import SUITE, TASK, UPDATE, VERSION, actor_counts, measure_round, show

__all__ = ["run_bench"]


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
            "commit": find_code(),
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
