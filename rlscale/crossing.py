"""When a goal is reached: from evaluations of frozen policies to an optimizer step with its uncertainty.

The mean return r(S) of the policy after S optimizer steps is smoothed over ln S, and the goal is reached where the smoothed
curve first crosses it and holds it. It holds where the curve stays at or above the goal, less two standard errors, over the next
30% of the steps. Nothing crosses below ten optimizer steps, where single transient policies pass any goal, or below three
iterations, where S counts iterations of many optimizer steps (`earliest_step`). The grid and the
smoothing are the same at every batch size, so that the answer does not depend on how many environments trained or how long their
episodes are. docs/frontier.md gives the reasons, and compares this with evaluating every step. `GoalSearch` decides which
policies to evaluate; nothing here acts in an environment.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .estimate import Estimate

__all__ = [
    "BANDWIDTH",
    "Crossing",
    "Evaluated",
    "GoalSearch",
    "choose_goal",
    "earliest_step",
    "find_crossing",
    "is_on_grid",
    "smooth",
]

GROWTH = 1.06  # factor between the optimizer steps whose policies are kept
COARSE = 1.19  # factor between those of them that are always evaluated: three or four grid steps
BANDWIDTH = 0.12  # of the kernel in ln S, two grid steps: some six evaluations share a point's noise
BEFORE = 0.48  # in ln S: all policies this far before one that reaches a goal are evaluated; a coarse step and the kernel
LEAST = 10  # optimizer steps, below which no goal is reached
LEAST_ITERATIONS = 3  # steps S of many optimizer steps, below which no goal is reached: fewer are no curve
HOLD = 1.3  # factor in optimizer steps over which the goal must hold
HOLD_ERRORS = 2.0  # standard errors of the curve by which it may be below the goal meanwhile
DRAWS = 400  # of all evaluations, for the interval of a crossing
LEVELS = 24  # returns that are tried as a goal, between a run's lowest and its highest
WORTH = 50  # optimizer steps to a goal, below which a sweep does not count it


@dataclass(frozen=True)
class Evaluated:
    """The evaluation of one frozen policy.

    Attributes:
        optimizer_steps: S, the optimizer steps after which the policy was frozen; at least 1.
        return_mean: mean raw return over whole episodes.
        return_error: standard error of that mean.
        episodes: number of episodes.
        training: whether these are the run's own episodes of about that step, which cost nothing, and not a frozen policy's.
    """

    optimizer_steps: int
    return_mean: float
    return_error: float
    episodes: int
    training: bool = False


@dataclass(frozen=True)
class Crossing:
    """Where a goal was reached.

    Attributes:
        goal: the return to reach.
        optimizer_steps: S at which the smoothed curve crosses the goal to hold it; not resolved where it does not.
        evaluations: number of evaluations that the curve was smoothed from.
    """

    goal: float
    optimizer_steps: Estimate
    evaluations: int


def is_on_grid(optimizer_steps: int) -> bool:
    """Whether S is the nearest whole number to a power of 1.06: every S while small, then every 6%."""
    if optimizer_steps < 1:
        return False
    exponent = round(math.log(optimizer_steps) / math.log(GROWTH))
    return any(round(GROWTH**k) == optimizer_steps for k in (exponent - 1, exponent, exponent + 1))


def smooth(points: Sequence[Evaluated], log_steps: np.ndarray, bandwidth: float = BANDWIDTH) -> np.ndarray:
    """Mean return at `log_steps` by local linear regression on ln S, (M,).

    The weights are a Gaussian kernel of that bandwidth times the episodes of each evaluation. Where the points lie further apart
    than the bandwidth, as among the first few steps, the kernel widens to reach two of them.

    Args:
        points: at least one, at distinct S.
        log_steps: (M,) values of ln S at which to give the curve.
        bandwidth: of the kernel, in ln S.
    """
    x, y, episodes = _columns(points)
    return (y[None] @ _coefficients(x, episodes, np.asarray(log_steps, dtype=np.float64), bandwidth).T)[0]


def _columns(points: Sequence[Evaluated]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ordered = sorted(points, key=lambda p: p.optimizer_steps)
    x = np.log([p.optimizer_steps for p in ordered])
    return x, np.array([p.return_mean for p in ordered]), np.array([p.episodes for p in ordered], dtype=np.float64)


def _coefficients(x: np.ndarray, episodes: np.ndarray, at: np.ndarray, bandwidth: float) -> np.ndarray:
    """(M, n): the weight of each of n evaluations in the curve at each of M values of ln S."""
    offset = x[None, :] - at[:, None]
    if len(x) == 1:
        return np.ones((len(at), 1))
    reach = np.sort(np.abs(offset), axis=1)[:, 1] / 2
    width = np.maximum(bandwidth, reach)[:, None]
    weight = np.exp(-0.5 * (offset / width) ** 2) * episodes
    s0, s1, s2 = (np.sum(weight * offset**k, axis=1, keepdims=True) for k in range(3))
    return weight * (s2 - s1 * offset) / (s0 * s2 - s1**2)


def earliest_step(inner_steps: int = 1) -> int:
    """The S from which on a goal may be reached, where one step S makes so many optimizer steps."""
    return max(LEAST_ITERATIONS, math.ceil(LEAST / inner_steps))


_ROUNDING = 1e-9  # the smoothing's weights add up to 1 but for rounding


class _Curve:
    """The smoothed return over a mesh of ln S that begins at the earliest step that counts."""

    def __init__(self, points: Sequence[Evaluated], bandwidth: float, earliest: int) -> None:
        ordered = sorted(points, key=lambda p: p.optimizer_steps)
        self.x, self.y, self.episodes = _columns(ordered)
        self.error = np.array([p.return_error for p in ordered])
        first, last = min(max(self.x[0], math.log(earliest)), self.x[-1]), self.x[-1]
        self.mesh = np.linspace(first, last, 2 + 20 * math.ceil((last - first) / bandwidth))
        self._weights = _coefficients(self.x, self.episodes, self.mesh, bandwidth)
        self.slack = HOLD_ERRORS * np.sqrt(self._weights**2 @ self.error**2)

    def crossings(self, returns: np.ndarray, goal: float) -> np.ndarray:
        """ln S at which each set of mean returns (D, n) reaches the goal to hold it, as far as the mesh goes; NaN for never.

        A curve that is above the goal where the mesh begins, and holds it, reaches it there.
        """
        curves = returns @ self._weights.T
        goal -= _ROUNDING * max(1.0, abs(goal))  # a curve through policies that all return exactly the goal
        above = curves >= goal
        kept = self._held(curves + self.slack >= goal)
        up = above & kept
        up[:, 1:] &= ~above[:, :-1]
        found, at, rows = up.any(axis=1), up.argmax(axis=1), np.arange(len(curves))
        before = np.maximum(at - 1, 0)
        left, right = curves[rows, before], curves[rows, at]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(right > left, (goal - left) / (right - left), 1.0)
        reached = self.mesh[before] + np.where(at > 0, share, 0.0) * (self.mesh[at] - self.mesh[before])
        return np.where(found, reached, math.nan)

    def _held(self, fine: np.ndarray) -> np.ndarray:
        """Whether all of `fine` (D, M) holds from each place of the mesh over the next 30% of the steps."""
        ends = np.searchsorted(self.mesh, self.mesh + math.log(HOLD), side="right")
        failures = np.concatenate([np.zeros((len(fine), 1), dtype=int), (~fine).cumsum(axis=1)], axis=1)
        return failures[:, ends] == failures[:, :-1]

    def reached(self, goal: float) -> float:
        """ln S at which the curve itself reaches the goal, with the 30% after it seen or still to come; NaN for never."""
        return float(self.crossings(self.y[None], goal)[0])

    def has_held(self, reached: float) -> bool:
        """Whether the 30% of the steps after that place have been seen."""
        return bool(reached + math.log(HOLD) <= self.mesh[-1] + 0.02)  # whole steps leave the last one a little short


def find_crossing(points: Sequence[Evaluated], goal: float, *, bandwidth: float = BANDWIDTH, earliest: int = LEAST) -> Crossing:
    """The S at which the smoothed return first reaches the goal and holds it, and its 95% interval.

    For the interval the mean of every evaluation is drawn anew many times, with its own standard error. Near the crossing that
    error is enlarged by the scatter of the policies themselves about the curve.

    Args:
        points: evaluations around the crossing, at distinct S.
        goal: the mean return to reach.
        bandwidth: of the smoothing, in ln S.
        earliest: `earliest_step` of the run.

    Returns:
        A `Crossing`. Where the goal holds from the first evaluation on, or from `earliest` on, that place is the value and the
        upper end: the policy may have reached it earlier, and no scatter of the evaluations is allowed for. Elsewhere the
        interval reaches down to zero where the goal may hold from there on, and has no upper end where it may not have been
        reached at all. Not resolved where the curve stays below the goal, does not hold it, or ends before that is seen.

    Raises:
        ValueError: no points, two at one S, one before the first step or with figures that are not finite, or a bandwidth or an
            earliest step that cannot be.
    """
    if not points:
        raise ValueError("points: at least one evaluation is needed")
    for p in points:
        counted = 1 <= p.optimizer_steps < math.inf and 1 <= p.episodes < math.inf
        if not (counted and math.isfinite(p.return_mean) and 0 <= p.return_error < math.inf):
            raise ValueError(f"points: {p} needs a step of 1 or more, an episode, a finite mean, and a finite error of 0 or more")
    if len({p.optimizer_steps for p in points}) < len(points):
        raise ValueError("points: two evaluations at one step; give the mean of both, with the episodes of both")
    if not (bandwidth > 0 and earliest >= 1):
        raise ValueError("bandwidth must be positive, and earliest 1 or more")
    curve = _Curve(points, bandwidth, earliest)
    crossed = curve.reached(goal)
    if math.isnan(crossed):
        passed = bool((curve.y >= goal).any())
        reason = "the goal was passed and did not hold over the next 30% of the steps" if passed else "the goal was not reached"
        return Crossing(goal, Estimate(None, None, reason), len(points))
    if not curve.has_held(crossed):
        reason = "the goal was passed, and the 30% of the steps over which it must hold were not seen to their end"
        return Crossing(goal, Estimate(None, None, reason), len(points))
    if crossed == curve.mesh[0]:
        return Crossing(goal, Estimate(math.exp(crossed), (0.0, math.exp(crossed))), len(points))
    # The variance of policies about the curve, beyond that of their standard errors; only of those near the crossing, because
    # others may scatter differently. Residuals are R y with R = 1 - smoother, so their expected squares are R² times variances.
    remainder = np.eye(len(curve.x)) - _coefficients(curve.x, curve.episodes, curve.x, bandwidth)
    near = np.abs(curve.x - crossed) < BEFORE
    surplus = ((remainder @ curve.y) ** 2 - remainder**2 @ curve.error**2)[near].sum()
    excess = max(0.0, float(surplus / np.maximum((remainder**2)[near].sum(), 1e-12)))
    generator = np.random.default_rng(20181214)
    redrawn = curve.y + np.sqrt(curve.error**2 + excess * near) * generator.standard_normal((DRAWS, len(curve.x)))
    draws = curve.crossings(redrawn, goal)
    # Where a draw never reaches the goal, or has it from the start, its crossing lies somewhere beyond what was seen.
    draws = np.where(np.isnan(draws), math.inf, np.where(draws == curve.mesh[0], -math.inf, draws))
    low, high = np.quantile(draws, [0.025, 0.975], method="inverted_cdf")
    low, high = min(low, crossed), max(high, crossed)
    return Crossing(goal, Estimate(math.exp(crossed), (math.exp(low), math.exp(high))), len(points))


def choose_goal(points: Sequence[Evaluated], *, earliest: int = LEAST, worth: int = WORTH) -> Crossing | None:
    """The goal that a run's policies tell best: the one whose crossing has the narrowest interval in ln S.

    A return on a plateau is passed by luck, so sweeps to it tell little of the batch size; one that is passed quickly tells most.

    Args:
        points: evaluations of policies kept on the way, at distinct S.
        earliest: `earliest_step` of the run.
        worth: S below which no goal is chosen.

    Returns:
        Its crossing; the goal has two digits. None where no return is passed late enough, held, and told with both ends.
    """
    if len(points) < 2:
        return None
    returns = [point.return_mean for point in points]
    levels = np.linspace(min(returns), max(returns), LEVELS + 2)[1:-1]
    told: list[tuple[float, Crossing]] = []
    for goal in sorted({float(f"{level:.2g}") for level in levels}):
        crossing = find_crossing(points, goal, earliest=earliest)
        low, high = crossing.optimizer_steps.interval or (0.0, math.inf)
        if (crossing.optimizer_steps.value or 0.0) >= worth and low > earliest and high < math.inf:
            told.append((high / low, crossing))
    return min(told, key=lambda entry: entry[0])[1] if told else None


class GoalSearch:
    """Decides, while a run goes on, which of its frozen policies to evaluate, until every goal's crossing is known.

    Policies are kept on a geometric grid of optimizer steps, and about every third of them is evaluated at once. The first few
    steps are left out: they are too far before the earliest crossing to count in the curve there. Around each one
    that reaches a goal, or might (within two standard errors), all kept policies are evaluated too. The crossing is that of the
    curve smoothed over all evaluations. It is final once the goal has held over the next 30% of the steps.

    Call `keep(S)` after every optimizer step S. If it returns True, keep the policy, evaluate the policies that `due` names,
    `take` each result, and call `due` again until it names none. Kept policies older than `oldest_needed` may be dropped. Where
    the training episodes since the step before on the grid say as much, `take` these, and `spare` the policy its evaluation.

    Args:
        goals: ascending mean returns.
        earliest: `earliest_step` of the run.
    """

    def __init__(self, goals: Sequence[float], earliest: int = LEAST) -> None:
        if not goals or sorted(set(goals)) != list(goals):
            raise ValueError("goals must be distinct and ascending, and there must be at least one")
        self.goals, self.earliest = tuple(goals), earliest
        self.crossings: dict[float, Crossing] = {}
        self.evaluated: dict[int, Evaluated] = {}
        self._kept: list[int] = []
        self._spared: set[int] = set()
        self._coarse: list[int] = []

    @property
    def finished(self) -> bool:
        """Whether every goal's crossing is known."""
        return len(self.crossings) == len(self.goals)

    @property
    def settled(self) -> float:
        """The S up to which later evaluations hardly change the smoothed curve.

        That is two bandwidths before the latest kept policy, and not after the latest evaluation.
        """
        return min(self._kept[-1] * math.exp(-2 * BANDWIDTH), max(self.evaluated)) if self.evaluated else 0.0

    def not_before(self, goal: float) -> float:
        """The most optimizer steps before which the goal is known not to have been reached."""
        reached = _Curve(list(self.evaluated.values()), BANDWIDTH, self.earliest).reached(goal) if self.evaluated else math.nan
        return self.settled if math.isnan(reached) else min(self.settled, math.exp(reached))

    @property
    def oldest_needed(self) -> int:
        """The fewest optimizer steps of a policy that `due` may still name."""
        return math.floor(self._coarse[-1] * math.exp(-BEFORE)) if self._coarse else 0

    def keep(self, optimizer_steps: int) -> bool:
        """Whether to keep the policy after so many optimizer steps; call this once for every step, in order."""
        if optimizer_steps < self.earliest * math.exp(-BEFORE) or not is_on_grid(optimizer_steps):
            return False
        self._kept.append(optimizer_steps)
        if not self._coarse or optimizer_steps >= self._coarse[-1] * COARSE:
            self._coarse.append(optimizer_steps)
        return True

    def spare(self, optimizer_steps: int) -> None:
        """Never evaluate the policy kept after so many steps; the next one that is not spared is evaluated in its place."""
        self._spared.add(optimizer_steps)
        if self._coarse and self._coarse[-1] == optimizer_steps:
            self._coarse.pop()

    def due(self) -> list[int]:
        """Kept policies to evaluate now, ascending; empty when the run may go on (or ends, if `finished`)."""
        wanted = set(self._coarse)
        pending = [goal for goal in self.goals if goal not in self.crossings]
        for s in self._coarse if pending else ():
            e = self.evaluated.get(s)
            if e is not None and s * HOLD >= self.earliest and e.return_mean >= pending[0] - 2 * e.return_error:
                wanted |= {kept for kept in self._kept if s * math.exp(-BEFORE) <= kept <= s * HOLD}
        wanted = {s for s in wanted if s >= self.oldest_needed} - self.evaluated.keys() - self._spared
        if wanted:
            return sorted(wanted)
        for goal in pending:
            evaluated = list(self.evaluated.values())
            if all(e.return_mean < goal for e in evaluated):
                break  # a smoothed curve cannot cross what no evaluation reaches
            curve = _Curve(evaluated, BANDWIDTH, self.earliest)
            reached = curve.reached(goal)
            if math.isnan(reached) or not curve.has_held(reached):
                break
            self.crossings[goal] = find_crossing(evaluated, goal, earliest=self.earliest)
            return self.due()  # the next goal has windows of its own
        return []

    def take(self, evaluated: Evaluated) -> None:
        """Record the evaluation of one policy."""
        self.evaluated[evaluated.optimizer_steps] = evaluated
