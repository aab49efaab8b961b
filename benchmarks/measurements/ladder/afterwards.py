"""What was seen afterwards: the paper's table beside the ladder's, and the hypotheses that later rungs test.

The preregistered verdict is not here but in `rlscale.analysis.verdict`, other readings of its rule are in `.readings`; the page
that all of it stands on is `.page`.
"""

import math
from collections.abc import Sequence

import numpy as np

from rlscale.analysis import Comparison
from rlscale.analysis.paper import PAPER, PaperTask, score_paper
from rlscale.analysis.predictions import ADVISED, PRIMARY
from rlscale.analysis.rungs import Rung
from rlscale.analysis.verdict import FAILURE, SECONDARY, SUCCESS, UNRESOLVED, TaskTable, score
from rlscale.text import format_quantity

from ..measuring import markdown_table

__all__ = [
    "agreement",
    "beside_the_paper",
    "error_of",
    "second_hypothesis",
    "third_hypothesis",
]

# `ADVISED` was written down as the second hypothesis on 24 November 2026, when these rungs had been seen:
BEFORE_SECOND = ("blackjack", "cliffwalking-2", "frozenlake", "frozenlake-8x8", "pendulum")
# The two that may be meant by the paper, which does not say of which loss its noise scale is.
JOINT, POLICY = ("joint", "cumulative"), ("policy", "cumulative")
# The third hypothesis, of 26 November 2026: B_crit is some 0.36 times `JOINT`, and nearer to that than to 756, the geometric mean
# of the tasks that had been scored. All tasks that had been seen:
THIRD = (0.36, 756.0)
BEFORE_THIRD = (
    *(f"toy/{name}" for name in ("2048", "blackjack", "cliffwalking", "connect-four", "frozenlake", "frozenlake8x8", "snake")),
    *("toy/umbrella", "classic/pendulum", "minatar/freeway", "minatar/seaquest"),
)
LEAST_SPAN = 1.0  # decades of B_crit, before anything is concluded about the third
FEWEST_LATER = 5  # tasks, likewise about both


def agreement(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """What may be the paper's noise scale says of the ladder, beside what the paper's says of its own tasks."""
    tasks = [rung for rung in rungs if rung.role == "task"]
    joint, policy = score(tasks, *JOINT), score(tasks, *POLICY)
    if joint is None or policy is None or None in (joint.offset.value, joint.left_out.value, policy.left_out.value):
        return "Nothing can be said yet."
    known = (joint.left_out, policy.left_out, joint.constant, score_paper().left_out, score_paper().constant)
    of_joint, of_policy, constant, of_paper, papers = (f"{10 ** (error.value or 0.0):.1f}" for error in known)
    return (
        f"The paper does not say of which loss its noise scale is. Take the noise scale in the plain metric, averaged over "
        f"full-batch steps, and its factor to B_crit from the other tasks. Then the joint loss predicts a task's B_crit to a "
        f"factor of {of_joint} (B_crit is {joint.offset.map(lambda decades: 10**decades).say()} times this noise scale), "
        f"and the policy's loss to {of_policy}, with {policy.unresolved} of {policy.tasks} not resolved. The mean B_crit of the "
        f"other tasks, without any noise scale, predicts it to {constant}. On the paper's own table its noise scale predicts to "
        f"{of_paper} and the mean of the other tasks to {papers}, because its tasks differ more. With {joint.tasks} tasks chance "
        f"alone could make such differences, and the joint loss's result was seen afterwards, as one of {len(SECONDARY)} noise "
        f"scales. So it is "
        f"[a hypothesis](#the-third-hypothesis) for later rungs."
    )


def beside_the_paper(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The rule's errors on the paper's table and on the ladder, then task by task how far B_crit and noise scale are apart."""
    tasks = [rung for rung in rungs if rung.role == "task"]
    scores = {
        "the paper's table": score_paper(),
        "… without its two autoencoders": score_paper(autoencoders=False),
        "the ladder, joint loss": score(tasks, *JOINT),
        "the ladder, policy loss": score(tasks, *POLICY),
        "the ladder, the preregistered noise scale": score(tasks, *PRIMARY),
    }
    errors = [
        [name, str(one.tasks), *(error.say("–") for error in (one.offset, one.rms, one.left_out, one.constant))]
        for name, one in scores.items()
        if one is not None
    ]
    rows = [[f"{task.name} (paper)", *_of_paper(task)] for task in PAPER]
    shown = [rung for rung in rungs if rung.left_out is None and not rung.row.is_altered and rung.row.inner_steps == 1]
    rows += [_of_ladder(comparison, rung) for rung in shown]
    return "\n\n".join(
        [
            markdown_table(["", "tasks", "offset", "RMS about it", "a task left out", "by the mean of the others"], errors),
            markdown_table(["task", "B_crit, early", "B_crit, late", "noise scale, average", "late / noise scale"], rows),
        ]
    )


def _of_ladder(comparison: Comparison, rung: Rung) -> list[str]:
    """A rung: B_crit at its first goal that was measured and at its last, and the joint loss's noise scale."""
    rows = next(sweep.rows for sweep in comparison.sweeps if sweep.name == rung.name)
    early = next(row for row in rows if row.measured.value is not None)
    return [
        rung.row.task,
        "–" if early is rung.row else early.measured.say(),
        rung.row.measured.say(),
        rung.row.predicted(*JOINT).say(),
        rung.row.ratio(*JOINT).say("–"),
    ]


def _of_paper(task: PaperTask) -> list[str]:
    """The same of a task of the paper."""
    early = "not measured" if task.b_crit_start is None else _range(task.b_crit_start)
    late, noise = _range(task.b_crit_end), _range(task.noise)
    if not task.measured:
        return [early, f"above {late}, its estimate", noise, "–"]
    return [early, late, noise, format_quantity(math.sqrt(math.prod(task.b_crit_end) / math.prod(task.noise)))]


def _range(ends: tuple[float, float]) -> str:
    return " to ".join(dict.fromkeys(f"{end:,.0f}" for end in ends))


def second_hypothesis(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The second hypothesis of docs/preregistration.md, over the tasks that were scored after it was written down."""
    tasks = [rung for rung in _one_step(rungs) if rung.folder not in BEFORE_SECOND]
    counted = TaskTable.of(tasks, *ADVISED)
    said = _open(len(counted.measured))
    if len(counted.measured) >= FEWEST_LATER:
        said = _conclude(error_of(counted), math.sqrt(counted.constant), "the mean B_crit of the other tasks")
    return said + _table(tasks, ADVISED)


def third_hypothesis(comparison: Comparison, rungs: Sequence[Rung]) -> str:
    """The third hypothesis, whose factor and whose constant were fixed when it was written down. A task counts once.

    It is judged over the first tasks that suffice, in the order in which their rungs finished; later ones change nothing.
    """
    finished = {sweep.name: sweep.record.ladder.get("finished") or "" for sweep in comparison.sweeps}
    tasks = [rung for rung in _one_step(rungs) if rung.row.task not in BEFORE_THIRD]
    tasks.sort(key=lambda rung: finished[rung.name])
    factor, always = THIRD
    for number in range(1, len(tasks) + 1):
        counted = TaskTable.of(tasks[:number], *JOINT)
        if len(counted.measured) >= FEWEST_LATER and np.ptp(counted.measured) >= LEAST_SPAN:
            constant = _root_mean_square(counted.measured - math.log10(always))
            said = _conclude(error_of(counted, factor), constant, f"{always:.0f} for every task")
            later = f" The last {len(tasks) - number} of the table finished after that." if number < len(tasks) else ""
            return said + later + _table(tasks, JOINT, factor)
    so_far = len({rung.row.task for rung in tasks})
    return _open(so_far, f" whose B_crit span at least {LEAST_SPAN:g} decade") + _table(tasks, JOINT, factor)


def error_of(counted: TaskTable, factor: float = 1.0) -> float:
    """Root mean square in decades, without an offset, of so many times the prediction; a decade where it is not resolved."""
    return _root_mean_square(np.where(counted.resolved, counted.error - math.log10(factor), UNRESOLVED))


def _root_mean_square(decades: np.ndarray) -> float:
    return math.sqrt((decades**2).mean())


def _one_step(rungs: Sequence[Rung]) -> list[Rung]:
    """Scored tasks with one optimizer step a batch."""
    return [rung for rung in rungs if rung.role == "task" and rung.left_out is None and rung.row.inner_steps == 1]


def _open(tasks: int, condition: str = "") -> str:
    return f"Open: the hypothesis needs {FEWEST_LATER} scored tasks{condition}, and has {tasks} so far."


def _conclude(error: float, constant: float, baseline: str) -> str:
    """What errors in decades, of a prediction and of a baseline, say of a hypothesis."""
    said = f"The prediction errs by {error:.3f} decades, {baseline} by {constant:.3f}."
    if error > FAILURE or error >= constant:
        alone = f" Its own error is at most {FAILURE} and alone would not refute it; {baseline} does, which errs less."
        return f"Refuted. {said}" + ("" if error > FAILURE else alone)
    return f"{'Confirmed' if error <= SUCCESS else 'Undecided'}. {said}"


def _table(tasks: Sequence[Rung], which: tuple[str, str], factor: float = 1.0) -> str:
    """A row for each task: what so many times a predictor says, and B_crit as a multiple of that."""
    rows = [
        [
            f"`{task.folder}`",
            task.row.measured.say(),
            task.row.predicted(*which).map(lambda predicted: factor * predicted).say(),
            task.row.ratio(*which).map(lambda ratio: 1 / factor * ratio).say("–"),
        ]
        for task in tasks
    ]
    return "\n\n" + markdown_table(["rung", "B_crit", "predicted", "measured / predicted"], rows) if rows else ""
