"""What changed between two results of `rlscale bench`, and whether it is more than the rounds themselves scatter."""

import json
import math
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from scipy.stats import ttest_ind

from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.records.files import fault_of
from rlscale.text import format_quantity

from ..console import make_table, say

__all__ = ["compare_files", "rate_ratio"]


def compare_files(before: Path, after: Path, console: Console) -> int:
    """Print the ratios; the exit code of the command.

    Raises:
        UsageError: a file that is no result, or results of two versions of the suite.
    """
    one, other = _read(before), _read(after)
    if (one["suite"], one["version"]) != (other["suite"], other["version"]):
        raise UsageError(
            "--compare",
            f"{before} is of {one['suite']} {one['version']}, {after} of {other['suite']} {other['version']}",
            "Measure both with the same version",
        )
    names = [name for name in one["rounds"][0] if name in other["rounds"][0]]
    table = make_table(f"{after} against {before}: ratio with its 95% interval", [""], ["before", "after", "ratio"])
    table.add_column("")
    for name in names:
        values = [[row[name] for row in record["rounds"]] for record in (one, other)]
        ratio = rate_ratio(values[0], values[1])
        middles = [format_quantity(statistics.median(v)) for v in values]
        table.add_row(name, *middles, str(ratio), _verdict(ratio))
    console.print(table)
    for path, record in ((before, one), (after, other)):
        machines = ", ".join(f"{n['count']} × {n['cpus']} CPUs, {n['gpus']} GPUs" for n in record["nodes"])
        facts = f"{len(record['rounds'])} rounds, commit {str(record['commit'])[:12]}, {record['precision']}"
        say(console, f"{path}: {machines}; {facts}")
    cpus = [record.get("cpus") for record in (one, other)]
    if None not in cpus and cpus[0] != cpus[1]:
        told = f"actors had {cpus[0]} and {cpus[1]} CPUs: rates of whole fleets, as end to end, are of two different ones"
        say(console, told)
    left_out = [name for record in (one, other) for name in record["rounds"][0] if name not in names]
    if left_out:
        say(console, f"only in one of them: {', '.join(left_out)}")
    return 0


def rate_ratio(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Ratio of geometric means of rates, with Welch's interval of the difference of their logarithms; None with one round."""
    logs = [[math.log(value) for value in values] for values in (before, after)]
    difference = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    if min(map(len, logs)) < 2:
        return Estimate(math.exp(difference), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # SciPy warns of rounds that are all alike
        low, high = ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(confidence)
    return Estimate(math.exp(difference), (math.exp(low), math.exp(high)))


def _verdict(ratio: Estimate) -> str:
    if ratio.interval is None:
        return "one round says nothing of the noise"
    if ratio.interval[0] <= 1 <= ratio.interval[1]:
        return "within the noise"
    return "faster" if ratio.interval[0] > 1 else "slower"


def _read(path: Path) -> dict[str, Any]:
    mend = "Name files that rlscale bench wrote"
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        rates = [value for row in record["rounds"] for value in row.values()]
        known = (
            bool(rates)
            and min(rates) > 0
            and all(row.keys() == record["rounds"][0].keys() for row in record["rounds"])
            and fault_of(record, {"nodes": [{"count": int, "cpus": (int, float), "gpus": (int, float)}]}) is None
            and all(name in record for name in ("suite", "version", "nodes", "commit", "precision"))
        )
    except OSError as error:
        raise UsageError("--compare", f"cannot read {path}: {error.strerror}", mend) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        known = False
    if not known:
        raise UsageError("--compare", f"{path} is no result of rlscale bench, or no whole one", mend)
    return record
