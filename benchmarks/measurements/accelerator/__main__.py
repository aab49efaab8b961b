"""The command: checks, figures, a record, and a block to paste into an issue."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import tyro

from rlscale.agents.checks import require_not_negative, require_positive
from rlscale.agents.compute import resolve_device
from rlscale.agents.devices import use_device
from rlscale.agents.machine import describe_machine, find_commit, find_versions
from rlscale.errors import UsageError

from ..measuring import median_and_spread, print_table, write_result
from .checks import ROLLOUT, Check, attempt, check_all
from .figures import (
    compare_noise,
    measure_acting,
    measure_learner,
    measure_memory,
    measure_runs,
    measure_several,
    measure_transfer,
)

__all__ = ["main"]


def block_of(device: torch.device, batch: int, checks: Sequence[Check], figures: dict[str, str]) -> str:
    """What is to be pasted into an issue: the machine, every check and every figure, as Markdown."""
    machine, failed = describe_machine(device), sum(not check.passed for check in checks)
    versions = ", ".join(f"{name} {version}" for name, version in find_versions().items() if version is not None)
    lines = [
        f"### rlscale on {machine['accelerator']} ({device.type}): {failed or 'none'} of {len(checks)} checks failed",
        "",
        f"commit {find_commit()}; {versions}; {machine['processor']}, {machine['cores']} cores, {machine['system']}; "
        f"{torch.accelerator.device_count()} × {machine['accelerator']}; Pong, {batch:,} observations a step",
        "",
        "| check | difference | allowed | |",
        "|---|---|---|---|",
        *(f"| {c.name} | {c.difference:.2g} | {c.allowed:.2g} | {'' if c.passed else '**failed**'} |" for c in checks),
        "",
        "| figure | median [middle half] |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in figures.items()),
    ]
    return "\n".join(lines)


def main(
    device: str = "auto", rounds: int = 5, batch: int = 8192, runs: int = 3, out: Path = Path("results/accelerator.json")
) -> int:
    """Check an accelerator against the CPU, measure it, and print a block to paste into an issue.

    Args:
        device: The accelerator; auto takes the machine's.
        rounds: Paired rounds of each measurement.
        batch: Observations of a step where the learner is measured.
        runs: Whole runs of each kind of overlap; 0 leaves them out.
        out: Where the record goes.

    Returns:
        The exit code: 1 when a check failed, 2 when there is no accelerator or an option cannot be used.
    """
    try:
        require_positive({"rounds": rounds})
        require_not_negative({"runs": runs})
        if batch < 4 * ROLLOUT or batch % (2 * ROLLOUT):
            problem = f"{batch} is no multiple of {2 * ROLLOUT} of at least {4 * ROLLOUT}"
            raise UsageError("--batch", problem, "Give for example 8192")
        there = resolve_device(device)
        if there.type == "cpu":
            problem = "torch finds no accelerator on this machine" if device == "auto" else f"{device} is no accelerator"
            raise UsageError("--device", problem, "Install a build of PyTorch for yours, and leave this out")
    except UsageError as error:
        print(f"rlscale: {error}", file=sys.stderr)
        return 2
    use_device(there)
    checks = check_all(there)
    rows = [[c.name, f"{c.difference:.2g}", f"{c.allowed:.2g}", "" if c.passed else "failed"] for c in checks]
    print_table("Checks", ["check", "difference", "allowed", ""], rows)
    write_result(out, {"accelerator": describe_machine(there), "checks": [_recorded(check) for check in checks]})
    seconds = attempt("learning", checks, lambda: measure_learner(there, batch, rounds)) or {}
    several, shared = attempt("several learners", checks, lambda: measure_several(there, batch, rounds)) or ([], {})
    checks += several
    memory = attempt("memory", checks, lambda: measure_memory(there, batch)) or {}
    transfer = attempt("upload", checks, lambda: measure_transfer(there, rounds)) or []
    acting = attempt("acting", checks, lambda: measure_acting(there, rounds)) or {}
    traces = attempt("noise in bfloat16", checks, lambda: compare_noise(there, batch, rounds)) or []
    whole = attempt("whole runs", checks, lambda: measure_runs(there, runs)) or {}
    learners = seconds | shared
    figures = {f"learning, {name}: observations/s": median_and_spread([batch / s for s in learners[name]]) for name in learners}
    figures |= {f"device memory, {name}: bytes an observation": f"{x:,.0f}" for name, x in memory.items() if x is not None}
    if transfer:
        figures["upload from page-locked memory: GB/s"] = median_and_spread([rate / 1e9 for rate in transfer])
    figures |= {f"acting on {name}: ms": median_and_spread([1000 * s for s in found]) for name, found in acting.items()}
    if traces:
        figures["tr Σ in bfloat16 / in float32"] = median_and_spread(traces)
    figures |= {f"whole runs, {name}: observations/s": median_and_spread(found) for name, found in whole.items()}
    readings = {
        "accelerator": describe_machine(there),
        "checks": [_recorded(check) for check in checks],
        **{"batch": batch, "learner_seconds": seconds, "several_seconds": shared, "memory_bytes": memory},
        **{"upload_bytes_per_second": transfer, "acting_seconds": acting, "trace_ratio": traces, "run_rates": whole},
    }
    write_result(out, readings)
    print(f"\nPlease paste what follows into an issue:\n\n{block_of(there, batch, checks, figures)}")
    return int(not all(check.passed for check in checks))


def _recorded(check: Check) -> dict[str, Any]:
    return {**asdict(check), "passed": check.passed}


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
