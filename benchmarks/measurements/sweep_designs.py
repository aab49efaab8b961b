"""Planted sweeps: does the interval of B_crit hold, how wide is it, and what do the runs cost?

    python -m rlscale.benchmarks.measurements.sweep_designs [--grids N] [--sequential N] [--cells NAME ...] [--out FILE]

A planted task has B_crit 1,000, S_min 300, and runs whose ln S scatters about the surface as a cell says. Two designs measure
it: *grid*, eleven sizes, four rates and two seeds, in some cells four; and *sequential*, the sweep's own `next_run`, two runs
side by side, until the interval's ends are a factor of two apart. No plan knows the truth: grids and pilots are centred on it
with errors. A third design of the records, *search*, was the plan of this project's first sweeps.

Costs are in E_min. The sequential design's holds the pilot, eight noise runs and `EVALUATION` for every run.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from scipy.stats import binomtest

from rlscale.frontier import STOPPED_CONFIDENCE, Surface, fit_surface

from ..sweep.design import RunSoFar, next_run
from .measuring import map_in_processes, print_table, require_known, write_result

__all__ = ["CELLS", "DESIGNS", "Cell", "planted_sweep"]

B_CRIT, S_MIN = 1000.0, 300.0
E_MIN = B_CRIT * S_MIN
EVALUATION = 0.5  # E_min for each run of the sequential design; MinAtar Breakout takes 0.1 to 0.5, the ladder's tasks 0.07 to 32
SIZES = tuple(5 * 2**j for j in range(16))
JOBS, RATIO, NOISE_RUNS = 2, 2.0, 8
MOST = 3000.0  # E_min, after which the sequential design gives up


@dataclass(frozen=True)
class Cell:
    """How the runs of a planted task scatter.

    Attributes:
        sd: standard deviation of ln S over seeds, t₄.
        stuck: fraction of runs that take longer by e^(0.5 + an exponential of mean 1), or, a third of them, for ever.
        stuck_at_ends: that fraction at the smallest and at the largest size of a grid; below B_crit/6 and above 6 B_crit.
        rate_exponent: the best rate is proportional to B to this power.
        saturating: the best rate is the paper's, ε/(1 + B_crit/B), instead.
        curvature: of ln S in ln rate, below and above the best one.
        exponent: α of S = S_min (1 + (B_crit/B)^α).
        shared: part of the seeds' variance that all runs of one seed share; only grids use a seed more than once.
        seeds: of a grid, at each size and rate.
    """

    sd: float = 0.4
    stuck: float = 0.06
    stuck_at_ends: float = 0.06
    rate_exponent: float = 0.5
    saturating: bool = False
    curvature: tuple[float, float] = (0.2, 0.2)
    exponent: float = 1.0
    shared: float = 0.0
    seeds: int = 2

    @property
    def is_of_grids(self) -> bool:
        """Whether it differs from other cells in grids alone: the sequential design uses every seed once."""
        return self.shared > 0 or self.seeds != Cell.seeds


CELLS = {
    "sd 0.25": Cell(sd=0.25),
    "sd 0.4": Cell(),
    "sd 0.5": Cell(sd=0.5),
    "40% stuck at both ends": Cell(stuck_at_ends=0.4),
    "rate exponent 0.35": Cell(rate_exponent=0.35),
    "rate exponent 0.65": Cell(rate_exponent=0.65),
    "rate saturates": Cell(saturating=True),
    "steep below": Cell(curvature=(0.35, 0.12)),
    "steep above": Cell(curvature=(0.12, 0.35)),
    "seeds share half": Cell(shared=0.5),
    "exponent 0.8": Cell(exponent=0.8),
    "exponent 1.2": Cell(exponent=1.2),
    "exponent 0.8, sd 0.25": Cell(exponent=0.8, sd=0.25),
    "exponent 1.2, sd 0.25": Cell(exponent=1.2, sd=0.25),
    "four seeds": Cell(seeds=4),
    "exponent 0.8, four seeds": Cell(exponent=0.8, seeds=4),
    "exponent 1.2, four seeds": Cell(exponent=1.2, seeds=4),
}


class _Task:
    """Runs of a planted task. A rate e^1.3 above the best one fails in nine cases of ten."""

    def __init__(self, cell: Cell, rng: np.random.Generator, ends: tuple[float, float]) -> None:
        self._cell, self._rng, self._ends = cell, rng, ends
        self._offsets: dict[int, float] = {}
        self.cost = 0.0  # in E_min

    def run(self, size: float, rate: float, seed: int, most_steps: float = math.inf) -> RunSoFar:
        """One run; it is given up after so many steps, or twenty times those that the best rate takes."""
        cell, rng = self._cell, self._rng
        grows = math.log(2 / (1 + B_CRIT / size)) if cell.saturating else cell.rate_exponent * math.log(size / B_CRIT)
        u = math.log(rate) - grows
        expected = math.log(S_MIN) + math.log1p((B_CRIT / size) ** cell.exponent)
        if seed not in self._offsets:
            self._offsets[seed] = cell.sd * math.sqrt(cell.shared) * rng.standard_normal()
        noise = cell.sd * math.sqrt((1 - cell.shared) / 2) * rng.standard_t(4) + self._offsets[seed]
        y = expected + cell.curvature[u > 0] * u * u + noise
        if rng.random() < (cell.stuck if self._ends[0] < size < self._ends[1] else cell.stuck_at_ends):
            y = math.inf if rng.random() < 1 / 3 else y + 0.5 + rng.exponential()
        if u > 1.3 and rng.random() < 0.9:
            y = math.inf
        most = min(most_steps, 20 * S_MIN * (1 + B_CRIT / size))
        steps = math.exp(y) if y < math.log(most) else math.inf
        observations = size * min(steps, most)
        self.cost += observations / E_MIN
        return RunSoFar(int(size), rate, steps, observations, seed)


def _fitted(runs: Sequence[RunSoFar], confidence: float = 0.95) -> Surface:
    columns = ([r.batch_size for r in runs], [r.learning_rate for r in runs], [r.optimizer_steps for r in runs])
    return fit_surface(*columns, [r.observations for r in runs], group=[r.seed for r in runs], confidence=confidence)


def _grid(cell: Cell, rng: np.random.Generator) -> tuple[Surface, float]:
    """Eleven sizes, four rates an octave apart, two seeds or more; the sizes miss their centre by e^0.4, the rates by e^0.35."""
    centre, miss = B_CRIT * math.exp(0.4 * rng.standard_normal()), 0.35 * rng.standard_normal()
    sizes = np.round(np.geomspace(centre / 16, 8 * centre, 11))
    task = _Task(cell, rng, (sizes[0] + 1, sizes[-1] - 1))
    runs = []
    for size in sizes:
        for k in (-1.5, -0.5, 0.5, 1.5):
            rate = math.sqrt(size / B_CRIT) * math.exp(miss) * 2**k
            runs += [task.run(size, rate, seed, 4 * S_MIN * (1 + B_CRIT / size)) for seed in range(cell.seeds)]
    return _fitted(runs), task.cost


def _sequential(cell: Cell, rng: np.random.Generator) -> tuple[Surface, float]:
    """The pilot's size misses by e^0.7, its rate by e^0.7, its noise scale by e^0.6."""
    task = _Task(cell, rng, (B_CRIT / 6, 6 * B_CRIT))
    wanted, miss, noise_scale = (math.exp(sd * rng.standard_normal()) for sd in (0.7, 0.7, 0.6))
    pilot = min(SIZES, key=lambda size: abs(math.log(size / B_CRIT / wanted)))
    runs: list[RunSoFar] = []
    while task.cost < MOST:
        ended = len(runs) if len(runs) <= 3 else max(3, len(runs) - JOBS)
        known = [r if i < ended else RunSoFar(r.batch_size, r.learning_rate, math.nan, math.nan, i) for i, r in enumerate(runs)]
        candidate = next_run(
            known,
            pilot_size=pilot,
            pilot_rate=math.sqrt(pilot / B_CRIT) * miss,
            noise_scale=noise_scale * B_CRIT,
            sizes=SIZES,
            most_observations=math.inf,
            ratio=RATIO,
        )
        if candidate is None:
            break
        runs.append(task.run(candidate.batch_size, candidate.learning_rate, len(runs), candidate.most_steps))
    noise_size = min(SIZES, key=lambda size: abs(math.log(size / B_CRIT / noise_scale)))
    surface = _fitted(runs, STOPPED_CONFIDENCE)
    if surface.s_min.value is not None:
        rate = surface.best_rate(noise_size)
        most = 4 * surface.optimizer_steps(float(noise_size)) if surface.b_crit.value else math.inf
        runs += [task.run(noise_size, rate, len(runs) + i, most) for i in range(NOISE_RUNS)]
    return _fitted(runs, STOPPED_CONFIDENCE), task.cost + EVALUATION * len(runs)


DESIGNS = {"grid": _grid, "sequential": _sequential}
_STREAMS = {"grid": 1, "sequential": 2}  # of random numbers; the records' own


def planted_sweep(design: str, cell: str, number: int) -> dict[str, Any]:
    """What one planted sweep finds."""
    rng = np.random.default_rng([number, _STREAMS[design], *cell.encode()])
    frontier, cost = DESIGNS[design](CELLS[cell], rng)
    low, high = frontier.b_crit.interval or (0.0, math.inf)
    return {
        "covers": low < B_CRIT < high,
        "error": None if frontier.b_crit.value is None else math.log(frontier.b_crit.value / B_CRIT),
        "ratio": high / low if low > 0 else math.inf,
        "warns": frontier.warning is not None,
        "cost": cost,
        "runs": len(frontier.points),
    }


def _summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    errors = [one["error"] for one in found if one["error"] is not None]
    covers = sum(one["covers"] for one in found)
    return {
        "sweeps": len(found),
        "coverage": covers / len(found),
        "coverage_interval": binomtest(covers, len(found)).proportion_ci(method="wilson"),
        "unresolved": len(found) - len(errors),
        "bias": statistics.fmean(errors),
        "rmse": math.sqrt(statistics.fmean(error**2 for error in errors)),
        "ratio": statistics.median(one["ratio"] for one in found),
        "warns": sum(one["warns"] for one in found) / len(found),
        "cost": float(statistics.median(one["cost"] for one in found)),
        "cost_tenths": [float(tenth) for tenth in statistics.quantiles([one["cost"] for one in found], n=10)],
        "runs": statistics.median(one["runs"] for one in found),
    }


def main(
    grids: int = 500,
    sequential: int = 200,
    cells: tuple[str, ...] = tuple(CELLS),
    designs: tuple[str, ...] = tuple(DESIGNS),
    out: Path = Path("results/sweep-designs.json"),
) -> None:
    """Coverage, bias, width and cost of the designs over planted sweeps.

    Args:
        grids: Sweeps of the design grid in each cell.
        sequential: Sweeps of the sequential design in each cell.
        cells: Cells to run.
        designs: Designs to run.
        out: Where the record goes; written after every cell.
    """
    require_known("--designs", designs, DESIGNS)
    require_known("--cells", cells, CELLS)
    readings = []
    for design in designs:
        for cell in cells:
            if design == "sequential" and CELLS[cell].is_of_grids:
                continue
            number = sequential if design == "sequential" else grids
            found = list(map_in_processes(planted_sweep, [(design, cell, i) for i in range(number)]))
            readings.append({"design": design, "cell": cell, "truth": asdict(CELLS[cell]), **_summary(found)})
            one = readings[-1]
            print(design, cell, {key: one[key] for key in ("coverage", "rmse", "ratio", "warns", "cost")}, flush=True)
            write_result(out, readings)
    rows = [
        [
            one["design"],
            one["cell"],
            f"{100 * one['coverage']:.1f}",
            f"{one['bias']:+.3f}",
            f"{one['rmse']:.3f}",
            f"{one['ratio']:.2f}",
            f"{100 * one['warns']:.1f}",
            f"{one['cost']:,.0f}",
        ]
        for one in readings
    ]
    print_table("Planted sweeps", ["design", "cell", "coverage, %", "bias", "rmse", "upper/lower", "warns, %", "E_min"], rows)


if __name__ == "__main__":
    tyro.cli(main)
