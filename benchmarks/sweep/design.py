"""Which run of a sweep comes next: the batch size and learning rate that sharpen ln B_crit most per observation.

A sweep that is not told its sizes goes through four stages, and `next_run` says the next run of any of them:

1. *pilot*: one batch size, three rates two octaves apart. It gives the order of the best rate, the steps that each goal takes,
   and the noise scale.
2. *span*: three runs at each of five sizes from an eighth of the noise scale to eight times, the cheapest first. Sizes at which a
   run would spend its budget before the goal are left out, here and below.
3. *sharpen*: the (size, rate) with the largest expected fall of the variance of ln B_crit per expected observation, and of that
   of the free exponent, without which nobody would see that the frontier bends otherwise. The fall is averaged over draws from
   what is known of the surface, so that a rate that is not known yet is explored on the way.
4. *noise*: runs at the size nearest the noise scale, at the best rate; they measure the noise.

A quick sweep goes from the pilot to the noise at once: `noise_run` says at what rate.

Nothing here runs anything, and nothing is random: the same runs give the same next run. `plan` says what is a trial, and
`rlscale.frontier` fits the surface.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlscale.frontier import response
from rlscale.frontier.profile import critical_interval
from rlscale.frontier.response import Fitted, Response
from rlscale.frontier.runs import check_runs
from rlscale.frontier.surface import STOPPED_CONFIDENCE, allowed_rise, far_rates

__all__ = ["PILOT_RUNS", "Candidate", "Known", "RunSoFar", "fit_known", "nearest_size", "next_run", "noise_run", "rounded"]

PILOT_OFFSETS = (0, 4, -4)  # of the pilot's rates, in half octaves
PILOT_RUNS = len(PILOT_OFFSETS)
MOST_RUNS = 400  # of a sequential sweep, whatever its interval
QUICK_RUNS = 4  # noise runs of a quick sweep, after which it looks whether they are enough; else it makes all that it may
SPAN = (1 / 8, 1 / 3, 1.0, 3.0, 8.0)  # sizes of the first runs, in critical batch sizes as far as known
FEWEST_RUNS = 3  # at each size of the span
FEWEST_SIZES = 3  # with a run that reached the goal, without which there is no surface
OFFSETS = (-4, -3, -2, -1, 0, 1, 2, 3)  # rates to choose from, in half octaves from the best
STEP_COST = 256  # observations that an optimizer step costs beside its own: on a CPU so many take as long as the step itself
# A run is given up after so many times the steps that are expected of it. The pilot's are expected to take what its fastest run
# took, and a noise run that is given up measures nothing; of the others a limit says nearly as much as a crossing.
PATIENCE = {"pilot": 4.0, "span": 2.5, "sharpen": 2.5, "noise": 4.0}
SCATTER_ROOM = 1.5  # a run that reaches the goal may take so many times the observations that are expected of it
DRAWS = 12  # of the surface's parameters
EXPONENT_ERROR = 0.095  # standard error of ln α that goes with an interval of B_crit of a factor of e, if α is left free
SHAPE_RUNS = 90  # of a sweep at ratio 2, after which no run is made for the sake of the exponent
BLIND_RUNS = 6  # at each size of the span, after which a sweep ends if at fewer than three sizes a run has reached the goal
OPEN_RUNS = 60  # after which a sweep ends whose frontier bends beyond the sizes that it can afford
_KNOWN = [response.A, response.C, response.P, response.Q, response.CURVATURE, response.ASYMMETRY]
_BENT = [*_KNOWN, response.ALPHA]
_C, _ALPHA = _BENT.index(response.C), _BENT.index(response.ALPHA)


@dataclass(frozen=True)
class RunSoFar:
    """A run that ended, or one under way.

    Attributes:
        batch_size: B.
        learning_rate: its rate.
        optimizer_steps: S to the goal that is sharpened; inf where it was missed, nan while the run is under way or if it failed.
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
        stage: pilot, span, sharpen or noise.
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
class Known:
    """The surface through the runs so far; intervals are computed where they are asked for."""

    best: Fitted
    rise: float

    @property
    def theta(self) -> np.ndarray:
        return self.best.theta

    @property
    def middle(self) -> float:
        return self.best.runs.middle

    def best_rate(self, size: float) -> float:
        return math.exp(self.theta[response.P] + self.theta[response.Q] * (math.log(size) - self.middle))

    def cheapest_rate(self, size: float) -> float:
        """With the fewest expected steps of a run, those of runs that fail counted; below the best rate where a brink is near."""
        rates = self.best_rate(size) * 2 ** (np.arange(-12, 5) / 8)
        expected = _slopes(self.theta, np.log([(size, rate) for rate in rates]), self, PATIENCE["noise"])[2]
        return float(rates[expected.argmin()])

    @property
    def b_crit(self) -> float:
        return math.exp(self.theta[response.C])

    def steps(self, size: float) -> float:
        """At the best rate."""
        return math.exp(self.theta[response.A]) * (1 + self.b_crit / size)

    def interval(self) -> tuple[float, float]:
        """Of ln B_crit; infinite where the runs give no end."""
        return critical_interval(self.best, self.rise)


def fit_known(ended: Sequence[RunSoFar]) -> Known | None:
    """The surface through the runs that ended; None while fewer than three sizes have a run that reached the goal."""
    if len({run.batch_size for run in ended if math.isfinite(run.optimizer_steps)}) < FEWEST_SIZES:
        return None
    columns = zip(*((r.batch_size, r.optimizer_steps, r.observations, r.learning_rate) for r in ended), strict=True)
    sizes, steps, observations, rates = columns
    points = check_runs(sizes, steps, observations, None)
    best = Response(points, np.array(rates)).best(quickly=True)
    return Known(best, allowed_rise(points, STOPPED_CONFIDENCE))


def next_run(
    runs: Sequence[RunSoFar],
    *,
    pilot_size: int,
    pilot_rate: float,
    noise_scale: float | None,
    sizes: Sequence[int],
    most_observations: float,
    ratio: float,
) -> Candidate | None:
    """The run to make next; None once the interval is sharp enough, or where no run that can be afforded would make it so.

    Sizes at which a run is expected to spend its budget before the goal are left out, but never all but two.

    Args:
        runs: those made so far, in the order in which they were decided on.
        pilot_size: batch size of the pilot.
        pilot_rate: its first learning rate.
        noise_scale: of the pilot; None where it is not resolved, and the pilot's own size stands in for it.
        sizes: every batch size that may be run, ascending.
        most_observations: the budget of a run.
        ratio: of the upper to the lower end of B_crit's interval, at which the sweep is sharp enough.
    """
    if len(runs) < PILOT_RUNS:
        ended = [run for run in runs if not run.pending]
        reached = [run.optimizer_steps for run in ended if math.isfinite(run.optimizer_steps)]
        rate = rounded(pilot_rate * 2 ** (PILOT_OFFSETS[len(runs)] / 2))
        return Candidate("pilot", pilot_size, rate, PATIENCE["pilot"] * min(reached, default=math.inf))
    ended = [run for run in runs if not run.pending]
    known = fit_known(ended)
    tried = [run.batch_size for run in runs]
    every, sizes = sizes, _affordable(known, ended, sizes, most_observations)
    # B_crit as far as known, within what the tried sizes can tell. A noise scale far below the pilot's size is not trusted with
    # runs of tens of thousands of steps: sharpening gets there where it is worth them.
    centre = max(noise_scale or pilot_size, pilot_size / 2)
    if known:
        centre = min(max(known.b_crit, min(tried) / 2), max(tried) * 2)
    if known is None and len(sizes) < FEWEST_SIZES:  # without three there is no surface, whatever they are expected to take
        sizes = every[:FEWEST_SIZES]
    span = [nearest_size(sizes, centre * factor) for factor in SPAN]
    if known is None and len({pilot_size, *span}) < FEWEST_SIZES:
        span = [nearest_size(sizes, max(span) * 4.0**-k) for k in reversed(range(FEWEST_SIZES))]
        if len({pilot_size, *span}) < FEWEST_SIZES:
            span = list(sizes[:FEWEST_SIZES])
    counts = {size: sum(run.batch_size == size for run in runs) for size in span}
    if known is None and min(counts.values()) >= BLIND_RUNS:
        return None
    missing = [size for size in dict.fromkeys(span) if counts[size] < (FEWEST_RUNS if known else 1)]
    if known is None or missing:
        size = min(missing or span, key=lambda size: (counts[size], size))
        rate = _rate_for(known, runs, size)
        if known and counts[size] % 2:  # an octave off tells where the best rate is; too high a rate fails, so not always above
            rate *= 2.0 if span.index(size) % 2 else 0.5
        return Candidate("span", size, rounded(rate), PATIENCE["span"] * _expected(known, ended, size))
    if _is_sharp(known, ended, ratio, len(counts)) or _stays_open(known, ended, sizes[-1]):
        return None
    low, high = centre * SPAN[0] / 1.5, centre * SPAN[-1] * 1.5
    wide = [size for size in sizes if low <= size <= high] or span
    size, rate = _sharpest(known, runs, wide, ratio)
    return Candidate("sharpen", size, rounded(rate), PATIENCE["sharpen"] * _expected(known, ended, size))


def noise_run(known: Known | None, pilot: Sequence[RunSoFar], size: int) -> Candidate:
    """A noise run at that size.

    Args:
        known: the surface; None where nothing but the pilot is known.
        pilot: its runs, all of which have ended; looked at where there is no surface.
        size: batch size of the noise run.
    """
    return Candidate("noise", size, rounded(_rate_for(known, pilot, size)), PATIENCE["noise"] * _expected(known, pilot, size))


def nearest_size(sizes: Sequence[int], wanted: float) -> int:
    """The size nearest in logarithm; the smaller one of two."""
    return min(sizes, key=lambda size: (abs(math.log(size / wanted)), size))


def _rate_for(known: Known | None, runs: Sequence[RunSoFar], size: int) -> float:
    """The cheapest learning rate of a size: from the surface, or else the pilot's by the root rule."""
    if known is not None:
        return known.cheapest_rate(size)
    return _cheapest_rate(runs) * math.sqrt(size / runs[0].batch_size)


def _cheapest_rate(runs: Sequence[RunSoFar]) -> float:
    """The pilot's rate that has cost the fewest steps for each run that reached the goal, the first runs of the span counted.

    A run of another size belongs to the pilot's rate that it was scaled from, and costs its steps in those of the pilot's fastest
    run at that size, as long as nothing is known of B_crit. The fastest run alone is often at the brink, beyond which most fail.
    """
    pilot, ended = runs[:PILOT_RUNS], [run for run in runs if not run.pending]
    fastest = min((run.optimizer_steps for run in pilot if math.isfinite(run.optimizer_steps)), default=None)
    if fastest is None:
        return pilot[0].learning_rate
    costs: dict[float, float] = {}
    for rate in (run.learning_rate for run in pilot):
        spent, reached = 0.0, 0
        for run in ended:
            smaller = pilot[0].batch_size / run.batch_size
            if abs(math.log(run.learning_rate / rate) + 0.5 * math.log(smaller)) < math.log(2):
                arrived = math.isfinite(run.optimizer_steps)
                spent += run.optimizer_steps / fastest / max(smaller, 1.0) if arrived else PATIENCE["pilot"]
                reached += arrived
        if reached:
            costs[rate] = spent / reached
    return min(costs, key=lambda rate: costs[rate])


def _expected(known: Known | None, ended: Sequence[RunSoFar], size: int) -> float:
    """Optimizer steps that a run at the best rate of a size is expected to take."""
    if known is not None:
        return known.steps(size)
    reached = [run for run in ended if math.isfinite(run.optimizer_steps)]
    if not reached:
        return math.inf
    best = min(reached, key=lambda run: run.optimizer_steps * run.batch_size)
    # Nothing is known of B_crit: allow for either branch.
    return best.optimizer_steps * max(1.0, best.batch_size / size)


def _affordable(known: Known | None, ended: Sequence[RunSoFar], sizes: Sequence[int], most_observations: float) -> list[int]:
    """Sizes at which a run is expected to reach the goal within its budget, ascending.

    The observations to a goal fall with the batch size. So where this would leave out all sizes at which a run reached it, these
    runs speak for all smaller sizes.
    """
    reached = [run.batch_size for run in ended if math.isfinite(run.optimizer_steps)] or sizes[-1:]
    found = [size for size in sizes if SCATTER_ROOM * size * _expected(known, ended, size) <= most_observations]
    return found if max(found, default=0) >= min(reached) else [size for size in sizes if size <= max(reached)]


def _sharpest(known: Known, runs: Sequence[RunSoFar], sizes: Sequence[int], ratio: float) -> tuple[int, float]:
    """The size and rate with the largest fall of var(ln B_crit) and, as long as that is wanted, of var(ln α) per observation.

    Each is counted in the variance that is small enough.
    """
    theta, made = known.theta, _logs(runs)
    grid = np.array([(size, known.best_rate(size) * 2 ** (k / 2)) for size in sizes for k in OFFSETS])
    log_grid = np.log(grid)
    lower = np.linalg.cholesky(np.linalg.inv(_information(theta, made, known, _KNOWN)))
    wanted = [(_KNOWN, _C, (math.log(ratio) / 4) ** 2)]
    if _shape_is_wanted(len(runs), ratio):
        wanted.append((_BENT, _ALPHA, (EXPONENT_ERROR * math.log(ratio)) ** 2))
    gain = np.zeros(len(grid))
    for draw in np.random.default_rng(0).standard_normal((DRAWS, len(_KNOWN))):
        moved = theta.copy()
        moved[_KNOWN] += lower @ np.clip(draw, -2.0, 2.0)
        slopes, weight, cost = _slopes(moved, log_grid, known)
        for indices, place, enough in wanted:
            inverse = np.linalg.inv(_information(moved, made, known, indices))
            mine = slopes[:, : len(indices)]
            along = mine @ inverse
            spread = np.einsum("ij,ij->i", along, mine)
            fall = along[:, place] ** 2 * weight / (1 + weight * spread)
            gain += fall / enough / cost
    best = int(gain.argmax())
    return int(grid[best, 0]), float(grid[best, 1])


def _shape_is_wanted(runs: int, ratio: float) -> bool:
    """Whether a sweep of so many runs is still to tell the free exponent."""
    return runs < SHAPE_RUNS * (math.log(2) / math.log(ratio)) ** 2


def _is_sharp(known: Known, ended: Sequence[RunSoFar], ratio: float, spanned: int) -> bool:
    """Whether B_crit's interval is sharp enough, and the exponent known well enough, from as many sizes as are to be spanned."""
    if len({run.batch_size for run in ended if math.isfinite(run.optimizer_steps)}) < spanned:
        return False
    made = _logs(ended)
    variance = float(np.linalg.inv(_information(known.theta, made, known, _KNOWN))[_C, _C])
    of_exponent = float(np.linalg.inv(_information(known.theta, made, known, _BENT))[_ALPHA, _ALPHA])
    if _shape_is_wanted(len(ended), ratio) and of_exponent > (EXPONENT_ERROR * math.log(ratio)) ** 2:
        return False
    if 2 * math.sqrt(known.rise * variance) > math.log(ratio):
        return False  # the profile takes a while, and is wider still
    if far_rates(known.best):
        return False  # nothing will be said of B_crit
    low, high = known.interval()
    return high - low <= math.log(ratio)


def _stays_open(known: Known, ended: Sequence[RunSoFar], largest: int) -> bool:
    """Whether B_crit lies beyond the largest size that runs can afford, so that no number of them shows where the frontier bends.

    Of the published sweeps none had an open upper end after so many runs.
    """
    if len(ended) < OPEN_RUNS or known.b_crit < largest:  # the interval takes a while
        return False
    low, high = known.interval()
    return high == math.inf and math.exp(low) > largest / 2


def _logs(runs: Sequence[RunSoFar]) -> np.ndarray:
    return np.log([[run.batch_size, run.learning_rate] for run in runs])


def _slopes(
    theta: np.ndarray, made: np.ndarray, known: Known, patience: float = PATIENCE["sharpen"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For runs at (ln B, ln rate): slopes of the expected ln S in the parameters `_BENT`, information, and expected cost."""
    x, middle = made[:, 0], known.middle
    u = made[:, 1] - theta[response.P] - theta[response.Q] * (x - middle)
    side = np.where(u > 0, 1.0, -1.0)
    k = np.exp(theta[response.CURVATURE] + side * theta[response.ASYMMETRY])
    lift = k * u * u
    to_rate = -2 * k * u
    bend_at = theta[response.C] - x
    bend = 1 / (1 + np.exp(-bend_at))
    slopes = np.column_stack([np.ones(len(x)), bend, to_rate, to_rate * (x - middle), lift, side * lift, bend * bend_at])
    stuck = response.stuck_share(theta, u, np.minimum(known.best.runs.nearness_to_ends(x), 2.0))
    sigma = math.exp(theta[response.SIGMA])
    steps = np.exp(theta[response.A] + np.logaddexp(0.0, bend_at))
    cost = (np.exp(x) + STEP_COST) * steps * ((1 - stuck) * np.exp(np.minimum(lift, math.log(patience))) + stuck * patience)
    # A t₄ distribution of scale σ has the information 5/(7σ²) on its place; a run given up has hardly any.
    return slopes, 5 / 7 * (1 - stuck) * (lift < math.log(patience)) / sigma**2, cost


def _information(theta: np.ndarray, made: np.ndarray, known: Known, indices: Sequence[int]) -> np.ndarray:
    """Expected information of runs on those parameters, the weak priors added."""
    slopes, weight, _ = _slopes(theta, made, known)
    mine = slopes[:, : len(indices)]
    return (mine * weight[:, None]).T @ mine + np.diag([1 / response.prior_deviation(index) ** 2 for index in indices])
