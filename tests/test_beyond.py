"""docs/beyond.md: every part has its picture, scripts draw them, and figures are those of the records."""

import json
import math
import re
import runpy
import statistics
import sys
from pathlib import Path

import altair as alt
import pytest
from scipy.special import stdtrit

from rlscale.analysis import compare
from rlscale.estimate import Estimate
from rlscale.records import read_sweep

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
PAGE = (ROOT / "docs" / "beyond.md").read_text()
PARTS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
DRAWN = re.compile(r"^!\[([^\]]+)\]\(pictures/(\S+)\.png\)\n\n\*(?!\*)(.+?)\*$", re.MULTILINE | re.DOTALL)
QUICK = ("adaptive", "invariance", "shapes")  # drawn as they are recorded: no curve is fitted


@pytest.fixture
def scripts(monkeypatch):
    """What `python docs/pictures/NAME.py` finds beside itself."""
    monkeypatch.syspath_prepend(str(PICTURES))
    yield
    sys.modules.pop("intervals", None)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_a_picture_with_words_for_it_and_a_sentence_that_names_its_script(part):
    drawn = DRAWN.findall(PARTS[part])
    assert drawn
    for words, name, sentence in drawn:
        assert len(words.split()) > 5
        assert f"docs/pictures/{name}.py`" in " ".join(sentence.split())
        assert (PICTURES / f"{name}.py").exists()
        assert (PICTURES / f"{name}.png").exists()


@pytest.mark.parametrize("name", sorted(path.stem for path in PICTURES.glob("*.py")))
def test_a_script_of_a_picture_names_what_is_there(name, scripts):
    """It is loaded, which ends at a name that the package has no more; drawing would take seconds."""
    assert callable(runpy.run_path(str(PICTURES / f"{name}.py")).get("main")) == (name != "intervals")


@pytest.mark.parametrize("name", QUICK)
def test_a_script_draws_its_record(name, scripts, monkeypatch):
    drawn = {}
    for kind in (alt.VConcatChart, alt.LayerChart):
        monkeypatch.setattr(kind, "save", lambda chart, path, **_: drawn.update({path: chart.to_dict()}))
    runpy.run_path(str(PICTURES / f"{name}.py"))["main"]()
    assert list(drawn) == [str(PICTURES / f"{name}.png")]


def test_intervals_reach_to_their_ends_or_to_the_axis_and_limits_are_triangles(scripts):
    from intervals import intervals

    rows = {
        "known": {"a": Estimate(20.0, (10.0, 40.0)), "b": Estimate(None, (30.0, math.inf), "few runs")},
        "unknown": {"a": Estimate(None, None, "no runs")},
    }
    layers = intervals(rows, "observations").to_dict()["layer"]
    axis = (10 / 1.5, 40 * 1.5)
    bars = [(row["what"], row["from"], row["to"]) for part in layers if part["mark"]["type"] == "rule" for row in values(part)]
    assert bars == [("a", 10.0, 40.0), ("b", 30.0, pytest.approx(axis[1]))]
    points = [(part["mark"]["shape"], row["value"]) for part in layers if part["mark"]["type"] == "point" for row in values(part)]
    assert points == [("circle", 20.0), ("triangle-right", 30.0)]
    (names,) = [[row["row"] for row in values(part)] for part in layers if part["mark"]["type"] == "text"]
    assert names == ["known", "unknown"]
    scales = [part["encoding"]["x"]["scale"] for part in layers if part["mark"]["type"] == "point"]
    assert all(scale["type"] == "log" and scale["domain"] == pytest.approx(axis) for scale in scales)


def values(part):
    return part["data"]["values"]


def test_the_page_holds_the_differences_between_shapes_with_their_intervals():
    """Welch's interval, by hand."""
    runs = json.loads((ROOT / "results" / "shapes.json").read_text())["readings"]["runs"]

    def less(task, other, statistic="whole"):
        few, many = ([r[statistic] for r in runs if (r["task"], r["environments"]) == (task, n)] for n in (other, 1024))
        parts = [statistics.variance(values) / len(values) for values in (few, many)]
        half = math.sqrt(sum(parts)) * stdtrit(sum(parts) ** 2 / sum(part**2 / 2 for part in parts), 0.975)  # three seeds each
        gap = statistics.fmean(few) - statistics.fmean(many)
        return gap, gap - half, gap + half

    said = " ".join(PAGE.split())
    gap, low, high = less("minatar/breakout", 64)
    assert f"{gap:.2f} less on Breakout (95% interval {low:.2f} to {high:.2f})" in said
    gap, low, high = less("minatar/asterix", 64)
    assert f"{gap:.2f} less on Asterix ({-low:.2f} more to {high:.2f} less)" in said
    (gap, low, high), (other, lowest, highest) = less("minatar/breakout", 16), less("minatar/asterix", 16)
    assert f"{gap:.2f} less ({low:.2f} to {high:.2f}) and {other:.2f} less ({lowest:.2f} to {highest:.2f})" in said
    (gap, low, high), (other, lowest, highest) = less("minatar/breakout", 16, "end"), less("minatar/asterix", 16, "end")
    assert low < 0 < high
    assert lowest < 0 < highest
    assert f"{-gap:.2f} more on Breakout" in said
    assert f"{other:.2f} less on Asterix" in said


def test_the_table_of_quick_sweeps_holds_what_the_sweeps_own_noise_runs_predict():
    """The ratios are those that `rlscale advise` has, which are made from the ladder's records."""
    published = json.loads((ROOT / "rlscale" / "analysis" / "published.json").read_text())["measured_over_predicted"]
    cases = json.loads((ROOT / "results" / "quick.json").read_text())["readings"]["cases"]
    columns, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PARTS["B_crit without a sweep"].splitlines()
        if line.startswith("|")
    ]
    found = {row[0].strip("`"): dict(zip(columns, row, strict=True)) for row in rows}
    assert set(found) == set(cases)
    for rung, row in found.items():
        assert float(row["measured / predicted"]) == pytest.approx(cases[rung]["ratio"], abs=0.005)
        if rung in published:
            assert float(row["measured / that"]) == pytest.approx(published[rung], abs=0.0056)
    said = " ".join(PARTS["B_crit without a sweep"].split())
    for rung in published.keys() - cases.keys():
        assert f"`{rung}` (measured / that: {published[rung]:.2f})" in said or f"`{rung}` ({published[rung]:.2f})" in said


@pytest.mark.long
def test_what_an_averaged_policy_does_to_the_critical_batch_size_is_what_the_records_say():
    found = {}
    for averaged, folder in (("no", "ladder/minatar-breakout-people-3"), ("yes", "minatar-breakout-ewma")):
        for row in compare([read_sweep(ROOT / "results" / folder)], []).rows:
            figures = [figure.say() for figure in (row.measured, row.s_min, row.e_min)]
            warns = ", warns" if row.frontier.warning else ""
            found[f"{row.goal:g}", averaged] = [*figures, f"{row.frontier.exponent.value:.2f}{warns}"]
    part = PARTS["Is PPO-EWMA batch size-invariant?"].split("does to the critical batch size**")[1]
    table = [line.strip("| ").split(" | ") for line in part.splitlines() if re.match(r"\| \d", line)]
    assert {(goal, averaged): cells for goal, averaged, *cells in table} == found
