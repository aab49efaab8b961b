"""From sweeps to rows: planted frontiers come out, the right runs are used, and what is left out is said."""

import copy
import csv
import importlib
import json
import math
from dataclasses import replace

import pytest
from planted import Planted, make_plan, read_again, write_sweep
from run_records import make_run

from rlscale.analysis.comparison import compare
from rlscale.analysis.export import to_csv, to_parquet
from rlscale.analysis.predictions import geometric_mean, ratio
from rlscale.analysis.verdict import agreement_of
from rlscale.crossing import Evaluated
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.records.trial import GoalCrossing
from rlscale.report.words import flags, warnings

LAST = {"goals": (200.0,)}  # for tests that look at the last goal alone


def row_of(record, goal=200.0):
    return next(row for row in compare([record], []).rows if row.goal == goal)


def test_a_planted_frontier_comes_out(tmp_path):
    planted = Planted(b_crit=1440, s_min=150, predicted=0.5)
    rows = compare([write_sweep(tmp_path / "s", planted)], []).rows
    assert [row.goal for row in rows] == [50, 100, 200]
    for j, row in enumerate(rows):
        s_min, b_crit = planted.frontier(j, 3)
        assert row.measured.value == pytest.approx(b_crit, rel=0.05)
        assert row.s_min.value == pytest.approx(s_min, rel=0.05)
        assert row.e_min.value == pytest.approx(s_min * b_crit, rel=0.05)
        assert row.predicted("policy", "cumulative").value == pytest.approx(0.5 * b_crit)
        assert row.predicted("value", "goal").value == pytest.approx(0.1 * b_crit)
        assert row.ratio("policy", "cumulative").value == pytest.approx(2, rel=0.05)
        assert row.prediction("policy", "cumulative").gain == pytest.approx(0.8)
        assert row.prediction("policy", "start").gain is None
        assert row.prediction("policy", "cumulative").runs == 3
        assert row.prediction_batch == 128, "the size nearest the joint noise scale, 0.15 times B_crit at the last goal"
        assert row.batch_sizes == (32, 128, 512, 2048, 8192, 32768)
        assert row.frontier.residual < 0.05
        assert not row.provisional
    assert row.learning_rates == pytest.approx((make_plan().learning_rate(32), make_plan().learning_rate(32768)), rel=0.2)


def test_every_run_enters_whatever_its_rate_and_stage(tmp_path):
    record = write_sweep(tmp_path / "s", Planted(scatter=0.1))
    row = row_of(record)
    assert len(row.points) == len(row.frontier.points) == 6 * 4 * 2 + 3
    assert {(p.run.batch_size, p.run.learning_rate, p.run.seed) for p in row.points} == {
        (r.batch_size, r.learning_rate, r.seed) for r in record.results.values()
    }


def test_valid_observations_count_in_the_batch_too(tmp_path):
    """A tenth of all steps only reset an environment: B and B_crit are a tenth smaller, and the steps are the same."""

    def with_resets(trial, result):
        goals = tuple(replace(g, observations=g.observations and 0.9 * g.observations) for g in result.goals)
        return replace(result, observations=round(0.9 * result.observations), goals=goals)

    plain = row_of(write_sweep(tmp_path / "plain", Planted(), plan=make_plan(**LAST)))
    row = row_of(write_sweep(tmp_path / "resets", Planted(), plan=make_plan(**LAST), change=with_resets))
    assert row.measured.value == pytest.approx(0.9 * plain.measured.value, rel=1e-3)
    assert row.s_min.value == pytest.approx(plain.s_min.value, rel=1e-3)
    assert {round(p.batch_size / p.run.batch_size, 3) for p in row.points} == {0.9}


@pytest.mark.parametrize(("not_before", "evaluated"), [(40, ()), (40, (20, 45)), (90, (20, 40))])
def test_a_run_that_missed_the_goal_enters_as_a_limit(tmp_path, not_before, evaluated):
    """Older records say that it was missed in steps after the last evaluation too, of which nobody knows."""

    def miss(trial, result):
        if trial.id == "b8192-k+0-s1":
            last = GoalCrossing(result.goals[-1].goal, None, None, None, not_before=not_before)
            seen = tuple(Evaluated(steps, 0.0, 1.0, 16) for steps in evaluated)
            result = replace(result, state="hopeless", goals=(*result.goals[:-1], last), evaluations=seen)
        return result

    row = row_of(write_sweep(tmp_path / "s", Planted(), change=miss))
    (missed,) = [point for point in row.points if point.missed]
    assert (missed.run.batch_size, missed.observations, missed.run.seed) == (8192, pytest.approx(40 * 8192), 1)
    assert row.measured.value == pytest.approx(1440, rel=0.05)
    assert any("1 of 51 runs missed" in note for note in row.notes)


def test_a_run_of_which_nothing_is_known_is_no_point(tmp_path):
    def unknown(trial, result):
        if trial.id == "b8192-k+0-s1":
            last = GoalCrossing(result.goals[-1].goal, None, None, None, not_before=0)
            result = replace(result, state="hopeless", goals=(*result.goals[:-1], last))
        return result

    assert len(row_of(write_sweep(tmp_path / "s", Planted(), change=unknown)).points) == 50


def test_goals_of_few_steps_are_shown_and_not_scored(tmp_path):
    """S_min of the three goals is 15.6, 25 and 40 optimizer steps, and twelve times that with an inner loop."""
    rows = compare([write_sweep(tmp_path / "s", Planted(s_min=40))], []).rows
    assert all(row.measured.value is not None for row in rows)
    assert [row.scored() for row in rows] == [False, False, False]
    assert [row.scored(30) for row in rows] == [False, False, True]
    assert agreement_of(rows, "policy", "cumulative") is None
    assert agreement_of(rows, "policy", "cumulative", least_steps=20)[0] == 2
    config = make_plan().config
    inner = make_plan(mini_batches=4, config=replace(config, update=replace(config.update, epochs=3)))
    assert all(row.scored() for row in compare([write_sweep(tmp_path / "inner", Planted(s_min=40), plan=inner)], []).rows)


def test_fewer_steps_than_a_quarter_of_those_that_the_optimizer_averages_over_are_named(tmp_path):
    """Adam with β₂ = 0.998 averages over 500; the goals need 100 and 160 optimizer steps, four an iteration."""
    config = make_plan().config
    config = replace(config, update=replace(config.update, beta2=0.998))
    plan = make_plan(seeds=1, noise_runs=0, mini_batches=4, config=config, goals=(100.0, 200.0))
    rows = compare([write_sweep(tmp_path / "s", Planted(s_min=40), plan=plan)], []).rows
    said = "S_min is far below the 500 steps over which adam averages: it may be the optimizer's own transient"
    assert [said in row.notes for row in rows] == [True, False]


def test_a_goal_that_a_run_had_passed_at_the_tenth_step_is_not_scored(tmp_path):
    """Its crossing is no earlier only because none counts there, so S_min may be that limit too."""

    def early(trial, result):
        if trial.id in ("b8192-k+0-s1", "b8192-k+0-s0"):
            first = replace(result.goals[0], optimizer_steps=10.0, interval=(0.0, 10.0), observations=81920.0)
            later = replace(result.goals[1], interval=(0.0, 2 * result.goals[1].optimizer_steps))
            result = replace(result, goals=(first, later, result.goals[2]))
        return result

    rows = compare([write_sweep(tmp_path / "s", Planted(s_min=300), change=early)], []).rows
    assert [row.scored() for row in rows] == [False, True, True]
    assert [row.at_limit for row in rows] == [2, 0, 0]
    assert all(row.measured.value is not None and not row.has_few_steps() for row in rows)
    (said,) = [sentence for sentence in warnings(rows) if "not scored" in sentence]
    assert said == (
        "classic/cartpole, goal 50: not scored: 2 of 51 runs were at the goal after 10 optimizer steps or fewer, the earliest "
        "that counts, so S_min may be that limit."
    )
    assert [flags(row) for row in rows] == ["runs at the goal by the earliest step: not scored", "", ""]


def test_a_sweep_that_has_just_begun(tmp_path):
    comparison = compare([write_sweep(tmp_path / "s", Planted(), most=2)], [])
    assert "three batch sizes must have a run" in comparison.rows[-1].measured.reason
    assert comparison.rows[-1].learning_rates is not None


def test_a_best_rate_outside_those_tried_is_provisional(tmp_path):
    row = row_of(write_sweep(tmp_path / "s", Planted(best_rate=-7, curvature=0.02), plan=make_plan(**LAST)))
    assert row.provisional == (32, 8192, 32768)
    assert row.measured.value == pytest.approx(1440, rel=0.02)


def test_best_rates_far_from_all_that_were_tried_leave_no_figure(tmp_path):
    row = row_of(write_sweep(tmp_path / "s", Planted(best_rate=-10, curvature=0.02), plan=make_plan(**LAST)))
    assert row.measured.reason.startswith(
        "at 5 of 6 batch sizes no run that reached its goal had a learning rate near the fitted best"
    )
    assert row.measured.reason.endswith("try lower rates there, or, where those fail, another goal")
    tried = {point.run.learning_rate for point in row.points if not point.missed}
    assert set(row.learning_rates) <= tried, "those of the fastest runs, not fitted ones"


def test_one_branch_is_not_identifiable_and_the_limit_is_kept(tmp_path):
    few = make_plan(batch_sizes=(32, 128, 512), **LAST)
    row = row_of(write_sweep(tmp_path / "s", Planted(b_crit=100_000, scatter=0.05), plan=few))
    assert row.measured.value is None
    assert row.measured.reason == "optimizer steps still fall nearly as 1/B up to a batch size of 512", "the command adds sizes"
    assert row.measured.interval[0] > 100
    assert row.ratio("policy", "cumulative").value is None


def test_failed_runs_are_left_out_and_named(tmp_path):
    def fail(trial, result):
        if trial.id in ("b32-k+0-s1", "noise-2"):
            return replace(result, state="failed", reason="ValueError: boom", goals=(), noise=(), noise_windows=())
        return result

    comparison = compare([write_sweep(tmp_path / "s", Planted(), plan=make_plan(**LAST), change=fail)], [])
    assert any("2 runs failed and were left out" in note and "b32-k+0-s1: ValueError: boom" in note for note in comparison.notes)
    assert comparison.rows[-1].measured.value == pytest.approx(1440, rel=0.05)
    assert len(comparison.rows[-1].frontier.points) == 49
    assert comparison.rows[-1].prediction("policy", "cumulative").runs == 2


def test_while_no_run_was_made_for_it_those_that_measured_the_noise_on_the_way_predict(tmp_path):
    row = row_of(write_sweep(tmp_path / "s", Planted(), plan=make_plan(noise_runs=0, **LAST)))
    assert row.prediction_batch == 2048
    assert row.prediction("joint", "cumulative").runs == 2
    assert row.prediction("policy", "cumulative") is None


def test_the_batch_size_that_an_older_sweep_named_predicts_or_the_nearest_to_it(tmp_path):
    """Sweeps of earlier versions measured the noise in their `final` runs, and named one batch size beforehand."""
    record = write_sweep(tmp_path / "s", Planted())
    lines = [json.loads(line) for line in (tmp_path / "s" / "results.jsonl").read_text().splitlines()]
    for line in lines:
        del line["last_goal"]
        line["stage"] = "final" if line["stage"] == "noise" else "coarse"
    (tmp_path / "s" / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = json.loads((tmp_path / "s" / "sweep.json").read_text())
    manifest["plan"]["noise_batch"] = 2048
    (tmp_path / "s" / "sweep.json").write_text(json.dumps(manifest))
    row = row_of(read_again(record))
    assert row.prediction_batch == 512
    assert any("batch size 512" in note and "2,048" in note for note in row.notes)


def test_a_goal_that_no_run_reached(tmp_path):
    comparison = compare([write_sweep(tmp_path / "s", Planted(), plan=make_plan(most_observations=150_000, **LAST))], [])
    assert [row.measured.value is None for row in comparison.rows][-1]
    assert comparison.rows[-1].frontier is None
    assert any("no run reached goal 200" in note for note in comparison.notes)
    assert comparison.rows[-1].learning_rates is None


def test_an_open_interval_comes_back_from_json(tmp_path):
    def open_ended(trial, result):
        noise = (replace(noise, value=None, interval=(500.0, math.inf)) for noise in result.noise)
        return replace(result, noise=tuple(noise))

    row = row_of(write_sweep(tmp_path / "s", Planted(), change=open_ended))
    prediction = row.prediction("policy", "cumulative")
    assert prediction.scale.interval == (500, math.inf)
    assert (prediction.resolved, prediction.runs) == (0, 3)


def test_a_crossing_without_an_upper_end_comes_back_from_json(tmp_path):
    def open_ended(trial, result):
        goals = (replace(goal, interval=(5.0, math.inf)) for goal in result.goals)
        return replace(result, goals=tuple(goals))

    record = write_sweep(tmp_path / "s", Planted(), change=open_ended)
    assert {goal.interval for run in read_again(record).results.values() for goal in run.goals} == {(5.0, math.inf)}


def test_two_sweeps_of_one_task_are_kept_apart_and_are_one_task(tmp_path):
    records = [write_sweep(tmp_path / name / "pong", Planted(), "atari/pong") for name in "ab"]
    records.append(write_sweep(tmp_path / "other", Planted(), "atari/pong"))
    comparison = compare(records, [])
    names = list(dict.fromkeys(row.name for row in comparison.rows))
    assert names == [f"atari/pong ({tmp_path / 'a' / 'pong'})", f"atari/pong ({tmp_path / 'b' / 'pong'})", "atari/pong (other)"]
    goals, found = agreement_of(comparison.rows, "policy", "cumulative")
    assert (found.tasks, goals) == (1, 9)


def test_damaged_results_are_left_out_and_the_rest_is_used(tmp_path):
    record = write_sweep(tmp_path / "s", Planted(), plan=make_plan(**LAST))
    path = tmp_path / "s" / "results.jsonl"
    lines = path.read_text().splitlines()
    broken = json.loads(lines[-1])
    broken["goals"] = [{"goal": 200.0}]
    path.write_text("\n".join([*lines[:10], "nonsense", *lines[10:-1], json.dumps(broken)]) + "\n")
    comparison = compare([read_again(record)], [])
    assert any("line 11" in note for note in comparison.notes)
    assert any(f"the result of {broken['id']} cannot be understood" in note for note in comparison.notes)
    assert comparison.rows[-1].measured.value == pytest.approx(1440, rel=0.05)


def test_nothing_to_compare(tmp_path):
    empty = write_sweep(tmp_path / "s", Planted(), most=0)
    with pytest.raises(UsageError, match=r"no result to compare.*no run of it has ended"):
        compare([empty], [])


def test_a_single_run_predicts_alone(tmp_path):
    (row,) = compare([], [make_run(tmp_path / "run")]).rows
    assert row.goal is None
    assert (row.why_not_scored(), row.has_few_steps(), row.uncertain) == ([], False, 0), "no S_min was measured"
    assert row.measured.value is None
    assert row.predicted("policy", "cumulative").value > 0
    assert row.predicted("value", "cumulative").value is None
    assert row.prediction_batch == 128
    with pytest.raises(UsageError, match="no finished iteration"):
        compare([], [make_run(tmp_path / "empty", iterations=0)])


def test_the_mean_over_seeds():
    def scale(value, low=0.9, high=1.2):
        return Estimate(value, (low * value, high * value))

    one = geometric_mean([scale(100.0)])
    assert one.value == pytest.approx(100)
    assert one.interval == pytest.approx((90, 120))
    # Equal seeds: nothing but their own errors, which shrink with √n.
    alike = geometric_mean([scale(100.0)] * 4)
    assert alike.interval == pytest.approx((100 * math.exp(math.log(0.9) / 2), 100 * math.exp(math.log(1.2) / 2)))
    # Seeds that differ by far more than their own errors: Student's t on their logarithms.
    apart = geometric_mean([scale(10.0), scale(1000.0)])
    assert apart.value == pytest.approx(100)
    assert math.log(apart.interval[1] / 100) == pytest.approx(12.706 * math.log(10), rel=1e-3)
    unresolved = Estimate(None, (40.0, math.inf), "noise")
    partly = geometric_mean([scale(100.0), unresolved])
    assert partly.value == pytest.approx(100)
    assert partly.interval[1] == math.inf
    nothing = geometric_mean([unresolved, replace(unresolved, interval=(70.0, math.inf))])
    assert nothing.value is None
    assert nothing.interval == (40, math.inf)


def test_the_ratio_combines_both_intervals():
    found = ratio(Estimate(200.0, (100.0, 400.0)), Estimate(100.0, (50.0, 100.0)))
    assert found.value == 2
    assert found.interval == pytest.approx((1.0, 2 * math.exp(math.hypot(math.log(2), math.log(2)))))
    assert ratio(Estimate(2.0, (1.0, math.inf)), Estimate(1.0, (0.5, math.inf))).interval == (0, math.inf)
    assert ratio(Estimate(None, None, "x"), Estimate(1.0, None)).value is None


def test_csv_and_parquet_hold_the_same_figures(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    records = [write_sweep(tmp_path / "s", Planted(scatter=0.1))]
    few = make_plan(batch_sizes=(32, 128, 512))
    records.append(write_sweep(tmp_path / "t", Planted(b_crit=90_000, scatter=0.05), "atari/pong", few))
    rows = compare(records, [make_run(tmp_path / "run")]).rows
    to_csv(rows, tmp_path / "deep" / "table.csv")
    to_parquet(rows, tmp_path / "table.parquet")
    with (tmp_path / "deep" / "table.csv").open() as file:
        text = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "table.parquet").to_pylist()
    assert len(text) == len(table) == 7
    for row, line, stored in zip(rows, text, table, strict=True):
        assert list(line) == list(stored)
        assert stored["b_crit"] == row.measured.value
        for name, value in stored.items():
            assert line[name] == ("" if value is None else str(value)), name
    assert text[2]["b_crit_low"] == str(rows[2].measured.interval[0])
    assert text[-2]["b_crit"] == ""
    assert text[-2]["b_crit_high"] == "inf"
    assert text[-2]["b_crit_reason"].startswith("optimizer steps still fall nearly as 1/B")


def test_sizes_without_which_b_crit_is_not_identifiable_are_counted(tmp_path):
    """The range of the other fits would say that B_crit hangs on no size."""
    row = row_of(write_sweep(tmp_path / "s", Planted(scatter=0.1), plan=make_plan(seeds=1, **LAST)))
    found = {}
    for name, without in (("all", {32: 21.0, 128: 232.0}), ("some", {32: 21.0, 128: None, 512: 232.0})):
        frontier = copy.copy(row.frontier)  # the fit itself is remembered for others
        vars(frontier)["leave_one_size_out"] = without
        to_csv([replace(row, frontier=frontier)], tmp_path / name)
        (line,) = csv.DictReader((tmp_path / name).read_text().splitlines())
        found[name] = [line[f"b_crit_without_a_size_{column}"] for column in ("low", "high", "unidentified")]
    assert found == {"all": ["21.0", "232.0", "0"], "some": ["", "", "1"]}


def test_exports_that_cannot_be_made(tmp_path, monkeypatch):
    rows = compare([], [make_run(tmp_path / "run")]).rows
    blocked = tmp_path / "run" / "manifest.json" / "table"
    with pytest.raises(UsageError, match="--csv"):
        to_csv(rows, blocked)
    with pytest.raises(UsageError, match="--parquet"):
        to_parquet(rows, blocked)

    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match=r"--parquet.*pip install 'rlscale\[parquet\]'"):
        to_parquet(rows, tmp_path / "table.parquet")


@pytest.mark.parametrize(
    ("state", "mend"),
    [
        ("budget", "no run reached this goal: give them more observations (--observations) and another --out"),
        (
            "hopeless",
            "and none for want of observations: name a lower goal (--goals) or another learning rate (--learning-rate), "
            "and another --out",
        ),
        ("failed", "no run reached this goal, every one failed: mend what their errors say, then type the same command again"),
    ],
)
def test_the_mend_follows_what_the_runs_died_of(tmp_path, state, mend):
    """Runs that diverged were told to be given more observations."""

    def missed(trial, result):
        goals = tuple(GoalCrossing(goal.goal, None, None, None, 500.0) for goal in result.goals)
        return replace(result, state=state, reason="diverged", goals=goals, noise=())

    row = row_of(write_sweep(tmp_path / "s", Planted(), change=missed, most=6))
    assert mend in row.measured.reason
