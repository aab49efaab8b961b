"""The plan of `rlscale workers --sweep`: time and cost of every choice, the one that was asked for, and its command."""

import gzip
import io
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from planted import PONG, Planted, known_frontier, readings, write_sweep
from rich.console import Console

from rlscale.agents.checks import check_config
from rlscale.agents.config import default_config
from rlscale.agents.idle_options import check_idle_options
from rlscale.analysis import compare
from rlscale.benchmarks.options import parse_train
from rlscale.benchmarks.workers import plan as making
from rlscale.benchmarks.workers.calibration import Shape, fit_fleet
from rlscale.benchmarks.workers.display import say_choice, show_answer
from rlscale.benchmarks.workers.options import WorkersOptions
from rlscale.benchmarks.workers.plan import Known, choose, find_frontier, make_plan, say_asked, say_beyond
from rlscale.benchmarks.workers.recommendation import train_command
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.frontier import fit
from rlscale.sizing import Choice, FleetTime, LearnerTime, Price, iteration
from rlscale.sizing.cost import _interval, _steps_interval

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def known():
    return known_frontier()


def test_a_plan_and_the_choice_that_was_asked_for(known):
    law = replace(fit_fleet(readings(), 16))
    made = make_plan(known, law, LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=4, lag=0)
    assert {c.workers for c in made.choices} == {1, 2, 4}  # three do not divide the environments
    assert {c.batch_size for c in made.choices} == set(known.rates)
    fastest, cheapest = made.fastest(), made.cheapest()
    assert choose(made, None, None, currency=True) == fastest
    deadline = (fastest.seconds + cheapest.seconds) / 2
    chosen = choose(made, deadline, None, currency=True)
    assert chosen == made.cheapest(deadline)
    assert choose(made, None, chosen.cost, currency=True) == made.fastest(chosen.cost)
    words = train_command(WorkersOptions(task=known.config.task), known.config, Shape(chosen.workers, 1, 8), known, chosen)
    config = parse_train(words[2:])
    check_config(config)
    u = config.update
    assert (u.epochs, u.mini_batch, u.advantage_scale, u.entropy_coef, u.learning_rate) == (1, None, "running", 0.03, 0.0123)
    assert config.rollout.rollout_length == 16
    assert config.budget.observations == 2 * round(chosen.observations)
    assert config.budget.goal == known.goal


@pytest.mark.parametrize(
    ("environments", "batch", "said"),
    [
        (16, 1024, None),
        (64, 4096, None),
        (65, 1024, "65 environments a worker where 16 to 64 were measured: its"),
        (
            15,
            5000,
            "15 environments a worker where 16 to 64 were measured and a batch of 5,000 where the learner was timed with up to",
        ),
    ],
)
def test_a_plan_beyond_what_was_measured_says_so(environments, batch, said):
    choice = SimpleNamespace(batch_size=batch)
    found = say_beyond(Shape(2, 1, environments), choice, [Shape(1, 1, 16), Shape(2, 1, 64)], [1024, 4096])
    assert found is None if said is None else found.startswith(f"The plan has {said}")


def test_the_run_of_a_plan_may_finish_the_episodes_that_it_waits_for():
    """Episodes of Freeway have 2,500 steps; in twice the plan's observations 4,096 environments would take 1,900 each."""
    known = find_frontier(str(ROOT / "results/ladder/minatar-freeway-2"), None, find_task("minatar/freeway"))
    assert known.episode_steps == pytest.approx(2500, rel=0.01)
    law = replace(fit_fleet(readings(), known.config.rollout.rollout_length))
    made = make_plan(known, law, LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=1, lag=0)
    for choice in made.choices:
        config = typed(known, choice)
        each = (config.budget.observations - 2 * choice.observations) / config.rollout.environments
        assert each == pytest.approx(2 * known.episode_steps, rel=1e-3)


def typed(known, choice):
    """The configuration that the plan's command has for `rlscale train`."""
    shape = Shape(choice.workers, 1, choice.batch_size // known.config.rollout.rollout_length // choice.workers)
    config = parse_train(train_command(WorkersOptions(task=known.config.task), known.config, shape, known, choice)[2:])
    check_config(config)
    return config


def test_the_command_of_a_plan_has_the_mini_batches_of_the_sweep_s_runs(known):
    update = replace(known.config.update, epochs=3, shuffle="transitions", warm_up=120)
    inner = replace(known, config=replace(known.config, update=update), mini_batches=4)
    made = make_plan(inner, fit_fleet(readings(), 16), LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=1, lag=0)
    for choice in made.choices:
        update = typed(inner, choice).update
        assert (update.mini_batch, update.epochs, update.warm_up) == (choice.batch_size // 4, 3, 120)


def test_the_average_of_a_plan_s_run_is_as_old_as_in_the_swept_runs():
    """Eight optimizer steps at the pilot's 2,048 observations are 32 of a quarter of that."""
    known = find_frontier("results/minatar-breakout-ewma", None, find_task("minatar/breakout"))
    assert {128, 512, 2048, 8192} <= set(known.rates)
    made = make_plan(known, fit_fleet(readings(), 32), LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=1, lag=0)
    ages = {choice.batch_size: typed(known, choice).update.proximal_average for choice in made.choices}
    assert (ages[128], ages[512], ages[2048], ages[8192]) == (128.0, 32.0, 8.0, 2.0)


def test_the_command_of_a_plan_undoes_the_defaults_that_the_sweep_s_runs_did_not_have():
    """Pong anneals by default, a sweep never does."""
    config = default_config(PONG)
    rollout = replace(config.rollout, random_first_steps=500, reward_noise=2.0, cut_on_life_loss=False)
    config = replace(config, rollout=rollout, update=replace(config.update, anneal=False, mini_batch=None, epochs=1))
    known = Known(config, -19.0, fit([512, 2048, 8192], [500.0, 200.0, 125.0]), {512: 0.001, 2048: 0.002})
    made = make_plan(known, fit_fleet(readings(), 128), LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=1, lag=0)
    found = typed(known, made.choices[0])
    assert not found.update.anneal
    assert (found.rollout.random_first_steps, found.rollout.reward_noise) == (500, 2.0)
    assert not found.rollout.cut_on_life_loss


def test_the_steps_of_a_plan_are_the_frontier_s_at_the_observations_of_a_batch(known):
    """Half of the small batch are resets: it needs the optimizer steps of half the batch, in the time of the whole."""
    law, learner = fit_fleet(readings(), 16), LearnerTime(0.05, 0.01, 1e-4, 0)
    whole = make_plan(known, law, learner, Price(1.0), cpus=1, lag=0)
    half = make_plan(replace(known, valid={128: 64.0}), law, learner, Price(1.0), cpus=1, lag=0)
    before, after = whole.choices[0], half.choices[0]
    assert before.batch_size == after.batch_size == 128
    assert before.optimizer_steps == pytest.approx(100 * (1 + 1000 / 128))
    assert after.optimizer_steps == pytest.approx(100 * (1 + 1000 / 64))
    assert after.observations == pytest.approx(64 * after.optimizer_steps)
    assert after.iteration == before.iteration
    assert half.choices[1:] == whole.choices[1:]
    assert before.iteration.learning_seconds == pytest.approx(0.05 + 0.01 * 8 + 1e-4 * 128), "eight environments are eight blocks"


def test_published_sweeps_are_planned_as_their_runs_learned():
    inner = find_frontier("results/ladder/minatar-breakout-people-3", None, find_task("minatar/breakout"))
    assert (inner.mini_batches, inner.config.update.epochs) == (4, 3)
    blackjack = find_frontier("results/ladder/blackjack", None, find_task("toy/blackjack"))
    assert blackjack.mini_batches == 1
    assert all(0.5 < blackjack.valid[size] / size < 0.6 for size in blackjack.valid if size >= 40)


def test_a_plan_says_what_to_take_with_care_and_leaves_provisional_sizes_out(tmp_path):
    """CartPole's rung as it was after 174 runs: it goes on."""
    folder = shutil.copytree("results/ladder/cartpole", tmp_path / "cartpole")
    rows = gzip.decompress((folder / "results.jsonl.gz").read_bytes()).splitlines(keepends=True)
    (folder / "results.jsonl.gz").write_bytes(gzip.compress(b"".join(rows[:174])))
    cartpole = find_frontier(str(folder), None, find_task("classic/cartpole"))
    said = "\n".join(cartpole.warnings)
    assert "provisional: the best learning rate at batch size 5,120 lies outside those that reached the goal" in said
    assert "the surface does not fit: the free exponent is 2.21" in said
    assert "Some 24% of the sweep's runs got stuck" in said
    assert max(cartpole.rates) == 2560
    acrobot = find_frontier("results/ladder/acrobot", None, find_task("classic/acrobot"))
    assert any("S_min is below 50 optimizer steps" in sentence for sentence in acrobot.warnings)


def test_a_sweep_whose_best_rates_are_all_extrapolated_cannot_be_planned_with(tmp_path, monkeypatch):
    record = write_sweep(tmp_path / "sweep", Planted())

    def compared(*given):
        (sweep,) = compare(*given).sweeps
        return SimpleNamespace(sweeps=[replace(sweep, rows=[replace(r, provisional=r.batch_sizes) for r in sweep.rows])])

    monkeypatch.setattr(making, "compare", compared)
    with pytest.raises(UsageError, match=r"^--sweep: the best learning rate of every batch size lies outside"):
        find_frontier(str(record.folder), None, find_task("classic/cartpole"))


@pytest.mark.parametrize(
    ("unknown", "goal", "quick", "mend"),
    [
        ((2.0, 4.0), None, False, "Go on with the sweep, or name another one"),
        ((2.0, 4.0), 4.0, False, "Go on with the sweep, or name another one"),
        ((4.0,), 4.0, False, "Choose another --goal"),
        ((2.0, 4.0), None, True, "Go on with the sweep without --quick"),
    ],
)
def test_a_frontier_that_is_not_identified_is_mended_where_that_helps(tmp_path, monkeypatch, unknown, goal, quick, mend):
    record = write_sweep(tmp_path / "sweep", Planted())
    nothing = Estimate(None, None, "why")

    def compared(*given):
        (sweep,) = compare(*given).sweeps
        first, last = sweep.rows[0], sweep.rows[-1]
        rows = [replace(row, goal=at, quick=quick) for row, at in ((first, 2.0), (last, 4.0))]
        return SimpleNamespace(
            sweeps=[replace(sweep, rows=[replace(r, measured=nothing) if r.goal in unknown else r for r in rows])]
        )

    monkeypatch.setattr(making, "compare", compared)
    with pytest.raises(UsageError) as refusal:
        find_frontier(str(record.folder), goal, find_task("classic/cartpole"))
    assert (refusal.value.problem, refusal.value.mend) == ("its frontier is not identified: why", mend)


@pytest.mark.parametrize(("deadline", "late"), [(None, False), (2000.0, True), (4000.0, False)])
def test_a_deadline_within_the_interval_is_told_of(deadline, late):
    choice = Choice(128, 1, 100.0, 12800.0, 1800.0, (1000.0, 3000.0), 1.0, iteration(128, 100, 1))
    assert ("so a run may end too late" in say_choice(choice, currency=True, deadline=deadline)) == late


@pytest.mark.parametrize("interval", [None, (1000.0, 3000.0)])
def test_an_interval_is_spoken_of_where_there_is_one(interval):
    choice = Choice(512, 2, 100.0, 51_200.0, 1500.0, interval, 2.0, iteration(512, 100.0, 1.0))
    said = io.StringIO()
    show_answer(Console(file=said, width=200), choice, ["rlscale"], currency=False)
    assert ("; the interval is that of one run" in said.getvalue()) == (interval is not None)
    assert "100 iterations, 51,200 observations" in said.getvalue()


def test_the_wall_time_s_interval_holds_the_frontier_s(known):
    """S = S_min + E_min / B: with a rate that is known exactly, what is left is the frontier's."""
    law = replace(fit_fleet(readings(), 16), freedom=1, scatter=0.0)
    s_min = Estimate(100.0, (80.0, 130.0))
    frontier = replace(known.frontier, s_min=s_min, e_min=Estimate(1e5, (9e4, 1.2e5)))
    made = make_plan(replace(known, frontier=frontier), law, LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=1, lag=0)
    choice = next(c for c in made.choices if c.batch_size == 512)
    steps = 100 + 1e5 / 512
    low = 1 - math.hypot(20, 1e4 / 512) / steps
    high = 1 + math.hypot(30, 2e4 / 512) / steps
    assert choice.interval == pytest.approx((choice.seconds * low, choice.seconds * high))
    unknown = replace(frontier, s_min=Estimate(100.0, (80.0, math.inf)))
    made = make_plan(replace(known, frontier=unknown), law, LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=1, lag=0)
    assert all(c.interval is None for c in made.choices)


def test_what_no_plan_meets(known):
    made = make_plan(known, fit_fleet(readings(), 16), LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=4, lag=0)
    with pytest.raises(UsageError, match=r"--deadline: no plan ends within 1 s: the fastest takes .* and costs"):
        choose(made, 1.0, None, currency=True)
    with pytest.raises(UsageError, match=r"--budget: no plan costs so little: the cheapest costs .* CPU hours and takes"):
        choose(made, None, 1e-9, currency=False)
    with pytest.raises(UsageError, match=r"no plan meets it and the budget"):
        choose(made, made.fastest().seconds, 1e-9, currency=True)


@pytest.mark.parametrize(
    ("deadline", "budget", "said"),
    [
        (None, None, "the fastest"),
        (1800.0, None, "the cheapest that ends within 30 min 0 s"),
        (None, 0.05, "the fastest that costs at most 0.05"),
        (1800.0, 1_250_000.0, "the cheapest that ends within 30 min 0 s and costs at most 1,250,000"),
    ],
)
def test_what_a_plan_was_chosen_for_names_deadline_and_budget(deadline, budget, said):
    """With a budget faster, dearer plans stand in the same table."""
    assert say_asked(deadline, budget) == said


def test_a_worker_of_a_plan_holds_whole_groups_of_clones(known):
    clones = replace(known, config=replace(known.config, rollout=replace(known.config.rollout, clones=4)))
    made = make_plan(clones, fit_fleet(readings(), 16), LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=8, lag=0)
    assert {(c.batch_size, c.workers) for c in made.choices} == {
        (size, 2**k) for size in known.rates for k in range(4) if size // 16 % (2**k * 4) == 0 and size // 64 >= 3
    }
    for choice in made.choices:
        config = typed(clones, choice)
        assert config.rollout.clones == 4
        check_idle_options(config)  # a batch of two environments and their clones is refused
    assert 128 in known.rates


def test_a_sweep_none_of_whose_runs_has_ended_is_told_of_by_its_flag(tmp_path):
    write_sweep(tmp_path / "sweep", Planted(), most=0)
    with pytest.raises(UsageError, match=r"^--sweep: there is no result to compare .* no run of it has ended"):
        find_frontier(str(tmp_path / "sweep"), None, find_task("classic/cartpole"))


def test_only_workers_that_divide_the_environments_are_looked_at(known, monkeypatch):
    """On a large cluster most numbers of workers divide no batch size, and each takes some ten milliseconds."""
    asked, rate = [], FleetTime.rate
    monkeypatch.setattr(FleetTime, "rate", lambda law, *fleet: asked.append(fleet) or rate(law, *fleet))
    law, learner = fit_fleet(readings(), 16), LearnerTime(0.05, 0, 1e-4, 0)
    asked.clear()
    made = make_plan(known, law, learner, Price(1.0), cpus=64, lag=0)
    assert {(c.batch_size, c.workers) for c in made.choices} == {
        (size, 2**k) for size in known.rates for k in range(7) if 2**k <= size // 16
    }
    assert len(asked) == len(made.choices)
    with pytest.raises(UsageError, match=r"--sweep: "):
        make_plan(replace(known, rates={24: 0.01}), law, learner, Price(1.0), cpus=64, lag=0)


def test_the_runs_that_the_docs_count_lie_within_the_interval():
    """docs/workers.md: runs of the published sweep within 1.5 times the learning rate that the plan's command would name."""
    task = find_task("minatar/breakout")
    frontier = find_frontier(str(ROOT / "results" / "minatar-breakout"), None, task).frontier
    near = [
        point
        for point, rate in zip(frontier.points, frontier.learning_rates, strict=True)
        if abs(math.log(rate / frontier.best_rate(point.batch_size))) <= math.log(1.5)
    ]

    def within(scatter):
        inside = 0
        for p in (p for p in near if not p.censored):
            low, high = _interval(float(frontier.optimizer_steps(p.batch_size)), _steps_interval(frontier, p.batch_size), scatter)
            inside += low <= p.optimizer_steps <= high
        return inside

    half = frontier.run_half_width
    text = " ".join((ROOT / "docs" / "workers.md").read_text().split())
    assert f"of the {len(near)} published runs of MinAtar Breakout near the best learning rate " in text
    assert f"{within((math.exp(-half), math.exp(half)))} lie within the interval with it, {within((1.0, 1.0))} without" in text
