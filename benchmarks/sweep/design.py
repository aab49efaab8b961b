"""Which run of a sweep comes next: the batch size and learning rate that sharpen ln B_crit most per observation.

A sweep that is not told its sizes goes through four stages, and `next_run` says the next run of any of them:

1. *pilot*: one batch size, three rates two octaves apart. It gives the order of the best rate, the steps that each goal takes,
   and the noise scale.
2. *span*: a first run at each of five sizes from a sixteenth of the noise scale to eight times, the cheapest first.
3. *sharpen*: the (size, rate) with the largest expected fall of the variance of ln B_crit per expected observation, averaged over
   draws from what is known of the surface, so that a rate that is not known yet is explored on the way.
4. *noise*: runs at the size nearest the noise scale, at the best rate; they measure the noise.

Nothing here runs anything, and nothing is random: the same runs give the same next run. `plan` says what is a trial, and
`rlscale.frontier` fits the surface.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlscale.frontier import response
from rlscale.frontier.response import Fitted, Response
from rlscale.frontier.runs import check_runs
from rlscale.frontier.surface import allowed_rise, critical_interval

__all__ = ["Candidate", "RunSoFar", "next_run", "rounded"]

PILOT_OFFSETS = (0, 4, -4)  # of the pilot's rates, in half octaves
SPAN = (1 / 16, 1 / 4, 1.0, 4.0, 8.0)  # sizes of the first runs, in critical batch sizes as far as known
FEWEST_RUNS = 2  # at each size of the span
OFFSETS = (-4, -3, -2, -1, 0, 1, 2, 3)  # rates to choose from, in half octaves from the best
PATIENCE = 4.0  # a run is given up after so many times the steps that are expected of it
DRAWS = 12  # of the surface's parameters
_KNOWN = [response.A, response.C, response.P, response.Q, response.CURVATURE, response.ASYMMETRY]


@dataclass(frozen=True)
class RunSoFar:
    """A run that ended, or one under way.

    Attributes:
        batch_size: B.
        learning_rate: its rate.
        optimizer_steps: S to the goal that is sharpened; inf where it was missed, nan while the run is under way.
        observations: to the goal, or spent without reaching it.
        seed: of the run.
    """

    batch_size: int
    learning_rate: float
    optimizer_steps: float
    observations: float
    seed: int

    @property
    def pending(self) -> bool:
        """Whether it is under way."""
        return math.isnan(self.optimizer_steps)


@dataclass(frozen=True)
class Candidate:
    """A run to make.

    Attributes:
        stage: pilot, span or sharpen.
        batch_size: B.
        learning_rate: its rate.
        most_steps: optimizer steps after which it is given up; inf where nothing is known yet.
    """

    stage: str
    batch_size: int
    learning_rate: float
    most_steps: float


def rounded(rate: float) -> float:
    """A rate as it is recorded, with four digits."""
    return float(f"{rate:.4g}")


@dataclass(frozen=True)
class _Known:
    """The surface through the runs so far, without intervals."""

    runs: Response
    best: Fitted
    rise: float

    @property
    def theta(self) -> np.ndarray:
        return self.best.theta

    @property
    def middle(self) -> float:
        return self.runs.middle

    def best_rate(self, size: float) -> float:
        return math.exp(self.theta[response.P] + self.theta[response.Q] * (math.log(size) - self.middle))

    @property
    def b_crit(self) -> float:
        return math.exp(self.theta[response.C])

    def steps(self, size: float) -> float:
        """At the best rate."""
        return math.exp(self.theta[response.A]) * (1 + self.b_crit / size)


def _fit(ended: Sequence[RunSoFar]) -> _Known | None:
    """None while fewer than three sizes have a run that reached the goal."""
    if len({run.batch_size for run in ended if math.isfinite(run.optimizer_steps)}) < 3:
        return None
    columns = zip(*((r.batch_size, r.optimizer_steps, r.observations, r.learning_rate) for r in ended), strict=True)
    sizes, steps, observations, rates = columns
    points = check_runs(sizes, steps, observations, None)
    runs = Response(points, np.array(rates))
    return _Known(runs, runs.best(tries=1), allowed_rise(points, 0.95))


def next_run(
    runs: Sequence[RunSoFar], *, pilot_size: int, pilot_rate: float, noise_scale: float | None, sizes: Sequence[int], ratio: float
) -> Candidate | None:
    """The run to make next; None once the interval is sharp enough.

    Args:
        runs: those made so far, in the order in which they were decided on.
        pilot_size: batch size of the pilot.
        pilot_rate: its first learning rate.
        noise_scale: of the pilot; None where it is not resolved, and the pilot's own size stands in for it.
        sizes: every batch size that may be run, ascending.
        ratio: of the upper to the lower end of B_crit's interval, at which the sweep is sharp enough.
    """
    if len(runs) < len(PILOT_OFFSETS):
        ended = [run for run in runs if not run.pending]
        reached = [run.optimizer_steps for run in ended if math.isfinite(run.optimizer_steps)]
        rate = rounded(pilot_rate * 2 ** (PILOT_OFFSETS[len(runs)] / 2))
        return Candidate("pilot", pilot_size, rate, PATIENCE * min(reached, default=math.inf))
    ended = [run for run in runs if not run.pending]
    known = _fit(ended)
    tried = [run.batch_size for run in runs]
    # B_crit as far as known, within what the tried sizes can tell.
    centre = min(max(known.b_crit, min(tried) / 2), max(tried) * 2) if known else noise_scale or pilot_size
    span = [_nearest(sizes, centre * factor) for factor in SPAN]
    counts = {size: sum(run.batch_size == size for run in runs) for size in span}
    missing = [size for size in dict.fromkeys(span) if counts[size] < (FEWEST_RUNS if known else 1)]
    if known is None or missing:
        size = min(missing or span, key=lambda size: (counts[size], size))
        rate = known.best_rate(size) if known else _pilot_rate(ended, pilot_rate) * math.sqrt(size / pilot_size)
        if known and counts[size] % 2:
            rate *= 2.0
        return Candidate("span", size, rounded(rate), PATIENCE * _expected(known, ended, size))
    if _is_sharp(known, ended, ratio):
        return None
    low, high = centre * SPAN[0] / 1.5, centre * SPAN[-1] * 1.5
    wide = [size for size in sizes if low <= size <= high]
    size, rate = _sharpest(known, runs, wide)
    return Candidate("sharpen", size, rounded(rate), PATIENCE * _expected(known, ended, size))


def _nearest(sizes: Sequence[int], wanted: float) -> int:
    return min(sizes, key=lambda size: (abs(math.log(size / wanted)), size))


def _pilot_rate(ended: Sequence[RunSoFar], pilot_rate: float) -> float:
    """The pilot's rate with the fewest steps."""
    pilot = [run for run in ended[: len(PILOT_OFFSETS)] if math.isfinite(run.optimizer_steps)]
    return min(pilot, key=lambda run: run.optimizer_steps).learning_rate if pilot else pilot_rate


def _expected(known: _Known | None, ended: Sequence[RunSoFar], size: int) -> float:
    """Optimizer steps that a run at the best rate of a size is expected to take."""
    if known is not None:
        return known.steps(size)
    reached = [run for run in ended if math.isfinite(run.optimizer_steps)]
    if not reached:
        return math.inf
    best = min(reached, key=lambda run: run.optimizer_steps * run.batch_size)
    # Nothing is known of B_crit: allow for either branch.
    return best.optimizer_steps * max(1.0, best.batch_size / size)


def _sharpest(known: _Known, runs: Sequence[RunSoFar], sizes: Sequence[int]) -> tuple[int, float]:
    """The size and rate with the largest fall of var(ln B_crit) per observation."""
    theta, middle = known.theta, known.middle
    made = _logs(runs)
    grid = np.array([(size, known.best_rate(size) * 2 ** (k / 2)) for size in sizes for k in OFFSETS])
    log_grid = np.log(grid)
    lower = np.linalg.cholesky(np.linalg.inv(_information(theta, made, middle)))
    gain = np.zeros(len(grid))
    for draw in np.random.default_rng(0).standard_normal((DRAWS, len(_KNOWN))):
        moved = theta.copy()
        moved[_KNOWN] += lower @ np.clip(draw, -2.0, 2.0)
        inverse = np.linalg.inv(_information(moved, made, middle))
        slopes, weight, cost = _slopes(moved, log_grid, middle)
        along = slopes @ inverse
        spread = np.einsum("ij,ij->i", along, slopes)
        place = _KNOWN.index(response.C)
        gain += along[:, place] ** 2 * weight / (1 + weight * spread) / cost
    best = int(gain.argmax())
    return int(grid[best, 0]), float(grid[best, 1])


def _is_sharp(known: _Known, ended: Sequence[RunSoFar], ratio: float) -> bool:
    """Whether B_crit's interval is sharp enough, with five sizes at which a run reached the goal."""
    if len({run.batch_size for run in ended if math.isfinite(run.optimizer_steps)}) < len(SPAN):
        return False
    place = _KNOWN.index(response.C)
    variance = float(np.linalg.inv(_information(known.theta, _logs(ended), known.middle))[place, place])
    if 2 * math.sqrt(known.rise * variance) > math.log(ratio):
        return False  # the profile takes a while, and is wider still
    low, high = critical_interval(known.runs, known.best, known.rise)
    return high - low <= math.log(ratio)


def _logs(runs: Sequence[RunSoFar]) -> np.ndarray:
    return np.log([[run.batch_size, run.learning_rate] for run in runs])


def _slopes(theta: np.ndarray, made: np.ndarray, middle: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For runs at (ln B, ln rate): slopes of the expected ln S in the known parameters, information and expected observations."""
    x, u = made[:, 0], made[:, 1] - theta[response.P] - theta[response.Q] * (made[:, 0] - middle)
    side = np.where(u > 0, 1.0, -1.0)
    k = np.exp(theta[response.CURVATURE] + side * theta[response.ASYMMETRY])
    lift = k * u * u
    to_rate = -2 * k * u
    bend = 1 / (1 + np.exp(x - theta[response.C]))
    slopes = np.column_stack([np.ones(len(x)), bend, to_rate, to_rate * (x - middle), lift, side * lift])
    stuck = response.stuck_share(theta, u)
    sigma = math.exp(theta[response.SIGMA])
    steps = np.exp(theta[response.A] + np.logaddexp(0.0, theta[response.C] - x))
    cost = np.exp(x) * steps * ((1 - stuck) * np.exp(np.minimum(lift, math.log(PATIENCE))) + stuck * PATIENCE)
    # A t₄ distribution of scale σ has the information 5/(7σ²) on its place; a run given up has hardly any.
    return slopes, 5 / 7 * (1 - stuck) * (lift < math.log(PATIENCE)) / sigma**2, cost


def _information(theta: np.ndarray, made: np.ndarray, middle: float) -> np.ndarray:
    """Expected information of runs on the known parameters, the weak priors added."""
    slopes, weight, _ = _slopes(theta, made, middle)
    return (slopes * weight[:, None]).T @ slopes + np.diag([1 / response.prior_deviation(index) ** 2 for index in _KNOWN])
