"""Planted branches: does the interval of B_local hold, and how wide is it?

    python -m rlscale.benchmarks.measurements.branch_coverage [--checkpoints N] [--out FILE]

A planted checkpoint has B_local 500, progress of one unit over the branches' 40,000 observations, and gains that scatter as a
cell says. Branches are made at six batch sizes a factor of four apart and four learning rates an octave apart, whose centre errs
by half an octave or so; the return at the start, from which gains are counted, errs as well.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from rlscale.frontier import fit_branches

from .measuring import map_in_processes, print_table, write_result

B_LOCAL, OBSERVATIONS = 500.0, 40_000
SIZES = tuple(31.25 * 4**j for j in range(6))
OCTAVES = (-1.5, -0.5, 0.5, 1.5)


@dataclass(frozen=True)
class Cell:
    """How gains scatter.

    Attributes:
        seeds: branches at each size and rate.
        sd: of a gain over seeds, relative, t₄.
        curvature: of ln progress in ln ε.
        rate_exponent: the best rate is proportional to B to this power.
        exponent: progress falls as 1 / (1 + (B/B_local)^exponent).
        brink: factor of the best rate beyond which a branch collapses and loses two units; inf for none.
    """

    seeds: int = 4
    sd: float = 0.5
    curvature: float = 0.3
    rate_exponent: float = 0.5
    exponent: float = 1.0
    brink: float = math.inf


CELLS = {
    "sd 0.5": Cell(),
    "sd 0.5, eight seeds": Cell(seeds=8),
    "sd 1": Cell(sd=1.0),
    "curvature 0.15": Cell(curvature=0.15),
    "curvature 0.6": Cell(curvature=0.6),
    "rate exponent 0.35": Cell(rate_exponent=0.35),
    "rate exponent 0.65": Cell(rate_exponent=0.65),
    "collapse beyond thrice the best rate": Cell(brink=3.0),
    "exponent 0.8": Cell(exponent=0.8),
}


def checkpoint(name: str, seed: int) -> tuple[float, float]:
    """The interval of one planted checkpoint."""
    cell, rng = CELLS[name], np.random.default_rng([seed, 0xB12A])
    centre, start, error = 0.5 * rng.normal(), 0.04 * rng.normal(), 0.1
    rows = []
    for size in SIZES:
        best = 1 / (1 + (size / B_LOCAL) ** cell.exponent)
        for octave in OCTAVES:
            u = centre + octave * math.log(2)
            for _ in range(cell.seeds):
                gain = best * math.exp(-cell.curvature * u * u) + best * cell.sd * rng.standard_t(4) / math.sqrt(2)
                if u > math.log(cell.brink):
                    gain = -2.0
                rows.append(
                    (size, 0.01 * (size / B_LOCAL) ** cell.rate_exponent * math.exp(u), gain + error * rng.normal() - start)
                )
    size, rate, gain = np.array(rows).T
    observations = np.full(len(size), OBSERVATIONS)
    found = fit_branches(size, rate, gain, observations, gain_error=np.full(len(size), error), start_error=0.04)
    assert found.b_local.interval is not None
    return found.b_local.interval


def main(checkpoints: int = 400, out: Path = Path("results/branch-coverage.json")) -> None:
    """Coverage and width of the intervals of planted checkpoints.

    Args:
        checkpoints: Checkpoints in each cell.
        out: Where the record goes.
    """
    cells: dict[str, Any] = {}
    for name in CELLS:
        ends = np.array(list(map_in_processes(checkpoint, [(name, seed) for seed in range(checkpoints)])))
        covered = (ends[:, 0] <= B_LOCAL) & (ends[:, 1] >= B_LOCAL)
        resolved = np.isfinite(ends[:, 1]) & (ends[:, 0] > 0)
        cells[name] = {
            **asdict(CELLS[name]),
            "brink": CELLS[name].brink if math.isfinite(CELLS[name].brink) else None,
            "checkpoints": checkpoints,
            "coverage": float(covered.mean()),
            "resolved": float(resolved.mean()),
            "ratio": float(np.median(ends[resolved, 1] / ends[resolved, 0])) if resolved.any() else None,
        }
        print(name, cells[name], flush=True)
        write_result(out, {"b_local": B_LOCAL, "cells": cells})
    rows = [[n, f"{c['coverage']:.1%}", f"{c['resolved']:.0%}", f"{c['ratio']:.2f}"] for n, c in cells.items() if c["ratio"]]
    print_table("Planted checkpoints", ["cell", "covers", "resolved", "upper/lower"], rows)


if __name__ == "__main__":
    tyro.cli(main)
