"""How well sweeps foretell how much longer they take: the rule of `hours_more`, put to the ladder's finished sweeps.

    python -m rlscale.benchmarks.measurements.ladder forecasts

At some moments of each sweep, from its eighteenth run on, the interval through the runs so far is fitted as the sweep itself did.
What the rule foretells up to the width that the sweep ended with is compared with the hours that its runs then took, noise runs
apart. Two minutes; the record is results/sweep-forecasts.json.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlscale.records import SweepRecord, read_sweep

from ...sweep.design import fit_known
from ...sweep.plan import WIDE, hours_more, run_so_far
from ..measuring import print_table, write_result

__all__ = ["Moment", "foretell", "moments_of", "within"]

OUT = Path("results/sweep-forecasts.json")
RUNS = (18, 22, 27, 33, 40, 50, 60, 75, 90, 110, 135, 165, 200, 250, 300)


@dataclass(frozen=True)
class Moment:
    """A sweep after so many runs.

    Attributes:
        rung: of the ladder.
        runs: that had ended.
        factor: of the upper to the lower end of B_crit's interval then.
        foretold: hours still to come, by the rule.
        took: hours that the runs then took.
    """

    rung: str
    runs: int
    factor: float
    foretold: float
    took: float


def foretell(records: Path) -> int:
    """Write the record of all finished sweeps, and say how far the forecasts were off."""
    moments: list[Moment] = []
    for folder in sorted(folder for folder in records.iterdir() if folder.is_dir()):
        record = read_sweep(folder)
        if (record.ladder or {}).get("state") == "finished":
            moments += moments_of(record)
    write_result(OUT, [asdict(moment) for moment in moments])
    rungs, ratios = len({moment.rung for moment in moments}), [moment.took / moment.foretold for moment in moments]
    cells = [f"{within(moments, 2):.0%}", f"{within(moments, 3):.0%}", f"{statistics.median(ratios):.2f}"]
    columns = ["sweeps", "moments", "to a factor of two", "of three", "took / foretold, median"]
    print_table("Hours still to come", columns, [[str(rungs), str(len(moments)), *cells]])
    return 0


def moments_of(record: SweepRecord) -> list[Moment]:
    """Of one sweep; none where it has no interval in the end."""
    made = [result for name, result in sorted(record.results.items()) if name.startswith("run-")]
    most = max((len(result.reached) for result in made if result.stage == "pilot"), default=0)
    if not most:
        return []
    goal = record.plan["goals"][most - 1]
    runs = [run_so_far(result, result, goal) for result in made]

    def factor(count: int) -> float:
        known = fit_known([run for run in runs[:count] if not run.pending])
        low, high = (-math.inf, math.inf) if known is None else known.interval()
        return math.exp(min(high - low, 700.0))

    def hours(first: int, last: int) -> float:
        return sum(result.hours(record.plan["jobs"]) for result in made[first:last])

    end, found = factor(len(made)), []
    for count in (count for count in RUNS if count < len(made)):
        now = factor(count)
        if end < now <= WIDE:  # else nothing is foretold
            foretold = hours_more(hours(0, count), now, end)
            found.append(Moment(record.folder.name, count, now, foretold, hours(count, len(made))))
    return found


def within(moments: Sequence[Moment], factor: float) -> float:
    """The share of forecasts that are right to a factor."""
    return statistics.fmean(abs(math.log(moment.took / moment.foretold)) <= math.log(factor) for moment in moments)
