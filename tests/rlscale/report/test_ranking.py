"""The ranking: two tasks are told apart by the interval of their ratio, against figures worked out by hand and planted truths."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from planted import Planted, write_sweep
from scipy.special import ndtri

from rlscale.analysis.comparison import compare
from rlscale.estimate import Estimate
from rlscale.report.answers import answers
from rlscale.report.ladder_charts import rank_figure
from rlscale.report.ranking import say_answers, say_ranking


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Some task's answer."""
    comparison = compare([write_sweep(tmp_path_factory.mktemp("s") / "s", Planted(scatter=0.1), "minatar/breakout")], [])
    (answer,) = answers(comparison)
    return answer


def found(plain, *estimates):
    """Answers with these measured figures, named A, B and so on; of a figure without a value, last."""
    return [
        replace(plain, name=chr(65 + i), row=replace(plain.row, name=chr(65 + i), measured=measured), sentence=f"{chr(65 + i)}!")
        for i, measured in enumerate(estimates)
    ]


def about(value, low, high):
    return Estimate(float(value), (float(low), float(high)))


def test_overlapping_intervals_may_be_told_apart(plain):
    """Half-widths ln 1.25 = 0.223 on both sides: the ratio's is 0.223 √2 = 0.316, and ln(1000/700) = 0.357."""
    said = say_ranking(found(plain, about(1000, 800, 1250), about(700, 560, 875)))
    assert said == "A can be parallelized further than B: its B_crit is 1.43 times as large (95%: 1.04 to 1.96)."
    half = math.sqrt(2) * math.log(1.25)
    assert (1000 / 700) * math.exp(-half) == pytest.approx(1.042, abs=5e-4)
    assert (1000 / 700) * math.exp(half) == pytest.approx(1.959, abs=5e-4)


def test_the_half_widths_that_face_each_other_count(plain):
    """The higher one's way down and the lower one's way up, and not the other two."""
    wide_inside = say_ranking(found(plain, about(1000, 500, 1010), about(700, 690, 1400)))
    assert wide_inside == (
        "A and B cannot be told apart: B_crit of the first is 1.43 times that of the second, and the interval holds 1 "
        "(95%: 0.536 to 1.45)."
    )
    assert "can be parallelized further" in say_ranking(found(plain, about(1000, 990, 2000), about(700, 350, 710)))


@pytest.mark.parametrize(("low", "apart"), [(900, True), (500, False)])
def test_an_open_end_away_from_the_other_does_no_harm(plain, low, apart):
    said = say_ranking(found(plain, about(1000, low, math.inf), about(600, 500, 700)))
    assert ("further" in said) == apart
    assert "∞" in said


def test_of_tasks_that_are_alike_one_pair_in_twenty_is_told_apart(plain):
    rng, z = np.random.default_rng(0), ndtri(0.975)
    apart = 0
    for first, second in rng.normal(math.log(500), 0.3, (2000, 2)):
        pair = [about(math.exp(x), math.exp(x - 0.3 * z), math.exp(x + 0.3 * z)) for x in sorted((first, second), reverse=True)]
        apart += "further" in say_ranking(found(plain, *pair))
    assert 0.04 <= apart / 2000 <= 0.06


def test_of_several_the_pairs_that_are_alike_are_named_by_number(plain):
    narrow = [about(v, v / 1.1, v * 1.1) for v in (8000, 4000, 2000)]
    all_apart = "Of 3 measured sweeps, A can be parallelized furthest; all of them can be told apart (95%)."
    assert say_ranking(found(plain, *narrow)) == all_apart
    poor = found(plain, *narrow)
    poor[0] = replace(poor[0], confidence="poor")
    assert say_ranking(poor) == f"{all_apart} Confidence: poor, that in A."
    assert say_ranking([poor[1], replace(poor[2], confidence="poor"), replace(poor[0], confidence="good")]).endswith("(95%).")
    tail = found(plain, *narrow, about(500, 100, 2500), about(490, 480, 500), about(480, 470, 490), about(5, 4.9, 5.1))
    assert say_ranking(tail) == (
        "Of 7 measured sweeps, A can be parallelized furthest. Numbered by B_crit, these cannot be told apart (95%): "
        "3 from 4; 4 from 5 and 6; 5 from 6."
    )
    alike = found(plain, *(about(v, v / 2, v * 2) for v in (500, 490, 480, 470, 5)))
    assert say_ranking(alike) == (
        "Which of 5 measured sweeps can be parallelized furthest is open. Numbered by B_crit, these cannot be told apart (95%): "
        "1 from 2 to 4; 2 from 3 and 4; 3 from 4."
    )


def test_of_many_the_pairs_that_are_told_apart_are_counted(plain):
    """Twelve a factor of 1.2 apart, each known to 1.5 times: by a factor of 1.5^√2 = 1.77, four places on, they are apart."""
    many = found(plain, *(about(v, v / 1.5, v * 1.5) for v in (12_000 / 1.2**n for n in range(12))))
    assert say_ranking(many) == (
        "Which of 12 measured sweeps can be parallelized furthest is open. "
        "B_crit falls from 12,000 to 1,620, and 36 of 66 pairs can be told apart (95%)."
    )
    two = [about(50_000, 40_000, 60_000), about(45_000, 40_000, 50_000)]
    first = say_ranking(found(plain, *two, *(about(v, v / 1.5, v * 1.5) for v in (12_000 / 1.2**n for n in range(12)))))
    assert first.startswith(
        "Which of 14 measured sweeps can be parallelized furthest is open, between A and B. B_crit falls from 50,000 to"
    )
    assert say_ranking(found(plain, two[0], *(a.row.measured for a in many))).startswith(
        "Of 13 measured sweeps, A can be parallelized furthest. B_crit falls"
    )


def test_sentences_and_figure_have_the_same_numbers(plain):
    three = found(plain, *(about(v, v / 1.1, v * 1.1) for v in (8000, 4000, 2000)), Estimate(None, None, "open"))
    assert say_answers(three)[1:] == ["1. A!", "2. B!", "3. C!", "D!"]
    layers = rank_figure(three).chart.to_dict()["layer"]
    labels = [point["label"] for point in layers[-1]["data"]["values"]]
    assert [re.match(r"\d\. [ABC]\n", label).group() for label in labels] == ["1. A\n", "2. B\n", "3. C\n"]
    assert labels[0].endswith(": 8,000 [7,270, 8,800]")
    assert say_ranking(three[2:3]) is None, "one measured task is no ranking"
    open_one = "Which task can be parallelized further cannot be said yet: B_crit is not known of D."
    assert say_answers(three[2:]) == [open_one, "C!", "D!"]


def test_figures_of_iterations_and_of_steps_are_told_apart_and_poor_ones_named(plain):
    """What stands beside two figures of different kinds, and of one that is poorly known."""
    steps, iterations = found(plain, about(8000, 7500, 8500), about(1000, 900, 1100))
    row = replace(iterations.row, inner_steps=12)
    both = say_ranking([steps, replace(iterations, row=row, confidence="poor")])
    assert both.endswith(
        "). Confidence: poor, that in B. B_crit of B is of an iteration of several optimizer steps, of the other of one step."
    )
    assert "iteration" not in say_ranking([steps, iterations])
    alike = [replace(answer, row=replace(answer.row, inner_steps=12)) for answer in (steps, iterations)]
    assert "of one step" not in say_ranking(alike)


def test_two_goals_of_one_task_are_no_two_tasks(plain):
    """Both are of MinAtar's Breakout; what differs is how far it was learned."""
    high, low = found(plain, about(1000, 900, 1100), about(300, 280, 320))
    low = replace(low, row=replace(low.row, goal=(high.row.goal or 0) - 1))
    assert say_ranking([high, low]).endswith(" Of minatar/breakout the goals differ, and B_crit mostly grows with the goal.")
    other = replace(low, row=replace(low.row, task="minatar/freeway"))
    assert "goals differ" not in say_ranking([high, other])
    assert "goals differ" not in say_ranking(found(plain, about(1000, 900, 1100), about(300, 280, 320)))
