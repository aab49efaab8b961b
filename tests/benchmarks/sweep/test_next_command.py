"""The command that a sweep's page names next: it is the one that was typed, and asks for more."""

import gzip
import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
from planted import Planted, read_again, write_sweep
from planted import make_plan as make_plan_of_three_goals

from rlscale.analysis import rows
from rlscale.analysis.comparison import compare
from rlscale.analysis.predictions import ADVISED, PLAIN
from rlscale.benchmarks.options import MOST_RATES
from rlscale.benchmarks.sweep import design
from rlscale.benchmarks.sweep import next_command as module
from rlscale.benchmarks.sweep.next_command import next_command
from rlscale.benchmarks.sweep.options import SweepOptions
from rlscale.benchmarks.sweep.options import make_plan as make_plan_of
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.frontier import fit_surface
from rlscale.records import read_sweep
from rlscale.report.answers import answers

TASK, FOLDER = ["rlscale", "sweep", "classic/cartpole"], "classic-cartpole"


def make_plan(**changes):
    """A plan of one goal: the command follows from the last goal alone. `sharp` and two other sweeps have more before it."""
    return make_plan_of_three_goals(**{"goals": (200.0,), **changes})


def asked(record):
    """The command less the place where the sweep lies, which is the record's own."""
    (sweep,) = compare([record], []).sweeps
    words = next_command(record, sweep.rows)
    if words is None:
        return None
    at = words.index("--out")
    assert words[at + 1] == str(record.folder.parent)
    return [*words[:at], *words[at + 2 :]]


@pytest.fixture(scope="module")
def sharp(tmp_path_factory):
    plan = make_plan_of_three_goals(batch_sizes=None, pilot_batch=640)
    return write_sweep(tmp_path_factory.mktemp("sharp") / FOLDER, Planted(scatter=0.2), plan=plan)


def test_a_sharp_sweep_is_asked_for_half_its_width(sharp):
    assert asked(sharp) == [*TASK, "--interval-ratio", "1.41"]


@pytest.mark.parametrize(("ratio", "half"), [(1.1, "1.05"), (1.02, "1.01"), (1.01, None), (1.0001, None)])
def test_a_ratio_near_one_is_not_rounded_to_one(sharp, ratio, half):
    """`rlscale sweep` takes ratios above 1 alone."""
    record = replace(sharp, manifest={**sharp.manifest, "plan": {**sharp.plan, "interval_ratio": ratio}})
    (sweep,) = compare([record], []).sweeps
    as_sharp = replace(sweep.rows[-1], measured=Estimate(1000.0, (1000.0, 1000.0 * ratio)))
    words = next_command(record, [*sweep.rows[:-1], as_sharp])
    assert (None if words is None else words[-2:]) == (None if half is None else ["--interval-ratio", half])


def as_wide(record, ratio):
    """The command where the page finds an interval of that ratio."""
    (sweep,) = compare([record], []).sweeps
    words = next_command(record, [*sweep.rows[:-1], replace(sweep.rows[-1], measured=Estimate(1000.0, (1000.0, 1000.0 * ratio)))])
    return None if words is None else words[len(TASK) + 2 :]


def changed(record, **settings):
    """The same sweep, asked for something else."""
    return replace(record, manifest={**record.manifest, "plan": {**record.plan, **settings}})


def spent(record):
    """Hours of the runs that the budget counts: those that measure the noise come on top."""
    return sum(result.seconds for result in record.results.values() if result.stage != "noise") / 3600 / record.plan["jobs"]


def test_a_sharp_sweep_with_a_spent_budget_is_given_more_of_it_too(sharp):
    """With a smaller ratio alone it would make no run."""
    hours = round(spent(sharp) * 0.99, 5)
    assert as_wide(changed(sharp, hours=hours), 1.5) == ["--hours", f"{2 * hours:g}", "--interval-ratio", "1.41"]


def test_a_budget_that_was_far_exceeded_is_doubled_until_it_lasts(sharp):
    hours = round(spent(sharp) / 5, 5)
    assert as_wide(changed(sharp, hours=hours), 5.0) == ["--hours", f"{8 * hours:g}"]


def test_noise_runs_spend_no_budget(sharp):
    assert as_wide(changed(sharp, hours=spent(sharp) * 1.01), 1.5) == ["--interval-ratio", "1.41"]


def test_a_sweep_that_ended_by_its_own_interval_is_asked_for_a_sharper_one(sharp):
    """The page's interval is wider than the sweep's own where the runs share offsets: the same command would do nothing."""
    assert as_wide(sharp, 2.1) == ["--interval-ratio", "1.41"]


def test_a_sweep_with_as_many_runs_as_there_may_be_is_asked_for_nothing(sharp, monkeypatch):
    runs = sum(result.stage != "noise" for result in sharp.results.values())
    monkeypatch.setattr(module, "MOST_RUNS", runs)
    assert as_wide(sharp, 6.4) is None
    assert as_wide(sharp, 1.5) is None


def test_what_is_known_of_the_sweep_is_so():
    assert rows.PILOT_RUNS == design.PILOT_RUNS
    sizes = [64 * 2**k for k in range(design.FEWEST_SIZES)]
    known = [fit_surface(b, [0.1] * len(b), [10.0] * len(b)).b_crit.interval is not None for b in (sizes[:-1], sizes)]
    assert known == [False, True]
    switches = [f"--{no}{f.name}" for f in fields(SweepOptions) if f.type is bool for no in ("", "no-")]
    assert sorted(module.SWITCHES) == sorted(switches)
    assert SweepOptions.out == module.USUAL_FOLDER


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 6])
def test_a_quick_sweep_that_was_stopped_goes_on_as_it_is(tmp_path, runs):
    """Its pilot has three runs, of which any may reach the goal, and its first four noise runs may be enough."""
    plan = make_plan(batch_sizes=None, pilot_batch=640, quick=True, noise_runs=8)
    record = write_sweep(tmp_path / FOLDER, Planted(), plan=plan, most=runs)
    assert asked(record) == TASK


def test_a_quick_sweep_of_few_noise_runs_predicts_nothing_rather_than_something_else(tmp_path):
    """The ratio of sums needs three runs. The policy's own noise scale, which one run has, is another statistic."""
    plan = make_plan(batch_sizes=None, pilot_batch=640, quick=True, noise_runs=8)
    for runs in (4, 5, 6):
        comparison = compare([write_sweep(tmp_path / str(runs) / FOLDER, Planted(), plan=plan, most=runs)], [])
        row = comparison.rows[-1]
        assert row.prediction(*PLAIN).scale.value is not None
        assert row.predictor == ADVISED
        assert row.prediction(*ADVISED) is None
        assert "its noise scale suggests" not in answers(comparison)[0].sentence


@pytest.mark.parametrize("kept", [0, 3, 7])
def test_a_grid_that_was_stopped_in_its_noise_runs_goes_on_as_it_is(tmp_path, kept):
    plan = make_plan(batch_sizes=(64, 256, 1024, 4096), noise_runs=8)
    record = write_sweep(tmp_path / FOLDER, Planted(), plan=plan)
    noise = [id for id, result in record.results.items() if result.stage == "noise"]
    assert len(noise) == 8
    short = replace(record, results={id: result for id, result in record.results.items() if id not in noise[kept:]})
    assert asked(short) == TASK
    assert asked(record) != TASK
    before = {id: replace(result, last_goal=plan.goals[-1] / 2) for id, result in record.results.items() if id in noise[kept:]}
    assert asked(replace(record, results=record.results | before)) == TASK, "they ended at a goal before the last one reached"


def test_a_sweep_that_was_stopped_when_it_was_extended_is_not_asked_for_still_more(sharp):
    """Its noise runs are from before. A run after them shows it; before that, whoever has asked the plan."""
    (sweep,) = compare([sharp], []).sweeps
    assert "--interval-ratio" not in next_command(sharp, sweep.rows, stopped=True)
    extended = changed(sharp, interval_ratio=1.41)
    last = max((result for result in sharp.results.values() if result.stage != "noise"), key=lambda result: result.id)
    again = replace(extended, results={**sharp.results, "run-900": replace(last, id="run-900")})
    assert as_wide(again, 1.9) == []
    assert as_wide(extended, 1.9) == ["--interval-ratio", "1.19"]


def test_where_the_folder_is_named_by_a_dot_or_a_link_the_command_says_where_it_lies(sharp, monkeypatch, tmp_path):
    (tmp_path / "link").symlink_to(sharp.folder)
    (sharp.folder / "within").mkdir(exist_ok=True)
    monkeypatch.chdir(sharp.folder)
    for folder in (Path("."), Path("within/.."), tmp_path / "link", sharp.folder):
        (sweep,) = compare([replace(sharp, folder=folder)], []).sweeps
        words = next_command(sweep.record, sweep.rows)
        assert (Path(words[words.index("--out") + 1]) / FOLDER).resolve() == sharp.folder.resolve()


def test_a_task_after_a_flag_with_its_value_is_another_task(sharp):
    command = ["rlscale", "sweep", "--jobs=2", "minatar/asterix", "classic/cartpole", "--data", "a/b"]
    assert asked(replace(sharp, manifest={**sharp.manifest, "command": command}))[:6] == [*command[:3], *command[4:]]


def at_the_limit(trial, result):
    """At the last goal after the ten steps before which none counts."""
    goals = [
        replace(goal, optimizer_steps=10.0, interval=(0.0, 10.0), observations=10.0 * result.batch_size) for goal in result.goals
    ]
    return replace(result, goals=tuple(goals))


def test_a_task_that_was_typed_by_another_name_keeps_its_options(sharp):
    """84 pixels are those of the usual name, which is the record's."""
    typed = ["rlscale", "sweep", "classic/cartpole@4", "--hours", "2", "--jobs", "1"]
    record = replace(sharp, manifest={**sharp.manifest, "command": typed})
    assert asked(record) == [*TASK, "--hours", "2", "--jobs", "1", "--interval-ratio", "1.41"]


def test_a_goal_that_most_runs_hold_from_the_start_is_not_sharpened(tmp_path):
    """Another goal is another sweep. The pilot's three runs alone say nothing of smaller batches."""
    plan = make_plan(batch_sizes=None, pilot_batch=640)
    for most, says in ((3, False), (12, True)):
        record = write_sweep(tmp_path / str(most) / FOLDER, Planted(), plan=plan, most=most, change=at_the_limit)
        assert (asked(record) is None) == says
        (answer,) = answers(compare([record], []))
        assert ("too easy to measure with: 12 of 12 runs held it after 10 optimizer steps or fewer" in answer.sentence) == says
        assert answer.sentence.endswith("Next: choose a higher goal (--goals), and another --out") == says


def test_a_sharp_sweep_without_noise_runs_is_asked_for_a_sharper_interval(tmp_path):
    plan = make_plan_of_three_goals(batch_sizes=None, pilot_batch=640, noise_runs=0)
    record = write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan)
    assert as_wide(record, 1.5) == ["--interval-ratio", "1.41"]
    assert as_wide(record, 5.0) == [], "it may have been stopped"


def test_a_sweep_that_lacks_noise_runs_goes_on(sharp):
    assert as_wide(changed(sharp, noise_runs=8), 1.5) == []


def missed(trial, result):
    goals = tuple(replace(goal, optimizer_steps=None, observations=None, not_before=500) for goal in result.goals)
    return replace(result, state="hopeless", reason="diverged", goals=goals, noise=())


@pytest.mark.parametrize(
    ("sizes", "most", "goes_on"), [(None, 2, True), (None, 3, False), ((32, 128), 15, True), ((32, 128), 16, False)]
)
def test_a_sweep_that_reached_nothing_goes_on_until_its_first_runs_have_ended(tmp_path, sizes, most, goes_on):
    plan = make_plan(batch_sizes=sizes, pilot_batch=640)
    record = write_sweep(tmp_path / FOLDER, Planted(), plan=plan, most=most, change=missed)
    assert asked(record) == (TASK if goes_on else None)


def test_only_the_sweep_s_own_task_is_named(sharp):
    """With `rlscale sweep A B` the command would extend B's sweep as well."""
    for typed in (
        ["classic/acrobot", TASK[2], "mine:make", "--hours", "1"],
        ["--hours", "1", TASK[2], "classic/acrobot", "--data", "some/folder"],
        ["--report", "classic/acrobot", TASK[2], "--hours", "1"],
    ):
        record = replace(sharp, manifest={**sharp.manifest, "command": [*TASK[:2], *typed]})
        words = asked(record)
        assert TASK[2] in words
        assert not {"classic/acrobot", "mine:make"} & set(words)
        assert ("--data" in words) == ("some/folder" in words)


@pytest.mark.parametrize(("task", "smallest", "more"), [("text", 32, False), ("text", 128, True), ("digits", 32, True)])
def test_a_smaller_size_is_whole_examples(tmp_path, task, smallest, more):
    """An example of a text has 32 observations, a digit is one."""
    sizes = (smallest, 4 * smallest, 16 * smallest)
    planted = write_sweep(tmp_path / FOLDER, Planted(b_crit=2, scatter=0.05), plan=make_plan(batch_sizes=sizes))
    supervised = make_plan_of(f"supervised/{task}", SweepOptions(tasks=(), batch_sizes=",".join(map(str, sizes))))
    record = changed(planted, config=supervised.to_dict()["config"])
    record.manifest["task"] = {**supervised.description, "id": record.task}
    smaller = ",".join(map(str, (smallest // 4, *sizes)))
    assert asked(record)[-2:] == (["--batch-sizes", smaller] if more else ["--seeds", "4"])
    del record.manifest["task"]["length"]
    assert asked(record)[-2:] == ["--seeds", "4"], "an earlier version did not record it"


def test_a_sweep_that_was_stopped_goes_on_with_the_same_command(tmp_path):
    plan = make_plan(batch_sizes=None, pilot_batch=640)
    assert asked(write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan, most=12)) == TASK


def test_a_sweep_whose_runs_afford_no_size_beyond_the_bend_is_asked_for_longer_runs_and_goes_on(tmp_path):
    """Where B_crit is 40,000, 500,000 observations afford 2,560 or so: it ends after sixty runs, and goes on with longer ones."""
    plan = make_plan_of_three_goals(batch_sizes=None, pilot_batch=640, most_observations=500_000)
    planted = Planted(40_000, 6.3, scatter=0.2)
    record = write_sweep(tmp_path / FOLDER, planted, plan=plan)
    assert sum(result.stage != "noise" for result in record.results.values()) in (60, 61)  # two jobs
    assert asked(record) == [*TASK, "--observations", "2000000"]
    longer = replace(plan, most_observations=2_000_000)
    more = write_sweep(tmp_path / FOLDER, planted, plan=longer)
    assert dict(list(more.results.items())[: len(record.results)]) == dict(record.results)
    assert more.plan["most_observations"] == 2_000_000
    (sweep,) = compare([more], []).sweeps
    low, high = sweep.rows[-1].measured.interval
    assert 0 < low < 40_000 < high < math.inf


def test_a_grid_s_runs_cannot_be_made_longer(tmp_path):
    """Those that missed the goal would not be made again."""
    write_sweep(tmp_path / FOLDER, Planted(), plan=make_plan(most_observations=500_000), most=3)
    with pytest.raises(UsageError, match=r"another plan \(--observations\)"):
        write_sweep(tmp_path / FOLDER, Planted(), plan=make_plan(most_observations=2_000_000), most=3)


def test_a_spent_budget_is_doubled(tmp_path):
    plan = make_plan(batch_sizes=None, pilot_batch=640, interval_ratio=1.01, total_observations=10_000_000)
    assert asked(write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan)) == [*TASK, "--total-observations", "20000000"]


def test_a_grid_is_asked_for_a_size_beyond_its_open_end_or_for_seeds(tmp_path):
    narrow = make_plan(batch_sizes=(32, 128, 512))
    record = write_sweep(tmp_path / "narrow" / FOLDER, Planted(b_crit=100_000, scatter=0.05), plan=narrow)
    assert asked(record) == [*TASK, "--batch-sizes", "32,128,512,2048"]
    assert asked(write_sweep(tmp_path / "wide" / FOLDER, Planted(scatter=0.1), plan=make_plan())) == [*TASK, "--seeds", "4"]


def test_a_grid_of_few_sizes_is_asked_for_more_of_them(tmp_path):
    """No number of seeds makes a frontier of two sizes."""
    for sizes, more in (((128,), "32,128,512"), ((256, 1024), "64,256,1024,4096"), ((16, 64), "16,64,256")):
        plan = make_plan(batch_sizes=sizes)
        record = write_sweep(tmp_path / str(len(sizes)) / str(sizes[0]) / FOLDER, Planted(scatter=0.1), plan=plan)
        assert asked(record) == [*TASK, "--batch-sizes", more]


def test_a_grid_that_was_stopped_goes_on_with_the_same_command(tmp_path):
    plan = make_plan()
    last = len(plan.batch_sizes) * plan.rates * plan.seeds - 1
    assert asked(write_sweep(tmp_path / FOLDER, Planted(scatter=0.1), plan=plan, most=last)) == TASK


def test_a_grid_that_is_open_at_both_ends_is_asked_for_seeds(tmp_path):
    plan = make_plan(batch_sizes=(64, 256, 1024), rates=1, seeds=2)
    record = write_sweep(tmp_path / FOLDER, Planted(scatter=1.5), plan=plan)
    assert compare([record], []).sweeps[0].rows[-1].measured.interval in (None, (0.0, math.inf))
    assert asked(record) == [*TASK, "--seeds", "4"]


def test_a_grid_whose_best_rates_lie_elsewhere_is_asked_for_more_rates_and_at_the_most_for_seeds(tmp_path):
    """`rlscale sweep` refuses sixteen rates."""
    record = write_sweep(tmp_path / FOLDER, Planted(best_rate=-10, curvature=0.02), plan=make_plan())
    assert asked(record) == [*TASK, "--rates", "8"]
    (sweep,) = compare([record], []).sweeps
    for rates, more in ((8, ["--rates", "15"]), (MOST_RATES, ["--seeds", "4"])):
        assert next_command(changed(record, rates=rates), sweep.rows, stopped=False)[-2:] == more


def test_a_grid_gets_no_larger_size_where_its_largest_did_not_reach_the_goal(tmp_path):
    """S falls as 1/B up to 2,048, where the goal takes 15.3 million observations; at 8,192 it would take 16.2."""
    for most, more in ((15_200_000, ["--seeds", "4"]), (15_400_000, ["--batch-sizes", "32,128,512,2048,8192"])):
        plan = make_plan(batch_sizes=(32, 128, 512, 2048), most_observations=most)
        record = write_sweep(tmp_path / str(most) / FOLDER, Planted(b_crit=100_000, curvature=1e-4, scatter=1e-3), plan=plan)
        low, high = compare([record], []).sweeps[0].rows[-1].measured.interval
        assert low > 0
        assert high == math.inf
        assert asked(record) == [*TASK, *more]


def test_a_smaller_size_is_asked_for_where_its_environments_and_mini_batches_are_whole(tmp_path):
    """Rollouts of 16 steps in four mini-batches: 64 observations are the smallest batch."""
    for smallest, asked_for in ((256, "64,256,1024,4096"), (128, None)):
        plan = make_plan(batch_sizes=(smallest, 4 * smallest, 16 * smallest), mini_batches=4)
        record = write_sweep(tmp_path / str(smallest) / FOLDER, Planted(b_crit=2, scatter=0.05), plan=plan)
        assert compare([record], []).sweeps[0].rows[-1].measured.interval[0] == 0
        assert asked(record) == [*TASK, *(["--batch-sizes", asked_for] if asked_for else ["--seeds", "4"])]


def test_a_flag_that_was_typed_is_replaced(tmp_path):
    record = write_sweep(tmp_path / FOLDER, Planted(scatter=0.1), plan=make_plan())
    manifest = json.loads((tmp_path / FOLDER / "sweep.json").read_text())
    manifest["command"] = [*TASK, "--seeds", "2", "--rates=4"]
    manifest["extensions"] = [{"at": "now", "command": [*TASK, "--seeds=2", "--rates", "4", "--out", "here"]}]
    (tmp_path / FOLDER / "sweep.json").write_text(json.dumps(manifest))
    assert asked(read_again(record)) == [*TASK, "--rates", "4", "--seeds", "4"]


def test_older_sweeps_cannot_be_extended(tmp_path):
    record = write_sweep(tmp_path / FOLDER, Planted(scatter=0.1), plan=make_plan())
    manifest = json.loads((tmp_path / FOLDER / "sweep.json").read_text())
    del manifest["plan"]["interval_ratio"]
    (tmp_path / FOLDER / "sweep.json").write_text(json.dumps(manifest))
    assert asked(read_again(record)) is None


def test_a_copy_under_another_name_cannot_be_extended(tmp_path):
    """`rlscale sweep` would begin a new sweep beside it."""
    assert asked(write_sweep(tmp_path / "published", Planted(scatter=0.1), plan=make_plan())) is None


def test_the_usual_place_is_not_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = read_sweep(write_sweep(Path("sweeps") / FOLDER, Planted(scatter=0.1), plan=make_plan()).folder)
    (sweep,) = compare([record], []).sweeps
    assert next_command(record, sweep.rows) == [*TASK, "--seeds", "4"]


def test_a_copy_whose_results_are_compressed_goes_on(tmp_path):
    """Published records are compressed; what is appended to one is read beside what it held."""
    plan = make_plan(batch_sizes=None, pilot_batch=640)
    first = write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan, most=6)
    results = tmp_path / FOLDER / "results.jsonl"
    (tmp_path / FOLDER / "results.jsonl.gz").write_bytes(gzip.compress(results.read_bytes()))
    results.unlink()
    assert read_again(first).results == first.results
    later = write_sweep(tmp_path / FOLDER, Planted(scatter=0.2), plan=plan, most=3)
    assert list(later.results)[:6] == list(first.results)
    assert len(later.results) == 9
    assert read_again(later).results == later.results
