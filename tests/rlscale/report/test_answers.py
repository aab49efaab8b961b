"""The answer first: the sentence, its confidence, the order, and what settles what cannot be said."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from planted import Planted, make_plan, write_sweep
from run_records import make_run

from rlscale.analysis.comparison import compare
from rlscale.analysis.predictions import ADVISED, PLAIN, Prediction
from rlscale.analysis.reading import read_noise
from rlscale.analysis.rows import row_of_run
from rlscale.estimate import Estimate
from rlscale.noise import BlockStatistics
from rlscale.records.noise import pack_statistics
from rlscale.report.answers import answers, run_answer, say_suggestion
from rlscale.report.ladder_charts import rank_figure
from rlscale.report.words import warnings

QUICK = make_plan(batch_sizes=None, pilot_batch=640, quick=True)


def answer_with(comparison, *, interval, provisional=(), s_min=200.0, value=1000.0, inner_steps=1, **more):
    """The answer of a comparison's only sweep, whose last goal was given those figures."""
    (sweep,) = comparison.sweeps
    changes = dict(measured=Estimate(value, interval), s_min=Estimate(s_min, None), provisional=provisional)
    row = replace(sweep.rows[-1], **changes, inner_steps=inner_steps, **more)
    changed = replace(comparison, sweeps=(replace(sweep, rows=(*sweep.rows[:-1], row)),))
    (answer,) = answers(changed)
    return answer


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    comparison = compare([write_sweep(tmp_path_factory.mktemp("s") / "s", Planted(scatter=0.1), "minatar/breakout")], [])
    assert comparison.sweeps[0].rows[-1].frontier.warning is None
    return comparison


def test_the_sentence_has_the_figures_and_what_follows_from_them(clean):
    """From twice B_crit on doubling B saves (B_crit/B - B_crit/2B)/(1 + B_crit/B), a sixth, of the steps."""
    answer = answer_with(clean, interval=(700.0, 1400.0))
    assert answer.sentence == (
        "minatar/breakout to a return of 200: up to 1,000 observations an optimizer step are well spent (95%: 700 to 1,400); "
        "from 2,000 on, doubling the workers saves less than a sixth of the optimizer steps. "
        "With up to 200, a run takes at most a fifth more than the fewest observations. Confidence: good."
    )
    b_crit, twice = 1000.0, 2000.0
    saved = (b_crit / twice - b_crit / (2 * twice)) / (1 + b_crit / twice)
    assert saved == pytest.approx(1 / 6)
    with_inner_loop = answer_with(clean, interval=(700.0, 1400.0), inner_steps=12).sentence
    assert "observations an iteration are" in with_inner_loop
    assert "a sixth of the iterations" in with_inner_loop


def test_environments_that_are_not_the_tasks_own_are_told_of(clean):
    interval = (700.0, 1400.0)
    cloned = answer_with(clean, interval=interval, clones=4).sentence
    assert cloned.endswith(" Each environment has 4 clones, which make it 4 times the task's own.")
    noisy = answer_with(clean, interval=interval, reward_noise=3.87).sentence
    assert noisy.endswith(" Noise of standard deviation 3.87 was added to the rewards, so it is not the task's own.")


@pytest.mark.parametrize(
    ("changes", "confidence"),
    [
        (dict(interval=(800.0, 1999.0)), "good"),
        (dict(interval=(700.0, 1800.0)), "fair (the interval's ends are a factor of 2.57 apart)"),
        (dict(interval=(700.0, 1800.0), provisional=(32,)), "fair (the interval's ends are a factor of 2.57 apart, provisional)"),
        (dict(interval=(800.0, 1900.0), provisional=(32,)), "fair (provisional)"),
        (dict(interval=(500.0, 2100.0)), "poor (the interval's ends are a factor of 4.2 apart)"),
        (dict(interval=(800.0, math.inf)), "poor (the interval has an open end)"),
        (dict(interval=(800.0, 1900.0), s_min=40.0), "poor (S_min below 50 steps: not scored)"),
    ],
)
def test_confidence_is_that_of_the_interval_and_of_what_warns(clean, changes, confidence):
    assert answer_with(clean, **changes).sentence.endswith(f"Confidence: {confidence}.")


@pytest.mark.parametrize(
    ("uncertain", "confidence"), [(0, "good"), (1, "good"), (20, "fair (many crossings may not have happened)")]
)
def test_crossings_that_may_not_have_happened_are_told_of(tmp_path, uncertain, confidence):
    """Their interval has no upper end, and the fit takes them as they stand."""
    plan = make_plan(batch_sizes=(64, 256, 1024, 4096))
    left = [uncertain]

    def change(trial, result):
        last = result.goals[-1]
        if trial.stage == "noise" or last.interval is None or not left[0]:
            return result
        left[0] -= 1
        return replace(result, goals=(*result.goals[:-1], replace(last, interval=(last.interval[0], math.inf))))

    record = write_sweep(tmp_path / "s", Planted(scatter=0.1), "minatar/breakout", plan=plan, change=change)
    comparison = compare([record], [])
    assert answer_with(comparison, interval=(800.0, 1600.0)).sentence.endswith(f"Confidence: {confidence}.")
    told = [said for said in warnings(comparison.rows) if "may not have happened" in said]
    crossed = sum(result.goals[-1].optimizer_steps is not None for result in record.results.values())
    assert [said.partition(": ")[2].partition(":")[0] for said in told] == (
        [f"{uncertain} of {crossed} crossings may not have happened"] if uncertain else []
    )


def test_tasks_are_ranked_and_what_cannot_be_said_names_its_command(tmp_path):
    sweeps = [
        write_sweep(tmp_path / "a", Planted(700, scatter=0.1), "minatar/asterix"),
        write_sweep(tmp_path / "b", Planted(2000, scatter=0.1), "minatar/breakout"),
        write_sweep(tmp_path / "atari-pong", Planted(90_000, scatter=0.05), "atari/pong", make_plan(batch_sizes=(32, 128, 512))),
    ]
    comparison = compare(sweeps, [make_run(tmp_path / "run")])
    open_one = replace(comparison.sweeps[2], next_words=("rlscale", "sweep", "atari/pong"))
    found = answers(replace(comparison, sweeps=(*comparison.sweeps[:2], open_one)))
    assert [answer.row.task for answer in found[:3]] == ["minatar/breakout", "minatar/asterix", "atari/pong"]
    assert "cannot be said yet (more than " in found[2].sentence
    assert found[2].sentence.endswith("Next: rlscale sweep atari/pong")
    assert found[3].sentence.endswith("That is a prediction; 'rlscale sweep atari/pong' measures it.")
    layers = rank_figure(found).chart.to_dict()["layer"]
    drawn = [point["task"] for point in layers[0]["data"]["values"]]
    assert drawn == [found[0].name, found[1].name]
    assert all(math.isfinite(point[end]) for point in layers[0]["data"]["values"] for end in ("low", "high"))
    assert rank_figure(found[2:]) is None


def test_a_run_says_what_it_came_to_and_whether_more_workers_help(tmp_path):
    run = make_run(tmp_path / "run")
    said = run_answer(run, row_of_run(run))
    came = rf"atari/pong: a mean return of \S+ after {run.rows[-1]['observations']:,} observations\. "
    assert re.match(f"{came}Learning", said)
    assert "Its noise" in said
    assert said.endswith("'rlscale sweep atari/pong' measures it.")
    for row in run.rows:
        row |= {"sampling_seconds": 3.0, "transfer_seconds": 0.0, "learning_seconds": 6.5, "noise_seconds": 0.5}
    limit = (
        "Learning, with its noise measurement, takes 68% of the time: more rollout workers save at most the other 32%. Its noise"
    )
    assert re.match(came + limit, run_answer(run, row_of_run(run)))
    for row in run.rows:
        row |= {"learning_seconds": 1.0, "noise_seconds": 0.5}
    limit = "Sampling takes 75% of the time, the most that more rollout workers can save; 'rlscale workers' says how many do. Its"
    assert re.match(came + limit, run_answer(run, row_of_run(run)))
    run.rows[3]["losses"] = run.rows[9]["losses"] = [{"actor": 0}]
    lost = "It lost 2 rollout workers; every observation that was missing was sampled again. "
    assert re.match(came + lost + limit, run_answer(run, row_of_run(run)))


@pytest.mark.parametrize("late", [0.03, 0.8])
def test_the_noise_scale_that_advise_reads_is_said_where_it_is_another(tmp_path, late):
    """A run that learned its task in ten iterations of sixty, and whose gradient had gone afterwards, or had not."""
    run, rng = make_run(tmp_path / "run", iterations=60), np.random.default_rng(0)
    for row in run.rows:
        signal = 0.8 if row["iteration"] < 10 else late
        g = rng.normal(size=(8, 20)) + signal
        statistics = pack_statistics(BlockStatistics([16] * 8, (g * g).sum(1), g @ g.mean(0)))
        row["noise"].append({"head": "joint", "kind": "rollout", "optimizer_step": row["iteration"], **statistics})
        row.update(episodes=100, return_mean=min(1.0 + row["iteration"], 10.0))
    read = read_noise(run)
    assert read.idle == 50 * 128
    early = (
        "Of the first 1,280 observations alone, in which nine tenths of the rise in return were made, "
        f"the suggestion is {read.suggestion}."
    )
    assert (early in run_answer(run, row_of_run(run))) == (late == 0.03)


def test_a_suggestion_is_doubted_while_the_policy_s_own_noise_is_not_resolved(tmp_path):
    """After a minute of Pong the joint loss resolves a noise scale of one observation, the value function's: no suggestion."""
    comparison = compare([], [make_run(tmp_path / "run")])
    (row,) = comparison.rows

    def said(joint, policy):
        changed = replace(row, predictions=(Prediction(*ADVISED, joint, 1, 1, None), Prediction(*PLAIN, policy, 1, 1, None)))
        (answer,) = answers(replace(comparison, rows=(changed,)))
        return answer.sentence

    unresolved = Estimate(None, (1900.0, math.inf), "open")
    assert said(Estimate(0.96, (0.65, 1.3)), unresolved) == (
        "atari/pong (run run): its noise does not say yet how many observations an optimizer step can use: the policy's noise "
        "scale is above 1,900, and the joint loss's, 0.960 [0.650, 1.30], is mostly the value function's; "
        "'rlscale sweep atari/pong' measures it."
    )
    # The other reading of the joint loss is not resolved itself: its interval reaches down to zero.
    assert "does not say yet" in said(Estimate(600.0, (0.0, 4400.0)), unresolved)
    # A factor of twenty apart is more than on any task that was measured; up to there it is a matter of care.
    assert "does not say yet" in said(Estimate(80.0, (70.0, 94.9)), unresolved)
    careful = said(Estimate(80.0, (70.0, 95.1)), unresolved)
    assert "its noise scale suggests 80.0 observations an optimizer step (95%: 70.0 to 95.1). That is a prediction" in careful
    assert careful.endswith(
        "Take it with care: the noise of the policy's own loss is not resolved, above 1,900; most of the signal is the value "
        "function's."
    )
    # A policy that was seldom measured is not resolved either; that it is noisier than the joint loss is not known then.
    seldom = said(Estimate(997.0, (476.0, 1920.0)), Estimate(None, (862.0, math.inf), "open"))
    assert seldom.endswith("Take it with care: the noise of the policy's own loss is not resolved, above 862.")
    run = make_run(tmp_path / "cloned")
    run.manifest["config"]["rollout"] = {"clones": 4}
    row = row_of_run(run)
    copied = said(Estimate(997.0, (476.0, 1920.0)), Estimate(2000.0, (1500.0, 3000.0)))
    assert copied.endswith("Each environment has 4 clones, which make it 4 times the task's own.")
    row = replace(row, clones=1)
    resolved = said(Estimate(0.96, (0.65, 1.3)), Estimate(3000.0, (1900.0, 5000.0)))
    assert "the policy's noise scale is 3,000 [1,900, 5,000], and the joint loss's, 0.960 [0.650, 1.30], is mostly" in resolved
    near = said(Estimate(200.0, (150.0, 300.0)), Estimate(3000.0, (1900.0, 5000.0)))
    assert "suggests 200 observations" in near
    assert "care" not in near


def test_the_joint_loss_on_the_policy_s_parameters_stands_in_for_the_policy_s_own(tmp_path):
    """A sweep's pilot measures the joint loss and its parts alone. Pendulum's suggested 76.3, of a B_crit of 542."""
    comparison = compare([], [make_run(tmp_path / "run")])
    joint = Prediction(*ADVISED, Estimate(76.3, (47.4, 137.0)), 1, 1, None)
    beside = Prediction("joint_policy_parameters", "cumulative", Estimate(None, (300.0, math.inf), "open"), 1, 1, None)
    row = replace(comparison.rows[0], predictions=(joint, beside))
    (answer,) = answers(replace(comparison, rows=(row,)))
    assert answer.sentence.endswith(
        "Take it with care: the noise of the joint loss on the policy's parameters is not resolved, above 300; most of the "
        "signal is the value function's."
    )
    assert not row.suggests_nothing
    row = replace(row, predictions=(replace(joint, scale=Estimate(76.3, (0.0, 137.0))), beside))
    (answer,) = answers(replace(comparison, rows=(row,)))
    assert (
        "does not say yet how many observations an optimizer step can use: the noise scale of the joint loss on the policy"
        in (answer.sentence)
    )


@pytest.mark.parametrize("joint", [Estimate(600.0, (300.0, 900.0)), Estimate(600.0, (0.0, 4400.0))])
def test_noise_of_the_policy_that_was_not_measured_is_no_reason_for_doubt(tmp_path, joint):
    """The trials of a sweep measure the joint loss alone, and so does a job whose policy is frozen."""
    comparison = compare([], [make_run(tmp_path / "run")])
    row = replace(comparison.rows[0], predictions=(Prediction(*ADVISED, joint, 1, 1, None),))
    (answer,) = answers(replace(comparison, rows=(row,)))
    assert "its noise scale suggests 600 observations" in answer.sentence
    assert answer.sentence.endswith("That is a prediction; 'rlscale sweep atari/pong' measures it.")


@pytest.mark.parametrize(
    ("task", "command"),
    [
        ("gym/CartPole-v1", "'rlscale sweep gym/CartPole-v1'"),
        ("mine:make", "'rlscale sweep mine:make'"),
        ("CartPole-v1", "'rlscale sweep TASK' ('rlscale tasks' lists the names)"),
        ("ALE/Pong-v5", "'rlscale sweep TASK' ('rlscale tasks' lists the names)"),
    ],
)
def test_the_command_that_measures_it_is_one_that_works(tmp_path, task, command):
    comparison = compare([], [make_run(tmp_path / "run")])
    (row,) = comparison.rows
    for predictions, end in (
        (row.predictions, f"That is a prediction; {command} measures it."),
        ((), f"says nothing yet about how many observations an optimizer step can use; {command} measures it."),
    ):
        (answer,) = answers(replace(comparison, rows=(replace(row, task=task, predictions=predictions),)))
        assert answer.sentence.endswith(end)


def test_a_sweep_that_cannot_go_on_is_not_told_to_repeat_its_command(tmp_path):
    """A copy in a folder of another name, which the sweep's own command would not open."""
    plans = (make_plan(batch_sizes=(32, 128, 512)), QUICK)
    copies = [write_sweep(tmp_path / f"copied-{i}", Planted(90_000, scatter=0.05), plan=plan) for i, plan in enumerate(plans)]
    open_one, quick = (answers(compare([copy], []))[0].sentence for copy in copies)
    mend = "give its folder the name classic-cartpole, by which its command finds it, and compare again to see how it goes on"
    assert open_one.endswith(f"Next: {mend}")
    assert quick.endswith("Next: sweep it without --quick, with another --out")


def test_a_quick_sweep_speaks_of_no_fit(tmp_path):
    """It has none, whatever its runs missed."""

    def missed(trial, result):
        goals = (replace(result.goals[0], optimizer_steps=None, observations=None, not_before=500), *result.goals[1:])
        return replace(result, goals=goals if result.stage == "pilot" and result.seed == least else result.goals)

    least = min(run.seed for run in write_sweep(tmp_path / "whole", Planted(), plan=QUICK).results.values())
    (row, *_) = compare([write_sweep(tmp_path / "quick", Planted(), plan=QUICK, change=missed)], []).rows
    assert row.quick
    assert [note for note in row.notes if "missed" in note] == ["1 of 6 runs missed the goal"]


def test_a_quick_sweep_whose_noise_says_nothing_predicts_nothing(tmp_path):
    silent = write_sweep(tmp_path / "silent", Planted(), plan=QUICK, change=lambda trial, result: replace(result, noise=()))
    said = "its noise says nothing yet about how many observations an optimizer step can use. Next: "
    assert said in answers(compare([silent], []))[0].sentence


@pytest.mark.parametrize(
    ("state", "mend"),
    [
        ("hopeless", "choose other goals, another learning rate or more observations, and another --out"),
        ("failed", "mend what the errors of its runs say, then type its command again"),
    ],
)
def test_a_sweep_whose_pilot_reached_nothing_is_told_what_to_change(tmp_path, state, mend):
    """Its command would do nothing: the runs are recorded."""

    def missed(trial, result):
        goals = tuple(replace(goal, optimizer_steps=None, observations=None, not_before=500) for goal in result.goals)
        return replace(result, state=state, goals=goals * (state != "failed"), noise=())

    plan = make_plan(batch_sizes=None, pilot_batch=640)
    record = write_sweep(tmp_path / "classic-cartpole", Planted(), plan=plan, change=missed)
    assert len(record.results) == 3
    (answer,) = answers(compare([record], []))
    assert answer.sentence.endswith(f"cannot be said yet. Next: {mend}")


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (Estimate(353.0, (304.0, 413.0)), "its noise scale suggests 353 observations an optimizer step (95%: 304 to 413)"),
        (Estimate(353.0, (304.0, math.inf)), "its noise scale suggests 353 observations an optimizer step (95%: at least 304)"),
        (
            Estimate(None, (304.0, math.inf), "open"),
            "its noise scale suggests more than 304 observations an optimizer step (95%)",
        ),
        (Estimate(None, None, "open"), "its noise says nothing yet about how many observations an optimizer step can use"),
    ],
)
def test_a_suggestion_is_said_with_the_level_of_its_interval(scale, said):
    assert say_suggestion(scale) == said


def test_a_supervised_answer_speaks_of_batches(clean):
    """There are no rollout workers of whom a user could buy twice as many."""
    answer = answer_with(clean, interval=(800.0, 1900.0))
    assert "doubling the workers saves less than a sixth" in answer.sentence
    (sweep,) = clean.sweeps
    rows = tuple(replace(row, has_policy=False) for row in sweep.rows)
    (supervised,) = answers(replace(clean, sweeps=(replace(sweep, rows=rows),)))
    assert "doubling the batch saves less than a sixth" in supervised.sentence


def test_a_run_of_several_passes_is_not_what_a_sweep_measures(tmp_path):
    run = make_run(tmp_path / "run")
    row = row_of_run(run)
    assert "passes over" not in run_answer(run, row)
    run.manifest["config"]["update"] = {"epochs": 3}
    assert "A sweep passes over its observations once, this run did 3 times; --epochs and --mini-batches" in run_answer(run, row)
