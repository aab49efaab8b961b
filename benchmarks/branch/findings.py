"""What branches show: the fit of a record, its sentences, tables and page. It measures nothing."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from rlscale.agents.learning.optimizer import POLICY_PART
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.frontier import LocalFrontier, fit_branches
from rlscale.report.branch_page import BranchPage
from rlscale.report.words import head_name
from rlscale.text import format_quantity, format_return

from .options import LEAST_BRANCHES, LEAST_SIZES

__all__ = ["as_json", "find_page", "fit", "noise_beside", "say", "tables"]

MOST_AT_BEST = 0.1  # of the branches, that may end in the best return there is
_METRICS = {"plain": "plain", "adam": "Adam's", "hessian": "Hessian"}
Cells = tuple[str, Sequence[str], Sequence[Sequence[str]]]


def fit(record: dict[str, Any]) -> LocalFrontier:
    """The local frontier of a record; branches whose parameters became infinite are left out.

    Raises:
        UsageError: so many of them are that too few are left.
    """
    rows = _ended(record)
    sizes = len({row["batch_size"] for row in rows})
    if sizes < LEAST_SIZES or len(rows) < LEAST_BRANCHES:
        lost = len(record["branches"]) - len(rows)
        problem = f"{lost} of {len(record['branches'])} branches diverged, and {len(rows)} of {sizes} batch sizes"
        raise UsageError(
            "--seeds",
            f"{problem} are too few for a fit, which needs {LEAST_BRANCHES} of {LEAST_SIZES}",
            "Use more, or a smaller --rate-exponent for lower rates at large batch sizes, with another --out",
        )
    valid = _valid_sizes(rows)
    frontier = fit_branches(
        [valid[row["batch_size"]] for row in rows],
        [row["learning_rate"] for row in rows],
        [row["final_return"] - record["start"]["return"] for row in rows],
        [row["observations"] for row in rows],
        gain_error=[row["return_error"] for row in rows],
        start_error=record["start"]["error"],
    )
    # Where the best return there is has been reached, more progress does not show, and no curve of gains is right.
    best = max(row["final_return"] for row in rows)
    at_best = sum(row["final_return"] == best and row["return_error"] == 0 for row in rows)
    if at_best > MOST_AT_BEST * len(rows):
        why = (
            f"{at_best} of {len(rows)} branches end with the same return of {best:g} in every episode, perhaps the best there is"
        )
        mend = "use fewer --observations, with another --out, or an earlier checkpoint"
        return replace(frontier, b_local=Estimate(None, (0.0, math.inf), f"{why}: {mend}"))
    return frontier


def as_json(frontier: LocalFrontier) -> dict[str, Any]:
    """As the record keeps it."""
    b = frontier.b_local
    return {**asdict(replace(frontier, b_local=Estimate(None, None, ""))), "b_local": [b.value, *(b.interval or (None, None))]}


def say(record: dict[str, Any], frontier: LocalFrontier) -> list[str]:
    """What the branches show, answer first."""
    plan, start = record["plan"], record["start"]
    where = f"{record['task']} at a return of {format_return(start['return'], 3)}, after {record['observations']:,} observations"
    b = frontier.b_local
    if b.value is None:
        first = f"{where}: the local critical batch size is {b.say()} (95%): {b.reason}."
    else:
        within, learned = frontier.largest_within(0.2), fmean(_learned(record))
        first = (
            f"{where}: at {b.say()} observations an iteration (95%) the next {learned:,.0f} are half as well spent as in "
            f"small batches, and up to {within.say()} at least 80% as well."
        )
    lines = [first]
    rates = {size: (min(r), max(r)) for size, r in zip(plan["sizes"], plan["rates"], strict=True)}
    tried = [rates[size] for size in _valid_sizes(_ended(record))]
    edges = [
        f"{size:,.0f}"
        for size, best, (least, most) in zip(frontier.sizes, frontier.best_rates, tried, strict=True)
        if not least / 1.2 <= best <= most * 1.2
    ]
    if edges:
        lines.append(
            f"The best rate lies outside the tried ones at {', '.join(edges)}: "
            "use more --rates, or another --rate-exponent, with another --out."
        )
    if lost := len(record["branches"]) - len(_ended(record)):
        lines.append(f"Branches that diverged and are left out: {lost}.")
    spent = sum(row["observations"] for row in record["branches"]) + (record["noise"] or {}).get("observations", 0)
    what = f"{len(record['branches'])} branches" + " and the noise" * bool(record["noise"])
    lines.append(f"{what} took {spent:,} observations, beside evaluations and the steps that environments played on before.")
    return lines


def tables(record: dict[str, Any], frontier: LocalFrontier) -> list[Cells]:
    """Title, columns and rows of the gains by batch size, and of the noise scales at the checkpoint."""
    gains = []
    columns = frontier.sizes, frontier.best_rates, frontier.gains, _learned(record)
    for size, rate, (gain, error), learned in zip(*columns, strict=True):
        share = f"{gain / (frontier.progress * learned):.0%}" if math.isfinite(frontier.progress) else "–"
        # Of one branch near the best rate no scatter is known.
        scatter = f" ± {format_return(error, 2)}" if math.isfinite(error) else ""
        known = (f"{format_return(gain, 3)}{scatter}", share) if math.isfinite(gain) else ("rates too far off", "")
        gains.append([f"{size:,.0f}", f"{rate:.3g}", *known])
    title = f"Return gained, from {format_return(record['start']['return'], 3)}"
    found: list[Cells] = [(title, ["batch size", "best rate", "gain at it (± standard error)", "of small batches'"], gains)]
    if record["noise"]:
        scales = []
        for s in record["noise"]["scales"]:
            low, high = _interval(s)
            value = "not resolved" if s["value"] is None else format_quantity(s["value"])
            scales.append(
                [head_name(s["head"]), _METRICS[s["metric"]], f"{value} [{format_quantity(low)}, {format_quantity(high)}]"]
            )
        found.append(("Gradient noise at the checkpoint", ["loss", "metric", "noise scale"], scales))
    return found


def noise_beside(record: dict[str, Any]) -> Estimate | None:
    """The noise scale that is drawn beside B_local: of the joint loss on the policy's parameters, in Adam's metric."""
    for s in (record["noise"] or {"scales": []})["scales"]:
        if (s["head"], s["metric"]) == (POLICY_PART, "adam"):
            return Estimate(s["value"], _interval(s), "not resolved" if s["value"] is None else None)
    return None


def find_page(record: dict[str, Any], frontier: LocalFrontier) -> BranchPage:
    """What the page of a record shows."""
    again = shlex.join(record["command"])
    machine = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in record["machine"].items() if value is not None)
    sources = {"commit": str(record["commit"] or "unknown"), "machine": machine}
    return BranchPage(
        record["task"],
        say(record, frontier),
        frontier,
        _learned(record),
        noise_beside(record),
        tables(record, frontier),
        again,
        sources,
    )


def _ended(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The branches that did not diverge."""
    return [row for row in record["branches"] if row["final_return"] is not None]


def _learned(record: dict[str, Any]) -> tuple[float, ...]:
    """Observations that the fitted branches of each size learned from, on average; whole batches make them unequal."""
    rows = _ended(record)
    return tuple(fmean(row["observations"] for row in rows if row["batch_size"] == size) for size in _valid_sizes(rows))


def _valid_sizes(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Observations of an iteration by the steps that it is named after, which count those that only reset an environment.

    B_local then counts what the noise scale beside it counts.
    """
    sizes = sorted({row["batch_size"] for row in rows})
    return {size: fmean(row["observations"] / row["steps"] for row in rows if row["batch_size"] == size) for size in sizes}


def _interval(scale: dict[str, Any]) -> tuple[float, float]:
    low, high = (math.inf if end is None else end for end in scale["interval"])
    return low, high
