"""The answer first: the sentence, its confidence, the order, and what settles what cannot be said."""

import math
from dataclasses import replace

import pytest
from planted import Planted, make_plan, write_sweep
from run_records import make_run

from rlscale.analysis.comparison import compare
from rlscale.analysis.predictions import ADVISED, PLAIN, Prediction
from rlscale.estimate import Estimate
from rlscale.report.answers import answers, run_answer, say_suggestion
from rlscale.report.ranking import rank_figure


def answer_with(comparison, *, interval, provisional=(), s_min=200.0, value=1000.0, inner_steps=1):
    """The answer of a comparison's only sweep, whose last goal was given those figures."""
    (sweep,) = comparison.sweeps
    changes = dict(measured=Estimate(value, interval), s_min=Estimate(s_min, None), provisional=provisional)
    row = replace(sweep.rows[-1], **changes, inner_steps=inner_steps)
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
        "Up to 200 training takes at most a fifth more observations than the fewest. Confidence: good."
    )
    b_crit, twice = 1000.0, 2000.0
    saved = (b_crit / twice - b_crit / (2 * twice)) / (1 + b_crit / twice)
    assert saved == pytest.approx(1 / 6)
    with_inner_loop = answer_with(clean, interval=(700.0, 1400.0), inner_steps=12).sentence
    assert "observations an iteration are" in with_inner_loop
    assert "a sixth of the iterations" in with_inner_loop


@pytest.mark.parametrize(
    ("changes", "confidence"),
    [
        (dict(interval=(800.0, 1999.0)), "good"),
        (dict(interval=(700.0, 1800.0)), "fair"),
        (dict(interval=(800.0, 1900.0), provisional=(32,)), "fair (provisional)"),
        (dict(interval=(500.0, 2100.0)), "poor"),
        (dict(interval=(800.0, math.inf)), "poor"),
        (dict(interval=(800.0, 1900.0), s_min=40.0), "poor (S_min below 50 steps: not scored)"),
    ],
)
def test_confidence_is_that_of_the_interval_and_of_what_warns(clean, changes, confidence):
    assert answer_with(clean, **changes).sentence.endswith(f"Confidence: {confidence}.")


def test_tasks_are_ranked_and_what_cannot_be_said_names_its_command(tmp_path):
    sweeps = [
        write_sweep(tmp_path / "a", Planted(700, scatter=0.1), "minatar/asterix"),
        write_sweep(tmp_path / "b", Planted(2000, scatter=0.1), "minatar/breakout"),
        write_sweep(tmp_path / "atari-pong", Planted(90_000, scatter=0.05), "atari/pong", make_plan(batch_sizes=(32, 128, 512))),
    ]
    found = answers(compare(sweeps, [make_run(tmp_path / "run")]))
    assert [answer.row.task for answer in found[:3]] == ["minatar/breakout", "minatar/asterix", "atari/pong"]
    assert "cannot be said yet (more than " in found[2].sentence
    assert "Next: rlscale sweep" in found[2].sentence
    assert found[3].sentence.endswith("That is a prediction; 'rlscale sweep atari/pong' measures it.")
    layers = rank_figure(found).chart.to_dict()["layer"]
    drawn = [point["task"] for point in layers[0]["data"]["values"]]
    assert drawn == [found[0].name, found[1].name]
    assert all(math.isfinite(point[end]) for point in layers[0]["data"]["values"] for end in ("low", "high"))
    assert rank_figure(found[2:]) is None


def test_a_run_says_what_it_came_to_and_whether_more_workers_help(tmp_path):
    run = make_run(tmp_path / "run")
    said = run_answer(run)
    assert said.startswith("atari/pong: a mean return of ")
    assert f" after {run.rows[-1]['observations']:,} observations. Its noise" in said
    assert "'rlscale sweep atari/pong' measures it. " in said
    for row in run.rows:
        row |= {"sampling_seconds": 3.0, "transfer_seconds": 0.0, "learning_seconds": 6.5, "noise_seconds": 0.5}
    assert run_answer(run).endswith(
        "Learning, with its noise measurement, takes 68% of the time: more rollout workers hardly help."
    )
    for row in run.rows:
        row |= {"learning_seconds": 1.0, "noise_seconds": 0.5}
    assert run_answer(run).endswith(
        "Sampling takes 75% of the time: more rollout workers help, and 'rlscale workers' says how many."
    )


def test_a_suggestion_is_doubted_while_the_policy_s_own_noise_is_not_resolved(tmp_path):
    """After a minute of Pong the joint loss resolves a noise scale of one observation: the value function's."""
    comparison = compare([], [make_run(tmp_path / "run")])
    (row,) = comparison.rows
    resolved = Prediction(*ADVISED, Estimate(0.96, (0.65, 1.3)), 1, 1, None)
    for policy, care in (
        (
            Estimate(None, (1900.0, math.inf), "open"),
            "own loss is not resolved, above 1,900; most of",
        ),
        (Estimate(3000.0, (1900.0, 5000.0)), None),
    ):
        changed = replace(row, predictions=(resolved, Prediction(*PLAIN, policy, 1, 1, None)))
        (answer,) = answers(replace(comparison, rows=(changed,)))
        assert "its noise scale suggests 0.960 observations an optimizer step (95%: 0.650 to 1.30)" in answer.sentence
        assert ("Take it with care" in answer.sentence) == (care is not None)
        assert care is None or care in answer.sentence


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
