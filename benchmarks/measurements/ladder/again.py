"""Run a rung again, with other seeds and from this checkout: does somebody else find the same?

    python -m rlscale.benchmarks.measurements.ladder again RUNG [...]

The command is the rung's own but for its seed. The sweep is in runs/ladder-again, its compact record in results/ladder-again;
Ctrl-C stops, and the same command goes on. The two B_crit are compared by their ratio, whose interval joins both (`ratio`).
"""

from dataclasses import dataclass
from pathlib import Path

from rlscale.analysis import compare
from rlscale.analysis.predictions import ratio
from rlscale.estimate import Estimate
from rlscale.records import read_sweep
from rlscale.records.files import dump_json, write_atomically

from .rungs import Rung
from .storage import RECORD, folder_in, run_sweep

__all__ = ["AGAIN", "Repetition", "repetitions", "run_again"]

SWEEPS, AGAIN = Path("runs/ladder-again"), Path("results/ladder-again")
SEED = 100_000  # of the first run; no rung has made so many


@dataclass(frozen=True)
class Repetition:
    """A rung and its repetition, both at the last goal that the rung reached.

    Attributes:
        name: of the rung.
        goal: mean return.
        first: B_crit as it is published.
        second: that of the repetition.
    """

    name: str
    goal: float
    first: Estimate
    second: Estimate

    @property
    def ratio(self) -> Estimate:
        """The second over the first."""
        return ratio(self.second, self.first)

    @property
    def agrees(self) -> bool | None:
        """Whether they differ by less than their combined 95% error; None where either is unknown."""
        if self.ratio.interval is None:
            return None
        low, high = self.ratio.interval
        return low <= 1 <= high


def run_again(rung: Rung) -> int:
    """Run a rung's sweep to its end, or until it is stopped; its exit code."""
    home = SWEEPS / rung.name
    words = [*rung.command("sweeps"), "--seed", str(SEED)]
    print(f"== {rung.name}: rlscale {' '.join(words)}", flush=True)
    exit_code = run_sweep(words, home, AGAIN / rung.name, Path.cwd())
    if folder_in(home):
        state = "begun" if exit_code else "finished"
        write_atomically(AGAIN / rung.name / RECORD, (dump_json({"state": state}, indent=1) + "\n").encode())
    return exit_code


def repetitions(records: Path, again: Path) -> list[Repetition]:
    """Every rung that was repeated to its end, from the folders of both kinds of record."""
    found = []
    for path in sorted(again.glob("*/sweep.json")):
        repeated, first = read_sweep(path.parent), read_sweep(records / path.parent.name)
        reached = [row for row in compare([first], []).rows if row.measured.value is not None]
        if repeated.ladder.get("state") == "finished" and reached:
            goal = reached[-1].goal
            assert goal is not None
            second = next(row for row in compare([repeated], []).rows if row.goal == goal)
            found.append(Repetition(path.parent.name, goal, reached[-1].measured, second.measured))
    return found
