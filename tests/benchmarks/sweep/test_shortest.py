"""The command that a page names next is short, can be typed, and goes on with the same sweep."""

from dataclasses import replace

import pytest
from planted import Planted, write_sweep
from rungs import skip_without_its_engine

from rlscale.analysis import compare
from rlscale.benchmarks.measurements.ladder.rungs import read_rungs
from rlscale.benchmarks.options import parse
from rlscale.benchmarks.sweep.next_command import next_command, shortest_command, with_next_words, would_make_a_run
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.errors import UsageError
from rlscale.records import Sweep
from rlscale.report.answers import answers

RUNGS = read_rungs()[1]
TASK = ["rlscale", "sweep", "classic/cartpole"]


def plan_of(words):
    options = parse(SweepOptions, "sweep", list(words[2:]))
    return options, [make_plan(task, options) for task in options.tasks]


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_rung_s_command_is_short_and_plans_exactly_the_same(rung):
    """The ladder spells every option."""
    skip_without_its_engine(rung)
    typed = ["rlscale", *rung.command("elsewhere")]
    short = shortest_command(typed)
    assert len(short) < len(typed) / 2
    assert "None" not in short
    (before, plans), (after, same) = plan_of(typed), plan_of(short)
    assert same == plans
    assert (after.out, after.jobs, after.report) == (before.out, before.jobs, before.report)
    assert shortest_command(short) == short


@pytest.mark.parametrize(
    ("typed", "short"),
    [
        (["--max-grad-norm", "None", "--seeds", "2", "--rates=4"], []),
        (["--goals", "150", "400", "--batch-sizes", "None"], ["--goals", "150", "400"]),
        (["--entropy-coef", "0.010", "--beta2", ".98", "--hours", "1.50"], ["--hours", "1.5", "--beta2", "0.98"]),
        (["--jobs", "0", "--out", "here", "--report", "--no-report"], ["--jobs", "0", "--out", "here"]),
        (["--report"], ["--report"]),
        (["--ray-address", "127.0.0.1:9", "--seed", "0"], ["--ray-address", "127.0.0.1:9"]),  # where nothing answers
        (["--jobs", "900", "--ray-address", "head:6379", "--rates", "4"], ["--jobs", "900", "--ray-address", "head:6379"]),
        (["--learning-rate", "0.0123456789"], ["--learning-rate", "0.0123456789"]),
    ],
)
def test_only_what_differs_is_said(typed, short):
    assert shortest_command([*TASK, *typed]) == [*TASK, *short]


def test_the_plan_says_whether_a_sweep_has_runs_to_make(tmp_path):
    """Wherever it was stopped, its noise runs from before an extension included."""
    words = [*TASK, "--goals", "60", "--jobs", "1", "--noise-runs", "2", "--interval-ratio", "8", "--out", str(tmp_path)]
    _, (plan,) = plan_of(words)
    whole = write_sweep(tmp_path / "classic-cartpole", Planted(), plan=plan, command=words)
    results = list(whole.results.items())
    assert [result.stage for _, result in results[-2:]] == ["noise"] * 2
    for ended in (0, 1, 3, len(results) - 3, len(results) - 2, len(results) - 1):
        assert would_make_a_run(replace(whole, results=dict(results[:ended])))
    assert would_make_a_run(whole) is False
    failed = {**whole.results, results[4][0]: replace(results[4][1], state="failed")}
    assert would_make_a_run(replace(whole, results=failed))
    sharper = [*words, "--interval-ratio", "1.2"]
    _, (plan,) = plan_of(sharper)
    manifest = {**whole.manifest, "plan": plan.to_dict(), "extensions": [{"command": sharper}]}
    assert would_make_a_run(replace(whole, manifest=manifest))
    assert would_make_a_run(replace(whole, manifest={**whole.manifest, "command": sharper})) is None, "not its plan"
    assert would_make_a_run(replace(whole, manifest={**whole.manifest, "command": [*words, "--none-such"]})) is None


def test_hours_are_counted_by_the_jobs_that_were_typed(tmp_path):
    """On a machine of more or fewer CPUs as well: 0.05 hours of one job are spent after nine runs of 20 seconds."""
    words = [*TASK, "--goals", "60", "--hours", "0.05", "--noise-runs", "0", "--interval-ratio", "1.2", "--out", str(tmp_path)]
    for jobs in (1, 7):
        typed = [*words, "--jobs", str(jobs)]
        plan = replace(plan_of(words)[1][0], jobs=jobs)
        folder = tmp_path / str(jobs) / "classic-cartpole"
        whole = write_sweep(folder, Planted(scatter=0.3), plan=plan, command=typed)
        assert sum(result.seconds for result in whole.results.values()) >= 180 * jobs
        assert would_make_a_run(whole) is False
        assert would_make_a_run(whole, [*typed, "--hours", "0.1"])


def test_a_command_that_would_make_no_run_is_not_named(tmp_path):
    """B_crit lies beyond the largest size of all, which runs can afford as they are."""
    words = [*TASK, "--goals", "60", "--noise-runs", "1", "--observations", "1000000000000", "--out", str(tmp_path)]
    (plan,) = plan_of(words)[1]
    record = write_sweep(tmp_path / "classic-cartpole", Planted(100 * plan.sizes[-1], s_min=1e3), plan=plan, command=words)
    comparison = compare([record], [])
    assert next_command(record, comparison.sweeps[0].rows, stopped=False)[-2:] == ["--observations", "4000000000000"]
    assert with_next_words(comparison).sweeps[0].next_words == ()


def test_a_command_that_is_refused_is_not_named(tmp_path, monkeypatch):
    """B_crit lies beyond the largest size, and a machine that can make the sweep has no memory for a larger one."""

    def refuse(config, task):
        if config.batch > 1280:
            raise UsageError("--environments", "they leave no memory for fragments", "Use fewer")

    words = [*TASK, "--batch-sizes", "80,320,1280", "--goals", "60", "--observations", "50000000", "--noise-runs", "0"]
    words += ["--out", str(tmp_path)]
    (plan,) = plan_of(words)[1]
    record = write_sweep(tmp_path / "classic-cartpole", Planted(1e5, scatter=0.05), plan=plan, command=words)
    comparison = compare([record], [])
    larger = [*TASK, "--out", str(tmp_path), "--batch-sizes", "80,320,1280,5120"]
    assert set(larger) < set(with_next_words(comparison).sweeps[0].next_words)
    monkeypatch.setattr("rlscale.benchmarks.sweep.options.memory_plan", refuse)
    assert with_next_words(comparison).sweeps[0].next_words == ()


@pytest.mark.parametrize("missed", [0, 2])
def test_where_runs_failed_the_same_command_makes_them_again(tmp_path, missed):
    def fail(trial, result):
        goals = tuple(replace(goal, optimizer_steps=None, observations=None, not_before=500) for goal in result.goals)
        if int(trial.id[-1]) > missed:
            return replace(result, state="failed", goals=(), noise=())
        return replace(result, state="hopeless", goals=goals, noise=())

    words = [*TASK, "--goals", "60", "--out", str(tmp_path)]
    (plan,) = plan_of(words)[1]
    record = write_sweep(tmp_path / "classic-cartpole", Planted(), plan=plan, command=words, most=3, change=fail)
    comparison = with_next_words(compare([record], []))
    assert comparison.sweeps[0].next_words == tuple(words)
    assert answers(comparison)[0].sentence.endswith(f"Next: {' '.join(words)}")


def test_what_the_task_has_of_its_own_is_not_said():
    plan = make_plan("minatar/breakout", SweepOptions(tasks=("minatar/breakout",)))
    own = ["--observations", str(plan.most_observations), "--rollout-length", str(plan.config.rollout.rollout_length)]
    words = ["rlscale", "sweep", "minatar/breakout"]
    assert shortest_command([*words, *own]) == words
    assert shortest_command([*words, "--observations", str(2 * plan.most_observations)])[3:] == [
        "--observations",
        str(2 * plan.most_observations),
    ]


def test_the_shorter_command_goes_on_with_the_sweep(tmp_path):
    typed = [*TASK, "--goals", "20", "--max-grad-norm", "None", "--seed", "7", "--optimizer", "adam", "--hours", "1.50"]
    for words in (typed, shortest_command(typed)):
        _, (plan,) = plan_of(words)
        with_facts = {"task": {"id": plan.config.task}, "commit": None, "versions": {}, "machine": {}, "command": list(words)}
        sweep = Sweep.open(tmp_path / "classic-cartpole", plan.to_dict(), with_facts)
        assert sweep.manifest["command"] == typed
        assert "extensions" not in sweep.manifest
        sweep.close()


@pytest.mark.parametrize(
    "words", [[*TASK, "--of-another-version", "3"], [*TASK, "--seeds", "many"], ["rlscale", "sweep", "no/such"]]
)
def test_a_command_that_cannot_be_read_is_left_as_it_is(words):
    assert shortest_command(words) == words
