"""The page: self-contained, true to the record, and honest about what is not resolved."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import vl_convert
from run_records import add_joint, charts_of, make_run

from rlscale.analysis.summary import diagnostics, final_value, noise_of_sums, noise_over_run, noise_windows, returns, time_shares
from rlscale.benchmarks.commands.report import write_page
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.noise import pool
from rlscale.records.run import read_run
from rlscale.report import run_charts
from rlscale.report.chart_style import shown
from rlscale.report.run_charts import diagnostic_chart, noise_chart, return_chart, speed_chart
from rlscale.report.run_page import write_report


def test_the_page_needs_nothing_from_outside_and_trusts_no_text(tmp_path):
    page = tmp_path / "page.html"
    write_report([make_run(tmp_path / "run")], page)
    text = page.read_text()
    markup = re.sub(r"(<script>).*?(</script>)", r"\1\2", text, flags=re.DOTALL)
    outside = [
        tag
        for tag in re.findall(r"<(?:script|link|img|iframe)[^>]*>", markup)
        if re.search(r"(?:src|href)\s*=\s*['\"](?!data:)", tag)
    ]
    assert outside == []
    assert "<script>alert(1)" not in text
    assert "&lt;b&gt;" in text
    assert "@" not in re.sub(r"<script>.*?</script>|<style>.*?</style>", "", text, flags=re.DOTALL)


def test_windows_pool_the_stored_statistics(tmp_path):
    record = make_run(tmp_path / "run")
    windows = noise_windows(record, "policy", "rollout")
    assert [w.updates for w in windows] == [8] * 5
    first = [statistics for _, statistics in record.noise("policy")[:8]]
    assert windows[0].noise == pool(first)
    assert windows[0].observations == np.mean([128 * (i + 1) for i in range(8)])
    assert noise_over_run(record, "policy", "rollout").updates == 40
    assert noise_over_run(record, "value", "rollout") is None


def test_resolved_and_not_resolved_are_drawn_differently(tmp_path):
    for resolved in (True, False):
        page = tmp_path / f"{resolved}.html"
        write_report([make_run(tmp_path / f"run-{resolved}", signal=0.8 * resolved)], page)
        noise = next(c for c in charts_of(page) if "noise scale" in json.dumps(c) and "layer" in c)
        marks = {layer["mark"]["type"] for layer in noise["layer"]}
        assert marks == ({"area", "line", "rule"} if resolved else {"rule", "point"})
        assert '"type": "log"' in json.dumps(noise)
        assert ("not resolved" in page.read_text().split("<script>")[0].split("class='note'")[0]) != resolved


def test_of_noise_that_does_not_stand_out_an_upper_bound_is_drawn_and_of_none_seen_nothing(tmp_path, monkeypatch):
    measured = noise_windows(make_run(tmp_path / "run"), "policy", "rollout")
    nothing = Estimate(None, (0.0, 0.0), "tr Σ is not above zero")
    assert shown(nothing)["mark"] == "nothing"
    intervals = [(0.0, 0.0), (0.0, 40.0), (0.0, 0.0)]
    lost = [
        replace(w, noise=replace(w.noise, b_simple=None, interval=i, reason=""))
        for w, i in zip(measured, intervals, strict=False)
    ]
    monkeypatch.setattr(run_charts, "noise_windows", lambda *about: [*lost, *measured[3:]])
    layers = noise_chart(read_run(tmp_path / "run")).to_dict()["layer"]
    (triangle,) = [part for part in layers if part["mark"]["type"] == "point"]
    assert triangle["mark"]["shape"] == "triangle-down"
    assert [point["to"] for point in triangle["data"]["values"]] == [40.0]
    assert sorted({p["observations"] for part in layers for p in part["data"]["values"]}) == [
        w.observations for w in (lost[1], *measured[3:])
    ]


def test_axes_are_labelled_number_by_number(tmp_path):
    record = make_run(tmp_path / "run", signal=8)
    labels = re.findall(r">([^<>]+)</text>", vl_convert.vegalite_to_svg(return_chart([record], ["run"]).to_dict()))
    assert {"0", "1k", "5k"} <= set(labels)
    assert "0k" not in labels
    labels = re.findall(r">([^<>]+)</text>", vl_convert.vegalite_to_svg(noise_chart(record).to_dict()))
    assert {"0.1", "0.5"} <= set(labels)


def test_returns_are_means_over_a_hundred_episodes(tmp_path):
    points = returns(make_run(tmp_path / "run"))
    assert points[0]["return"] == 0
    assert points[-1]["episodes"] == 102
    assert points[-1]["return"] == pytest.approx(np.mean(np.arange(6, 40)))


def test_a_goal_is_drawn_where_the_return_came_to_it(tmp_path):
    """Returns of FrozenLake are between 0 and 1."""
    run = make_run(tmp_path / "run")
    best = max(point["return"] for point in returns(run))
    run.manifest["task"]["goals"] = [best, best + 0.5]
    rules = [layer for layer in return_chart([run], ["run"]).to_dict()["layer"] if layer["mark"]["type"] == "rule"]
    assert [layer["data"]["values"] for layer in rules] == [[{"goal": best}]]


def test_a_goal_is_drawn_where_a_run_of_its_own_task_came_to_it(tmp_path):
    """Another task's returns may be a hundred times as large."""
    low, high = make_run(tmp_path / "low"), make_run(tmp_path / "high")
    best = max(point["return"] for point in returns(low))
    larger = rewritten(high, lambda row: row | {"return_mean": row["return_mean"] and 100 * row["return_mean"]})
    low.manifest["task"]["goals"], larger.manifest["task"]["goals"] = [best / 2, best + 0.5], []
    rules = [
        layer for layer in return_chart([low, larger], ["low", "high"]).to_dict()["layer"] if layer["mark"]["type"] == "rule"
    ]
    assert [layer["data"]["values"] for layer in rules] == [[{"goal": best / 2}]]


def test_of_several_runs_every_answer_names_its_own(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("first", "second")]
    said = write_report(runs, tmp_path / "page.html")
    assert [sentence.split(": ")[0] for sentence in said] == ["atari/pong (run first)", "atari/pong (run second)"]


def test_a_run_that_is_named_twice_is_shown_once(tmp_path, capsys):
    folder = make_run(tmp_path / "run").folder
    (tmp_path / "link").symlink_to(folder)
    write_page([str(folder), f"{folder}/", str(tmp_path / "link")])
    assert capsys.readouterr().out.count("atari/pong: a mean return") == 1
    assert "<title>atari/pong: run" in (folder / "report.html").read_text()


@pytest.mark.parametrize(("values", "label"), [([0.686], "0.686"), ([-0.0105, -0.0105], "−0.0105")])
def test_the_axis_of_a_single_value_has_that_value(values, label):
    points = [{"observations": 100.0 * (i + 1), "value": value} for i, value in enumerate(values)]
    svg = vl_convert.vegalite_to_svg(diagnostic_chart("entropy", points).to_dict())
    assert label in re.findall(r">([^<>]+)</text>", svg)


def test_time_shares_add_up(tmp_path):
    shares = time_shares(make_run(tmp_path / "run"))
    assert shares == pytest.approx({"sampling": 20, "transfer": 4, "learning": 36, "noise": 4})


def test_while_sampling_overlaps_learning_what_the_learner_waited_for_it_counts(tmp_path):
    """So the parts add up to the run. RLlib's and Stable-Baselines3's rows have no transfer either, and do not overlap."""
    run = make_run(tmp_path / "run", transfer=None)
    assert time_shares(run) == pytest.approx({"sampling": 20, "transfer": 0, "learning": 36, "noise": 4})
    overlapping = rewritten(run, lambda row: row | {"sampling_seconds": 2.0, "waiting_seconds": 1.0})
    assert time_shares(overlapping) == pytest.approx({"sampling": 40, "transfer": 0, "learning": 36, "noise": 4})
    assert sum(time_shares(overlapping).values()) == pytest.approx(overlapping.rows[-1]["seconds"])
    write_report([overlapping], tmp_path / "page.html")
    assert "what the learner waited" in (tmp_path / "page.html").read_text()


def test_several_runs_and_a_run_without_episodes(tmp_path):
    page = tmp_path / "page.html"
    write_report([make_run(tmp_path / "a"), make_run(tmp_path / "b", episodes=0)], page)
    assert "2 runs" in page.read_text()
    assert len(charts_of(page)) == 2 + 2 * 3


def test_an_empty_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no finished iteration"):
        write_report([make_run(tmp_path / "run", iterations=0)], tmp_path / "page.html")


def test_a_page_that_cannot_be_written(tmp_path):
    record = make_run(tmp_path / "run")
    with pytest.raises(UsageError, match="--out"):
        write_report([record], tmp_path / "run" / "manifest.json" / "page.html")


@pytest.mark.parametrize(("transfer", "rate"), [(0.1, 128 / 1.6), (None, 128 / 2.0)])
def test_where_sampling_and_learning_overlap_the_whole_is_not_the_sum_of_its_parts(tmp_path, transfer, rate):
    """A row's parts take 0.5 + 0.1 + 1 seconds, the iteration 2."""
    page = tmp_path / "page.html"
    write_report([make_run(tmp_path / "run", transfer=transfer)], page)
    points = [point for chart in charts_of(page) for point in chart.get("data", {}).get("values", []) if "rate" in point]
    assert {round(p["rate"], 6) for p in points if p["part"] == "end to end"} == {round(rate, 6)}


FIGURES = ("policy loss", "value loss", "entropy (nats)", "KL divergence (nats)", "clip fraction", "explained variance")


def rewritten(record, change):
    """The record with its rows changed."""
    rows = [change(dict(row)) for row in record.rows]
    (record.folder / "iterations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(record.folder)


def test_losses_and_diagnostics_are_drawn_as_recorded(tmp_path):
    def with_figures(row):
        i = row["iteration"]
        more = {"policy_loss": -0.01 * i, "value_loss": 2.0 + i, "entropy": 1.5, "approx_kl": 0.01, "clip_fraction": 0.1}
        return row | more | {"explained_variance": None if i == 3 else 0.5}

    page = tmp_path / "page.html"
    write_report([rewritten(make_run(tmp_path / "run"), with_figures)], page)
    axes = [(chart.get("encoding", {}).get("y", {}), chart) for chart in charts_of(page)]
    drawn = {y["title"]: chart["data"]["values"] for y, chart in axes if y.get("field") == "value"}
    assert set(FIGURES) <= set(drawn)
    assert [point["value"] for point in drawn["value loss"]] == [2.0 + i for i in range(40)]
    assert [point["observations"] for point in drawn["value loss"]] == [128 * (i + 1) for i in range(40)]
    assert len(drawn["explained variance"]) == 39
    text = re.sub(r"<[^>]+>", "", page.read_text().split("<script>")[0])
    assert "value loss: 39.5 at the end half the mean squared error" in text, "of iterations 36 to 39: 38, 39, 40 and 41"
    assert "entropy: 1.5 nats at the end of the distribution" in text
    for name in FIGURES:
        assert f"{name.partition(' (')[0]}: " in text
    assert "Losses and diagnostics" in page.read_text()


def test_stretches_of_a_long_run_are_means(tmp_path):
    record = rewritten(make_run(tmp_path / "run", iterations=400), lambda row: row | {"entropy": float(row["iteration"])})
    (entropy,) = diagnostics(record).values()
    assert len(entropy) <= 150
    assert entropy[0] == {"observations": 128 * 3, "value": 1.0}
    assert entropy[-1] == {"observations": 128 * 400, "value": 399.0}


def test_the_value_at_the_end_is_that_of_the_last_tenth(tmp_path):
    def with_entropy(row):
        return row | {"entropy": None if row["iteration"] == 39 else float(row["iteration"])}

    record = rewritten(make_run(tmp_path / "run"), with_entropy)
    assert final_value(record, "entropy") == np.mean([36, 37, 38])
    early = rewritten(record, lambda row: row | {"entropy": 3.0 if row["iteration"] == 5 else None})
    assert final_value(early, "entropy") == 3.0


def test_lost_workers_are_on_the_page(tmp_path):
    page = tmp_path / "page.html"
    loss = {"what": "hung", "actor": 1, "groups": [1, 3], "fragments": 2, "replaced_by": 4, "recovery_seconds": 2.34}

    def with_losses(row):
        return row | {"losses": [loss, {**loss, "what": "died", "replaced_by": None}] if row["iteration"] == 7 else []}

    record = make_run(tmp_path / "run")
    write_report([record], page)
    assert "Lost workers" not in page.read_text()
    assert "not recorded" in page.read_text()
    record = rewritten(record, with_losses)
    write_report([record], page)
    text = re.sub(r"<[^>]+>", " ", page.read_text().split("<script>")[0])
    assert re.search(r"7\s+1,024\s+1\s+hung\s+1, 3\s+2\s+worker 4\s+2.3 s", text)
    assert re.search(r"died\s+1, 3\s+2\s+the others\s+2.3 s", text)
    assert len(re.findall(r"lost workers\s+2\s", text)) == 2, "on the first screen as well"


def test_the_ratio_of_sums_is_on_the_page_as_the_suggestion(tmp_path):
    run = add_joint(make_run(tmp_path / "run"))
    write_report([run], tmp_path / "report.html")
    suggested = str(noise_of_sums(run, "joint", "rollout").noise_scale)
    assert suggested != str(noise_over_run(run, "joint", "rollout").noise_scale)
    text = (tmp_path / "report.html").read_text()
    (cells,) = re.findall(r"<td[^>]*>the same as a ratio of sums: the suggestion</td>(.*?)</tr>", text)
    assert f"<td data-label='whole run'>{suggested}</td>" in cells
    assert f"{suggested}; of the joint loss, ratio of sums" in text


def test_where_nothing_is_suggested_no_figure_is_called_the_suggestion(tmp_path):
    """The joint loss's noise scale is resolved, and mostly the value function's."""
    (answer,) = write_report([add_joint(make_run(tmp_path / "run", signal=0.0))], tmp_path / "report.html")
    assert "does not say yet how many observations" in answer
    text = (tmp_path / "report.html").read_text()
    assert "the suggestion" not in text
    assert re.search(r"<td[^>]*>the same as a ratio of sums</td>", text)
    assert "<dt>predicted batch size</dt><dd>not resolved: mostly the value function&#x27;s</dd>" in text


def test_the_mean_over_a_run_weighs_a_dense_beginning_no_more_than_the_rest(tmp_path):
    """Of measurements in iterations 0 to 7 and then in every fourth, those count that stand four apart."""

    def thinned(row):
        i = row["iteration"]
        return row if i < 8 or i % 4 == 0 else row | {"noise": []}

    record = rewritten(make_run(tmp_path / "run"), thinned)
    whole = noise_over_run(record, "policy", "rollout")
    assert whole.updates == 10
    even = rewritten(make_run(tmp_path / "even"), lambda row: row if row["iteration"] % 4 == 0 else row | {"noise": []})
    assert whole == noise_over_run(even, "policy", "rollout")


@pytest.mark.parametrize(
    ("batch_size", "said"),
    [(None, "at 144 observations collected for each."), ("adaptive", "at the observations collected for it, 32.0 to 256.")],
)
def test_the_batches_by_which_the_steps_of_a_run_count_are_named(tmp_path, batch_size, said):
    """Of two epochs: twenty iterations of 64 observations and twenty of 512."""
    run = make_run(tmp_path / "run")
    run.manifest["config"]["rollout"]["batch_size"] = batch_size
    observations = 0
    for i, row in enumerate(run.rows):
        observations += 64 if i < 20 else 512
        row |= {"batch_observations": 64 if i < 20 else 512, "observations": observations, "optimizer_steps": 2 * (i + 1)}
    write_report([run], tmp_path / "page.html")
    assert f"a step counts by how far it comes {said}" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("iterations", "pointed"), [(1, True), (6, False)])
def test_one_point_is_a_point(tmp_path, iterations, pointed):
    """A line through one point is not drawn."""
    run = make_run(tmp_path / "run", iterations=iterations)
    points = [{"observations": 100.0 * (i + 1), "value": 1.0} for i in range(iterations)]
    for chart in (return_chart([run], ["run"]), speed_chart(run), diagnostic_chart("entropy", points)):
        drawn = chart.to_dict()
        lines = [part["mark"] for part in drawn.get("layer", [drawn]) if part["mark"]["type"] == "line"]
        assert [bool(mark.get("point")) for mark in lines] == [pointed]
