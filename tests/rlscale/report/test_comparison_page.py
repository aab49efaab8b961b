"""The comparison's page, pictures and command: every chart compiles, nothing is hidden, bad input is one line."""

import copy
import html
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted import Planted, make_plan, write_sweep
from rich.console import Console
from run_records import add_joint, charts_of, make_run

from rlscale.analysis.comparison import compare
from rlscale.analysis.paper import PAPER
from rlscale.analysis.predictions import PRIMARY, Prediction
from rlscale.analysis.rungs import rungs_of
from rlscale.analysis.summary import noise_of_sums
from rlscale.benchmarks.commands.compare import CompareOptions, read_folders, run_compare, terminal_tables
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.records import read_sweep
from rlscale.report.comparison_page import _cost_table, _main_table, write_comparison
from rlscale.report.ladder_charts import _place_labels, ladder_figure
from rlscale.report.sweep_charts import frontier_figure, rate_figure, return_figure
from rlscale.report.words import say_conclusion, say_measured, warnings


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Sweeps of every kind: clean, provisional with missed runs, not identifiable, no noise runs, few steps, just begun."""
    folder = tmp_path_factory.mktemp("several")
    few = make_plan(batch_sizes=(32, 128, 512), seeds=1, goals=(200.0,))
    return [
        write_sweep(folder / "a", Planted(scatter=0.1), "minatar/breakout"),
        write_sweep(
            folder / "b",
            Planted(2000, 60, scatter=0.1, best_rate=-14, curvature=0.01),
            "minatar/freeway",
            make_plan(most_observations=900_000, goals=(200.0,)),
        ),
        write_sweep(folder / "c", Planted(90_000, scatter=0.05), "atari/pong", few),
        write_sweep(folder / "d", Planted(700, scatter=0.1), "minatar/asterix", make_plan(noise_runs=0, seeds=1, goals=(200.0,))),
        write_sweep(folder / "e", Planted(300, 20, scatter=0.1), "classic/cartpole", make_plan(seeds=1, goals=(200.0,))),
        write_sweep(folder / "f", Planted(), "minatar/seaquest", most=1),
        write_sweep(folder / "g", Planted(), "minatar/space_invaders", make_plan(most_observations=64)),
    ]


@pytest.fixture(scope="module")
def whole(several, tmp_path_factory):
    """The comparison of them, of a run and of what could not be read; its page and the folder of its pictures."""
    folder = tmp_path_factory.mktemp("whole")
    comparison = compare(several, [make_run(folder / "run")], ["z has schema 9, this rlscale reads 1"])
    page, figures = folder / "out" / "page.html", folder / "figures"
    write_comparison(comparison, page, figures=figures)
    return comparison, page, figures


def shown_text(page):
    """What a person reads: no scripts, no style, no markup, ordinary spaces."""
    text = re.sub(r"<(script|style)>.*?</\1>", "", page.read_text(), flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", text).replace("\N{NO-BREAK SPACE}", " ")


def test_page_and_pictures_show_what_was_planted_and_what_was_left_out(whole):
    comparison, page, figures = whole
    text = shown_text(page)
    assert not re.search(r"@[A-Z]+@", text)
    for row in comparison.rows:
        assert row.name in text
        if row.measured.value is not None:
            assert str(row.measured) in text
    assert "provisional: the best learning rate at batch size" in text
    assert "B_crit is not identifiable: " in text
    assert "not scored: S_min is below 50" in text
    for sentence in (*warnings(comparison.rows), *comparison.notes):
        assert html.escape(sentence) in text
    assert "z has schema 9" in text
    assert "No verdict yet" in text
    assert "evaluation steps" in text
    assert "rlscale sweep minatar/breakout" in text
    names = {path.name for path in figures.iterdir()}
    assert {"frontier-minatar-breakout.png", "ladder.svg", "rates-atari-pong.png"} <= names
    assert len(names) == 2 * len(charts_of(page))
    assert all(path.read_bytes()[:4] == (b"\x89PNG" if path.suffix == ".png" else b"<svg") for path in figures.iterdir())


def test_every_chart_has_its_caption_and_every_cell_its_column_s_name(whole):
    """On a phone a row is a block in which each value needs its name; a chart of the last sweep needs its words too."""
    _, page, _ = whole
    body = page.read_text().split("<script>")[0]
    assert body.count("<div class='chart'") == len(re.findall(r"<div class='chart' id='\w+'></div><p class='note'>\w", body)) > 20
    assert body.count("Residual: standard deviation") == body.count("<h3>Frontier</h3>") > 3
    tables = re.findall(r"<table><thead>.*?</table>", body)
    for table in tables:
        columns = re.findall(r"<th>(.*?)</th>", table)
        for row in re.findall(r"<tr>(<td.*?)</tr>", table):
            names = re.findall(r"<td(?: data-label='(.*?)')?>", row)
            assert names == columns
    assert len(tables) > 10


def test_a_rung_that_has_not_ended_shows_no_figure(tmp_path):
    for name, state in (("over", "finished"), ("on", "running"), ("up", "given up: why")):
        write_sweep(tmp_path / name, Planted(scatter=0.1))
        (tmp_path / name / "ladder.json").write_text(json.dumps({"role": "task", "state": state}))
    (tmp_path / "comparison.html").write_text("a page of this command, as in sweeps/*")
    sweeps, _, left_out = read_folders([str(tmp_path / name) for name in ("comparison.html", "over", "on", "up")])
    assert [sweep.folder.name for sweep in sweeps] == ["over"]
    assert "a rung of the ladder that has not ended" in left_out[0]
    assert left_out[1].endswith("up is a rung of the ladder that was given up: why; it was left out")
    with pytest.raises(UsageError, match="has not ended"):
        read_folders([str(tmp_path / "on")])


def test_the_numbers_of_near_points_stand_apart_on_a_phone():
    near = [{"x": 2000.0 * (1 + 0.01 * i), "y": 900.0 / (1 + 0.02 * i)} for i in range(8)]
    points = [*near, {"x": 1e6, "y": 890.0}]
    points.sort(key=lambda p: -p["y"])
    domain = (1.0, 1e8)
    _place_labels(points, domain)
    assert [p["number"] for p in points] == list(range(1, 10))

    width = math.log(1e8)
    labels = [
        (
            290 * math.log(p["label_x"]) / width + {"right": 16, "left": -16, "apart": 0}[p["side"]],
            480 * math.log(domain[1] / p["label_y"]) / width,
        )
        for p in points
    ]
    for i, (x, y) in enumerate(labels):
        assert not any(abs(x - u) < 14.9 and abs(y - v) < 11.9 for u, v in labels[:i]), "no number touches another"
        own = points[i]
        assert abs(x - 290 * math.log(own["x"]) / width) < 60, "and each stays near its point"
        assert abs(y - 480 * math.log(domain[1] / own["y"]) / width) < 60
    far = next(p for p in points if p["x"] == 1e6)
    assert (far["label_y"], far["side"]) == (pytest.approx(far["y"]), "right"), "no number is near it"


def test_a_number_does_not_stand_on_another_point():
    """The second point lies where the number of the first would be."""
    points = [{"x": 2000.0, "y": 900.0}, {"x": 2000.0 * 1e8 ** (16 / 290), "y": 899.0}]
    _place_labels(points, (1.0, 1e8))
    assert [(p["side"], p["label_y"]) for p in points] == [("left", pytest.approx(900.0)), ("right", pytest.approx(899.0))]
    _place_labels(points[:1], (1.0, 1e8))
    assert points[0]["side"] == "right", "where nothing is in its way"


def test_the_page_needs_nothing_from_outside_and_trusts_no_text(tmp_path):
    hostile = "<script>alert(1)</script> @BODY@"
    record = write_sweep(tmp_path / "s", Planted(), hostile)
    page = tmp_path / "page.html"
    write_comparison(compare([record], []), page)
    text = page.read_text()
    markup = re.sub(r"(<script>).*?(</script>)", r"\1\2", text, flags=re.DOTALL)
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*(?:src|href)\s*=\s*['\"](?!data:)", markup)
    assert "<script>alert(1)" not in text
    assert text.count("<h1>") == 1


def test_the_frontier_shows_every_run_and_marks_the_missed(tmp_path):
    record = write_sweep(tmp_path / "s", Planted(s_min=60, b_crit=2000), plan=make_plan(most_observations=700_000))
    (sweep,) = compare([record], []).sweeps
    layers = frontier_figure(sweep).chart.to_dict()["layer"]
    by_mark = {layer["mark"]["type"] + layer["mark"].get("shape", ""): layer["data"]["values"] for layer in layers}
    points = sum(len(row.frontier.points) for row in sweep.rows)
    assert len(by_mark["circle"]) + len(by_mark["pointtriangle-up"]) == points
    drawn = sorted(p["steps"] for p in by_mark["pointtriangle-up"])
    missed = sorted(p.observations / p.batch_size for row in sweep.rows for p in row.points if p.missed)
    assert drawn == pytest.approx(missed), "where it is known to have missed; the surface says nothing of it"
    assert missed
    for row in sweep.rows:  # without scatter every run lies on the curve, at the best rate of its size
        mine = [p for p in by_mark["circle"] if p["goal"] == f"goal {row.goal_label}"]
        expected = [row.s_min.value * (1 + row.measured.value / p["batch"]) for p in mine]
        assert np.median(np.abs(np.log([p["steps"] for p in mine]) - np.log(expected))) < 0.1
    last = next(p for p in by_mark["pointdiamond"] if p["goal"] == "goal 200")
    assert last["steps"] == pytest.approx(2 * sweep.rows[-1].s_min.value)
    assert last["observations"] == pytest.approx(2 * sweep.rows[-1].e_min.value)
    assert "optimizer steps to the goal, S" in str(frontier_figure(sweep).chart.to_dict())
    of_iterations = replace(sweep, rows=tuple(replace(row, inner_steps=12) for row in sweep.rows))
    figure = frontier_figure(of_iterations)
    assert "optimizer steps" not in figure.title + str(figure.chart.to_dict())
    assert "iterations to the goal, S" in str(figure.chart.to_dict())


def test_captions_name_only_what_is_drawn(tmp_path):
    (sweep,) = compare([write_sweep(tmp_path / "s", Planted(), plan=make_plan(seeds=1, goals=(100.0, 200.0)))], []).sweeps
    lost = [replace(row, frontier=None, measured=Estimate(None, None, "unknown")) for row in sweep.rows]
    for rows, is_fitted in ((sweep.rows, True), (tuple(lost), False)):
        assert ("Black diamonds" in return_figure(replace(sweep, rows=rows)).note) is is_fitted
        assert ("Line: the best rate" in rate_figure(replace(sweep, rows=rows)).note) is is_fitted
    for rows, said in (
        ((lost[0], sweep.rows[1]), "to 100, which has no surface, with"),
        ((*lost, sweep.rows[1]), "to 100, 200, which have no surface, with"),
    ):
        assert said in frontier_figure(replace(sweep, rows=rows)).note


def test_the_interval_of_a_measured_figure_is_drawn_whole(tmp_path):
    """The axis of return ends near what is measured, and cut the interval of B_crit at its edge; an open end stays there."""
    (sweep,) = compare([write_sweep(tmp_path / "s", Planted(scatter=0.1), plan=make_plan(seeds=1))], []).sweeps
    for interval, whole in (((0.28, 90_000.0), True), ((0.28, math.inf), False)):
        rows = [replace(row, measured=Estimate(1000.0, interval)) for row in sweep.rows]
        drawn = [
            point
            for layer in return_figure(replace(sweep, rows=tuple(rows))).chart.to_dict()["layer"]
            for point in layer["data"]["values"]
            if point["series"].startswith("B_crit")
        ]
        assert {point["from"] for point in drawn} == {0.28}
        assert ({point["to"] for point in drawn} == {90_000.0}) is whole


def test_tables_say_what_is_counted_where_a_step_is_an_iteration(whole):
    comparison, *_ = whole
    row = replace(comparison.sweeps[0].rows[-1], measured=Estimate(812.0, (410.0, 1480.0)), s_min=Estimate(11.6, (7.99, 16.1)))
    several = replace(row, inner_steps=12)
    assert say_measured(row) == ("812 [410, 1,480]", "11.6 [7.99, 16.1]")
    assert say_measured(several) == ("812 [410, 1,480] an iteration", "11.6 [7.99, 16.1] iterations")
    nothing = Estimate(None, None, "no frontier")
    assert say_measured(replace(several, measured=nothing, s_min=nothing)) == ("not identifiable", "unknown")
    page = _main_table([several]).replace("\N{NO-BREAK SPACE}", " ")
    assert ">812 [410, 1,480] an iteration" in page
    assert ">11.6 [7.99, 16.1] iterations<" in page
    measured = terminal_tables(replace(comparison, rows=(several,)))[0]
    b_crit, s_min = (next(iter(column.cells)).removeprefix("! ") for column in measured.columns[1:3])
    assert (b_crit, s_min) == ("812\n[410, 1,480]\nan iteration", "11.6\n[7.99, 16.1]\niterations")


def test_learning_rates_are_shown_over_the_observations_of_what_is_counted(tmp_path):
    """With several optimizer steps an iteration, B is the iteration's batch and S counts iterations."""
    (sweep,) = compare([write_sweep(tmp_path / "s", Planted(), plan=make_plan(seeds=1))], []).sweeps
    drawn = str(rate_figure(sweep).chart.to_dict())
    assert "batch size (observations per optimizer step)" in drawn
    assert "optimizer steps, relative to the best rate" in drawn
    figure = rate_figure(replace(sweep, rows=tuple(replace(row, inner_steps=12) for row in sweep.rows)))
    drawn = str(figure.chart.to_dict())
    assert "batch size (observations per iteration)" in drawn
    assert "iterations, relative to the best rate" in drawn
    assert "optimizer step" not in figure.title + figure.note + drawn


def test_learning_rates_are_coloured_by_their_steps_relative_to_the_fastest(tmp_path):
    """Planted: e^(0.08 k²) times the steps, k half octaves from the best rate, of which -4, -2, 0 and 2 are tried."""
    plan = make_plan(seeds=1, noise_runs=0, goals=(200.0,))
    (sweep,) = compare([write_sweep(tmp_path / "s", Planted(), plan=plan)], []).sweeps
    tried, best = (layer["data"]["values"] for layer in rate_figure(sweep).chart.to_dict()["layer"])
    for size in plan.batch_sizes:
        mine = sorted((p for p in tried if p["batch"] == size), key=lambda p: p["rate"])
        slower = [math.exp(1.28), math.exp(0.32), 1.0, math.exp(0.32)]
        assert [p["relative"] for p in mine] == pytest.approx(slower, rel=1e-3)
        assert [p["steps"] for p in mine] == pytest.approx([150 * (1 + 1440 / size) * factor for factor in slower], rel=1e-3)
    assert [p["batch"] for p in best] == list(plan.batch_sizes)
    assert [p["rate"] for p in best] == pytest.approx([plan.learning_rate(size) for size in plan.batch_sizes], rel=0.1)


def test_sizes_without_which_b_crit_is_not_identifiable_are_named(tmp_path):
    comparison = compare([write_sweep(tmp_path / "s", Planted(), plan=make_plan(seeds=1, goals=(200.0,)))], [])
    (sweep,), (row,) = comparison.sweeps, comparison.rows
    frontier = copy.copy(row.frontier)  # the fit itself is remembered for others
    vars(frontier)["leave_one_size_out"] = {32.0: 21.0, 128.0: None, 512.0: 232.0, 2048.0: None}
    rows = (replace(row, frontier=frontier),)
    write_comparison(replace(comparison, rows=rows, sweeps=(replace(sweep, rows=rows),)), tmp_path / "page.html")
    assert "21.0 … 232; not identifiable without 128, 2,048" in shown_text(tmp_path / "page.html")


def test_several_sweeps_fold_away_and_one_does_not(several, tmp_path):
    """The name and B_crit of each stay in sight; without B_crit the name alone. A page of one sweep has nothing to fold."""
    comparison = compare(several, [])
    write_comparison(comparison, tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text().partition("<script>")[0]
    titles = [html.unescape(title) for title in re.findall(r"<details class='fold' open><summary>(.*?)</summary>", page)]
    shown = titles[titles.index("Every loss and every average") + 1 :]
    assert len(shown) == 2 * len(comparison.sweeps)  # what there is to see of each, then how it was made
    for sweep, title in zip(comparison.sweeps, shown, strict=False):
        measured = [row for row in sweep.rows if row.measured.value is not None]
        said = f", goal {measured[-1].goal_label}: B_crit {measured[-1].measured.say()}" if measured else ""
        assert title == sweep.name + said
    assert page.count("<details") == page.count("</details>")
    write_comparison(compare(several[:1], []), tmp_path / "one.html")
    assert "class='fold'" not in (tmp_path / "one.html").read_text().partition("<script>")[0]


def test_the_ladder_clips_what_is_open_and_keeps_the_papers_values(several, tmp_path):
    rows = compare(several, []).rows
    layers = ladder_figure(rows).chart.to_dict()["layer"]
    drawn = [p for layer in layers for p in layer["data"]["values"]]
    assert {p["task"] for p in drawn if "x1" in p and "goal" not in p} >= {task.name for task in PAPER if task.measured}
    assert {p["task"] for p in drawn if p.get("mark") == "above"} == {"atari/pong"}
    assert all(math.isfinite(p[end]) for p in drawn if "x1" in p for end in ("x1", "x2", "y1", "y2"))
    assert ladder_figure(compare([], [make_run(tmp_path / "run")]).rows) is None


def test_a_goal_whose_prediction_is_not_resolved_is_drawn_at_its_limit(several):
    """It is where the noise scale is too large to resolve: left out, the other goals would look like agreement."""
    (row, *_) = (row for row in compare(several, []).rows if row.measured.value is not None)
    unresolved = Prediction("policy", "cumulative", Estimate(None, (500.0, math.inf), "open"), 8, 8, None)
    figure = ladder_figure([replace(row, predictions=(unresolved,))])
    (points,) = ([*layer["data"]["values"]] for layer in figure.chart.to_dict()["layer"] if layer["mark"]["type"] == "point"
                 and layer["encoding"].get("shape") == {"value": "triangle-right"})  # fmt: skip
    assert [(p["x"], p["y"]) for p in points] == [(500.0, row.measured.value)]
    assert "Triangle to the right: the prediction is not resolved" in figure.note
    nothing = replace(unresolved, scale=Estimate(None, (0.0, math.inf), "open"))
    assert ladder_figure([replace(row, predictions=(nothing,))]) is None


def test_one_task_is_no_conclusion(tmp_path):
    one = write_sweep(tmp_path / "s", Planted(predicted=0.5))
    said = say_conclusion(rungs_of(compare([one], [])))
    pattern = (
        r"One task is no conclusion; here, to a return of 200, the noise scale that predicts it is (\S+) \[(\S+), (\S+)\] times "
        r"B_crit\."
    )
    factor, low, high = map(float, re.fullmatch(pattern, said).groups())
    assert factor == pytest.approx(0.5, rel=0.05)
    assert low < factor < high
    other = write_sweep(tmp_path / "t", Planted(), "minatar/asterix")
    assert say_conclusion(rungs_of(compare([one, other], []))).startswith("No verdict yet: no sweep is scored.")
    lost = write_sweep(tmp_path / "v", Planted(), "minatar/freeway")
    (row,) = [rung.row for rung in rungs_of(compare([lost], []))]
    few = replace(row, predictions=(Prediction(*PRIMARY, Estimate(100.0, (50.0, 200.0)), resolved=7, runs=8, gain=None),))
    plain, missed = rungs_of(compare([one, lost], []))
    rungs = [plain, replace(missed, row=few, left_out=None)]
    said = say_conclusion(rungs)
    assert "Noise runs that missed the goal are left out (v): with them the verdict may be another." in said
    assert "several optimizer steps" not in said
    said = say_conclusion([plain, replace(missed, row=replace(few, inner_steps=12), left_out=None)])
    assert (
        "several optimizer steps (v) the noise scale is taken for the iteration's: if it were a mini-batch's, the verdict" in said
    )
    silent = write_sweep(tmp_path / "u", Planted(), plan=make_plan(noise_runs=0))
    assert say_conclusion(rungs_of(compare([silent], []))).endswith(
        "; here, to a return of 200, the predicted figure is not resolved."
    )
    both = say_conclusion(rungs_of(compare([one, silent], [])))
    assert both.startswith("One task is no conclusion; here, for classic/cartpole (u) to a return of 200, ")
    none = [replace(rung, left_out="B_crit has no interval") for rung in rungs]
    assert say_conclusion([none[0], replace(none[1], left_out=None, role="control")]) == (
        "No verdict yet: no sweep is scored. s: B_crit has no interval; v: its role is control."
    )


def test_the_command_uses_the_good_and_says_what_was_left_out(tmp_path, capsys):
    write_sweep(tmp_path / "good", Planted(scatter=0.1))
    shutil.copytree(tmp_path / "good", tmp_path / "old")
    manifest = json.loads((tmp_path / "old" / "sweep.json").read_text())
    (tmp_path / "old" / "sweep.json").write_text(json.dumps({**manifest, "schema": 99}))
    with (tmp_path / "good" / "results.jsonl").open("a") as file:
        file.write("nonsense\n")
    make_run(tmp_path / "run")
    options = CompareOptions(
        folders=tuple(str(tmp_path / name) for name in ("good", "old", "run", "good")),
        out=str(tmp_path / "page.html"),
        csv=str(tmp_path / "t.csv"),
    )
    assert run_compare(options, Console(width=120)) == 0
    printed = capsys.readouterr().out
    (b_crit,) = re.findall(r"^200\.0,|classic/cartpole,classic/cartpole,[^,]*,200\.0,([\d.]+)", (tmp_path / "t.csv").read_text())
    assert float(b_crit) == pytest.approx(1440, rel=0.5)
    assert str(Estimate(float(b_crit), None)) in printed
    assert "schema 99" in printed
    assert "is damaged and was left out" in printed
    assert "schema 99" in shown_text(tmp_path / "page.html")
    with pytest.raises(UsageError, match="schema 99"):
        read_folders([str(tmp_path / "old")])


@pytest.mark.parametrize(
    ("folders", "complaint"),
    [((), "no sweep and no run was named"), (("nowhere",), "does not exist"), (("empty",), "holds neither a sweep nor a run")],
)
def test_bad_folders(tmp_path, monkeypatch, folders, complaint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=complaint) as error:
        run_compare(CompareOptions(folders=folders))
    assert "\n" not in str(error.value)


def test_other_bad_input(tmp_path):
    write_sweep(tmp_path / "empty", Planted(), most=0)
    write_sweep(tmp_path / "s", Planted())
    with pytest.raises(UsageError, match="no result to compare"):
        run_compare(CompareOptions(folders=(str(tmp_path / "empty"),)))
    with pytest.raises(UsageError):
        run_compare(CompareOptions(folders=(str(tmp_path / "s"),), out=None, figures="x"))
    comparison = compare([write_sweep(tmp_path / "t", Planted())], [])
    blocked = tmp_path / "s" / "sweep.json" / "x"
    with pytest.raises(UsageError, match="--out"):
        write_comparison(comparison, blocked)
    with pytest.raises(UsageError, match="--figures"):
        write_comparison(comparison, tmp_path / "page.html", figures=blocked)


def test_a_single_run_is_compared_by_its_ratio_of_sums(tmp_path):
    run = add_joint(make_run(tmp_path / "run"))
    write_comparison(compare([], [run]), tmp_path / "page.html")
    suggested = str(noise_of_sums(run, "joint", "rollout").noise_scale)
    text = (tmp_path / "page.html").read_text().replace("\xa0", " ")
    (cells,) = re.findall(r"<td[^>]*>ratio of sums over the run</td>(.*?)</tr>", text)
    assert f"<td data-label='joint'>{suggested}</td>" in cells


def test_the_figure_of_one_task_is_of_the_prediction_that_the_sentence_is_about(tmp_path):
    """Umbrella's value loss alone would lie on y = x, where the prediction named beforehand is seventeen times too large."""
    published = Path(__file__).parents[3] / "results" / "ladder" / "umbrella"
    write_comparison(compare([read_sweep(published)], []), tmp_path / "one.html")
    text = (tmp_path / "one.html").read_text()
    assert "One task is no conclusion; here, to a return of 0.8, the noise scale that predicts it is 17.0 [" in text
    assert text.count("One point per sweep, at its last goal") == 1
    assert "of the loss that is chosen below" not in text


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path):
    runs = [make_run(tmp_path / place / "job") for place in "ab"]
    comparison = compare([], runs)
    assert [row.name for row in comparison.rows] == [f"atari/pong (run {run.folder})" for run in runs]
    write_comparison(comparison, tmp_path / "page.html")
    titles = re.findall(r"<summary>(.*?)</summary>", (tmp_path / "page.html").read_text())
    assert [f"{run.folder} (single run)" in titles for run in runs] == [True, True]


def test_best_rates_are_those_at_the_valid_batch_sizes(tmp_path):
    """Of which the surface is: steps in which an environment is reset are no observations."""
    record = write_sweep(tmp_path / "s", Planted(), change=lambda trial, run: replace(run, observations=run.observations // 2))
    comparison = compare([record], [])
    row = comparison.rows[-1]
    valid = {point.run.batch_size: point.batch_size for point in row.points}
    rates = [f"{row.frontier.best_rate(valid[size]):.2g}" for size in row.batch_sizes]
    assert rates != [f"{row.frontier.best_rate(size):.2g}" for size in row.batch_sizes], "the case would show it"
    write_comparison(comparison, tmp_path / "page.html")
    (cells,) = re.findall(r"<td>best rate</td>(.*?)</tr>", (tmp_path / "page.html").read_text())
    assert re.findall(r">([^<>]+)</td>", cells) == rates
    assert [f"{float(row.learning_rates[0]):.2g}", f"{float(row.learning_rates[1]):.2g}"] == [rates[0], rates[-1]]


def test_sweeps_without_b_crit_are_drawn_each_by_itself(tmp_path):
    """Of two sizes alone no surface is fitted, so the caption of such a chart has neither surface nor curves."""
    plan = make_plan(batch_sizes=(32, 128), seeds=1)
    names = ("minatar/breakout", "minatar/asterix")
    comparison = compare([write_sweep(tmp_path / name[-3:], Planted(scatter=0.1), name, plan, most=2) for name in names], [])
    assert not any(row.frontier and row.frontier.fitted for row in comparison.rows), "the case would show it"
    write_comparison(comparison, tmp_path / "page.html")
    text = shown_text(tmp_path / "page.html")
    assert text.count("Optimizer steps against observations") == 0
    assert text.count("Each point is one run, with the steps that it took; ") == len(names)
    assert "Diamond" not in text


def test_a_question_without_an_answer_is_not_asked(tmp_path):
    """Where no run reached a goal there is no statement and no chart."""
    missed = write_sweep(tmp_path / "g", Planted(), "minatar/space_invaders", make_plan(most_observations=64))
    comparison = compare([missed], [])
    assert not rungs_of(comparison), "the case would show it"
    write_comparison(comparison, tmp_path / "page.html")
    assert "Does the noise scale predict" not in shown_text(tmp_path / "page.html")


def test_a_noise_scale_that_suggests_nothing_is_not_shown_as_a_prediction(tmp_path):
    comparison = compare([], [add_joint(make_run(tmp_path / "run", signal=0.0))])
    write_comparison(comparison, tmp_path / "page.html")
    text = shown_text(tmp_path / "page.html")
    assert "does not say yet how many observations" in text
    assert "of the joint loss, ratio of sums" not in text
    assert "not resolved: mostly the value function's" in html.unescape(text)
    assert "unless that is mostly the value function's" in html.unescape(text)


def test_evaluations_share_of_a_sweep_is_of_all_of_its_steps(tmp_path):
    """Three times as many steps as were learned from are three quarters of all."""
    (sweep,) = compare([write_sweep(tmp_path / "s", Planted(scatter=0.1), "minatar/breakout")], []).sweeps
    runs = {one.id: replace(one, observations=1000, evaluation_steps=3000) for one in sweep.runs}
    record = replace(sweep.record, results=runs)
    table = _cost_table([replace(sweep, record=record)])
    assert "of all steps" in table
    assert "75.0%" in table


def test_a_page_says_by_which_code_and_commands_its_runs_were_made(tmp_path):
    """The manifest of a sweep knows the first command and commit, that of a run those of its last session."""
    record = write_sweep(tmp_path / "s", Planted(scatter=0.1), plan=make_plan(seeds=1, noise_runs=0))
    results = {id: replace(one, commit="aaa" if k < 5 else "bbb") for k, (id, one) in enumerate(record.results.items())}
    extended = {**record.manifest, "extensions": [{"at": "2026", "command": ["rlscale", "sweep", "a b", "--seeds", "2"]}]}
    run = make_run(tmp_path / "run")
    sessions = [{**run.manifest["segments"][0], "commit": sha, "command": ["rlscale", "train", sha]} for sha in ("ccc", "ddd")]
    run = replace(run, manifest={**run.manifest, "segments": sessions, "command": sessions[1]["command"], "commit": "ddd"})
    write_comparison(compare([replace(record, results=results, manifest=extended)], [run]), tmp_path / "page.html")
    text = re.sub(r"<[^>]+>", "", html.unescape((tmp_path / "page.html").read_text()))
    assert f"aaa (5 runs), bbb ({len(results) - 5} runs)" in text
    assert "; then: rlscale sweep 'a b' --seeds 2" in text
    assert "rlscale train ccc; then: rlscale train ddd" in text
    assert "ccc; then: ddd" in text
