"""`rlscale workers`: readings that a planted law made give it back, the fleet that is recommended, the plan, the words."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import pytest

from rlscale.agents import machine
from rlscale.agents.checks import check_config
from rlscale.agents.cluster.head_node import LostHeadError
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.options import parse_train
from rlscale.benchmarks.workers import calibration
from rlscale.benchmarks.workers import run as workers
from rlscale.benchmarks.workers.calibration import FleetReading, Shape, fit_fleet, measure_learner, sample_fragments
from rlscale.benchmarks.workers.options import WorkersOptions
from rlscale.benchmarks.workers.plan import Known, choose, find_frontier, make_plan
from rlscale.benchmarks.workers.recommendation import candidates, predict, recommend, to_measure, train_command
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.estimate import Estimate
from rlscale.frontier import fit
from rlscale.report.words import say_limit
from rlscale.report.workers_page import WorkersPage, knee, plan_figure, throughput_figure, write_workers_page
from rlscale.sizing import LearnerTime, Price

PONG = find_task("atari/pong")
FIXED, PARALLEL = 2e-3, 5e-4  # of a step, and per environment of it, shared by threads


def reading(shape: Shape, slowdown: float, rounds=4, message=0.01, noise=None) -> FleetReading:
    """What a fleet of that law does; every fragment costs the learner's machine `message` seconds."""
    seconds = 32 * (FIXED + shape.environments * PARALLEL / shape.threads) * slowdown
    fragments = tuple((seconds * (1 if noise is None else noise()),) * shape.actors for _ in range(rounds))
    walls = tuple(row[0] + message * shape.actors for row in fragments)
    return FleetReading(shape, 32, walls, fragments, shape.actors * shape.environments * 32 * 7100)


def readings(cpus=4, contention=0.1, **changes):
    return [reading(s, 1 + contention * (s.actors - 1), **changes) for s in to_measure(PONG, cpus)]


def test_a_planted_law_comes_back():
    law = fit_fleet(readings(), rollout_length=128)
    assert law.service.fixed == pytest.approx(FIXED, rel=1e-3)
    assert law.service.parallel == pytest.approx(PARALLEL, rel=1e-3)
    assert dict(law.slowdowns) == pytest.approx({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3})
    assert law.seconds(4, 32) == pytest.approx(128 * (FIXED + 32 * PARALLEL) * 1.3 + 4 * 0.01, rel=1e-3)
    assert law.seconds(2, 64, 2) == pytest.approx(128 * (FIXED + 64 * PARALLEL / 2) * 1.3 / 1.1 + 2 * 0.01, rel=1e-3)
    assert law.rate(4, 32).value == pytest.approx(4 * 32 * 128 / law.seconds(4, 32))
    assert law.observation_bytes == pytest.approx(7100)


def test_more_actors_are_never_taken_to_make_each_faster():
    """With 2 and 3 actors fragments come out faster than with 1, by chance. All three then count as one, by their fragments."""
    off = {1: 1.05, 2: 1.0, 3: 0.97, 4: 1.2}
    law = fit_fleet([reading(s, off.get(s.actors, 1.0)) for s in to_measure(PONG, 4)], 32)
    assert [factor for _, factor in law.slowdowns[:3]] == [1.0, 1.0, 1.0]
    usual = (1.05 + 2 * 1.0 + 3 * 0.97) / 6
    assert law.slowdowns[3][1] == pytest.approx(1.2 / usual)


def test_predictions_keep_what_they_promise():
    """Readings that scatter by 3%: nine of ten fresh ones lie in the 95% interval, and not all in the 50% one."""
    rng = np.random.default_rng(0)
    inside = {0.95: 0, 0.5: 0}
    shape = Shape(2, 1, 32)
    for _ in range(40):
        law = fit_fleet(readings(rounds=6, noise=lambda: np.exp(0.03 * rng.normal())), rollout_length=32)
        fresh = reading(shape, 1.1, rounds=1, noise=lambda: np.exp(0.03 * rng.normal())).rates[0]
        for confidence in inside:
            low, high = law.rate(2, 32, confidence=confidence).interval
            inside[confidence] += low <= fresh <= high
    assert inside[0.95] >= 36
    assert 8 <= inside[0.5] <= 32


def test_few_fleets_are_measured_and_many_could_be_used():
    for cpus in (1, 2, 4, 16, 64):
        few, grid = to_measure(PONG, cpus), candidates(PONG, cpus)
        assert set(few) <= set(grid)
        assert all(s.actors * s.threads <= cpus for s in grid)
        assert len(set(grid)) == len(grid) > len(few)
        assert len(few) <= 17
        assert {s.actors for s in few} >= {1, cpus}
    assert len(to_measure(PONG, 2)) == 7


def test_the_recommended_fleet():
    """The best predicted rate of whole iterations, or nearly: with free workers all CPUs; with crowded ones fewer."""
    options = WorkersOptions(task=PONG.id)
    learner = LearnerTime(0.1, 0.0, 2e-5, 0.0)
    grid = candidates(PONG, 4)
    for contention, actors in ((0.0, 4), (2.0, 1)):
        law = fit_fleet(readings(contention=contention, message=0.0), 128)
        found = recommend(options, default_config(PONG), PONG, law, learner, 4000.0, grid)
        every = {s: predict(options, default_config(PONG), law, learner, 4000.0, s) for s in grid}
        best = max(one.end_to_end for one in every.values())
        assert found == every[found.shape]
        assert found.end_to_end >= 0.98 * best
        total = found.shape.actors * found.shape.environments
        assert all(one.end_to_end < 0.98 * best for s, one in every.items() if s.actors * s.environments < total)
        assert found.shape.actors * found.shape.threads >= actors
        assert sum(found.shares.values()) == pytest.approx(1)
        batch = total * 128
        assert found.batch_size == batch
        assert found.iteration.seconds == pytest.approx(batch / found.rate.value + learner.seconds(batch))
        assert found.end_to_end == pytest.approx(batch / found.iteration.seconds)
        takes = {name: share * found.iteration.seconds for name, share in found.shares.items()}
        assert takes["emulator"] == pytest.approx(found.shape.environments * 128 / (4000.0 * found.shape.threads))
        assert takes["learner"] == pytest.approx(learner.seconds(batch))
        alone = 128 * (FIXED + found.shape.environments * PARALLEL / found.shape.threads)
        crowd = (1 + contention * (found.shape.actors * found.shape.threads - 1)) / (1 + contention * (found.shape.threads - 1))
        assert takes["emulator"] + takes["inference"] == pytest.approx(alone * crowd, rel=1e-3)
    config = parse_train(found.command[2:])
    check_config(config)
    assert (config.rollout.actors, config.rollout.actor_cpus) == (found.shape.actors, found.shape.threads)
    assert config.rollout.environments == total


def test_where_the_learner_is_the_limit_a_small_fleet_is_recommended_and_said():
    """A hundred times slower learner: four actors would sample four times as fast, and nobody would notice."""
    law = fit_fleet(readings(contention=0.0, message=0.0), 128)
    options, grid = WorkersOptions(task=PONG.id), candidates(PONG, 4)
    slow, fast = (
        recommend(options, default_config(PONG), PONG, law, LearnerTime(0.0, 0.0, each, 0.0), 4000.0, grid)
        for each in (0.05, 1e-6)
    )
    assert slow.shape == Shape(1, 1, 8)
    assert "the learner is the limit, sampling takes 1% of the time, and more workers hardly help" in say_limit(slow.shares)
    assert fast.shape.actors == 4
    assert say_limit(fast.shares).endswith("and more CPUs for workers help")


@pytest.fixture(scope="module")
def known():
    task = find_task("minatar/breakout")
    config = default_config(task)
    config = replace(
        config, update=replace(config.update, epochs=1, mini_batch=None, advantage_scale="running", entropy_coef=0.03)
    )
    config = replace(config, rollout=replace(config.rollout, rollout_length=16))
    sizes = [128, 512, 2048, 8192]
    return Known(config, 4.0, fit(sizes, [100 * (1 + 1000 / b) for b in sizes]), dict.fromkeys(sizes, 0.0123))


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


def test_the_learner_is_timed_as_it_learns_late_in_a_run():
    """Early in a run every loss is measured in every update, later one in a hundred."""
    config = default_config(find_task("classic/cartpole"))
    compute = resolve_compute(config)
    fragments = sample_fragments(config, find_task("classic/cartpole"), compute, 16, 1)
    measured, learn = [], calibration.learn_batch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "learn_batch", lambda *given: measured.append(learn(*given)))
        reading = measure_learner(config, find_task("classic/cartpole"), compute, fragments, None, mini_batches=2)
    assert len(reading["seconds"]) == len(measured) - 1
    for number, result in enumerate(measured, 1):
        assert {record.head for record in result.noise} <= {"joint", "joint_policy_parameters", "policy_last_layer"}
        assert result.optimizer_steps == number * 2 * config.update.epochs


def page_of(law, planned, cpus=4):
    measured = [(r.shape.actors, r.shape.threads, r.shape.environments, r.rates) for r in readings(cpus)]
    plan = None if planned is None else "<task>: batch size 64 on 1 worker"
    about = {"command": ["a", "b c"], "commit": None}
    return WorkersPage(
        task="<task>",
        answer=["Use <two>", "so fast"],
        plan=plan,
        run={"For <x>": ["rlscale", "train", "x y"]},
        busy="this machine is <busy>",
        measured=measured,
        law=law,
        cpus=cpus,
        chosen=(2, 1, 32),
        planned=planned,
        currency=True,
        sources=about,
    )


def test_the_page_shows_every_choice(known, tmp_path):
    law = fit_fleet(readings(), 32)
    made = make_plan(known, replace(law, rollout_length=16), LearnerTime(0.05, 0, 1e-4, 0), Price(1.0), cpus=4, lag=0)
    write_workers_page(tmp_path / "workers.html", page_of(law, (4.0, made)))
    text = (tmp_path / "workers.html").read_text()
    assert "&lt;task&gt;: how many workers" in text
    plan, fleet = "<p class='answer'>&lt;task&gt;: batch size 64 on 1 worker</p>", "<p class='answer'>Use &lt;two&gt;</p>"
    assert text.index(plan) < text.index(fleet) < text.index("class='chart'") < text.index("so fast"), "the plan was asked for"
    assert "<p class='warning'>this machine is &lt;busy&gt;.</p>" in text
    run = "<p class='note'>For &lt;x&gt;:</p><pre class='command'><span>rlscale</span> <span>train</span> <span>&#x27;x</span> "
    assert f"{run}<span>y&#x27;</span></pre>" in text
    assert "Wall time against cost, to a mean return of 4" in text
    assert "a &#x27;b c&#x27;" in text
    points = plan_figure(made, currency=True).chart.to_dict()["layer"]
    drawn = [len(layer["data"]["values"]) for layer in points]
    assert drawn == [len(made.pareto), len(made.choices), len(made.pareto)]
    assert f"<td data-label='workers'>{made.pareto[0].workers}</td>" in text


def test_without_a_sweep_the_page_shows_throughput_and_its_knee(tmp_path):
    law = fit_fleet(readings(contention=0.0, message=0.0), 32)
    write_workers_page(tmp_path / "workers.html", page_of(law, None))
    assert "Wall time against cost" not in (tmp_path / "workers.html").read_text()
    lines, rules, points, ring = (
        layer["data"]["values"] for layer in throughput_figure(page_of(law, None)).chart.to_dict()["layer"]
    )
    assert {(p["actors"], p["of"]) for p in points} == {
        (s.actors, f"{s.environments} environments an actor") for s in to_measure(PONG, 4) if s.threads == 1
    }
    assert len(rules) == len(points)
    assert {p["actors"] for p in lines} == {1, 2, 3, 4}
    assert ring == [{"actors": 2, "rate": law.rate(2, 32).value}]
    assert knee(law, 32, 4) == 4
    crowded = fit_fleet(readings(contention=0.5, message=0.0), 32)  # n workers sample n / (1 + (n - 1) / 2): 1, 1.33, 1.5, 1.6
    assert knee(crowded, 32, 4) == 1


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
    ("words", "message"),
    [
        (["--deadline", "1h"], "--deadline: how long a run takes follows from a sweep"),
        (["--sweep", "nowhere"], "--sweep: "),
        (["--cpus", "4096"], "--cpus: this machine has "),
        (["--cpus", "0"], "--cpus: 0 is not a positive number"),
        (["--sweep", "results/minatar-breakout", "--price-gpu-hour", "2"], "--price-gpu-hour: it cannot be added to CPU hours"),
        (["--price-gpu-hour", "-1"], "--price-gpu-hour: -1.0 is not zero or more"),
        (["--lag", "1"], "--lag: on this machine actors and learner share the same cores"),
        (["--sweep", "results/minatar-breakout"], "is of minatar/breakout, not classic/cartpole"),
        (["--sweep", "results/minatar-breakout", "--budget", "3"], "--budget: there is no price"),
        (["--ray-address", "127.0.0.1:1"], "--ray-address: nothing answers"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys, own_ray):
    assert main(["workers", "classic/cartpole", *words]) == 2
    said, problem = capsys.readouterr()
    assert message in problem
    assert problem.count("\n") == 1
    assert said == ""


def test_what_was_measured_before_a_stop_is_kept(tmp_path, monkeypatch, capsys):
    """Ctrl-C, then a head that dies, then the rest: no fleet is measured twice. Other measurements begin afresh."""
    stops = {2: KeyboardInterrupt(), 4: LostHeadError()}
    begun, measured = [], []

    def measure(config, task, session, shape, seconds):
        begun.append(shape)
        if len(begun) - 1 in stops:
            raise stops[len(begun) - 1]
        measured.append(shape)
        return reading(shape, 1.0)

    monkeypatch.setattr(workers, "measure_fleet", measure)
    learning = {"batch_size": 512, "blocks": None, "seconds": [0.1, 0.1]}
    planted = {"connect": None, "disconnect": None, "measure_emulator": 9e3, "sample_fragments": [], "measure_learner": learning}
    for name, value in planted.items():
        monkeypatch.setattr(workers, name, lambda *_, value=value: value)
    words = ["workers", "classic/cartpole", "--cpus", "2", "--out", str(tmp_path)]
    for code, problem in ((130, "interrupted"), (2, "the head of the Ray cluster does not answer any more")):
        assert main(words) == code
        go_on = f"Fleets that were measured are kept; go on with: rlscale {' '.join(words)}"
        assert capsys.readouterr().err == f"rlscale: {problem}. {go_on}\n"
    assert main(words) == 0
    assert "3 of the fleets were measured before" in capsys.readouterr().out
    shapes = to_measure(find_task("classic/cartpole"), 2)
    assert measured == shapes
    fleets = json.loads((tmp_path / "workers.json").read_text())["fleets"]
    assert fleets == json.loads(json.dumps([asdict(reading(shape, 1.0)) for shape in shapes]))
    assert not (tmp_path / "measured.json").exists()
    capsys.readouterr()
    assert main(words) == 0
    assert measured == shapes, "a what-if uses what is there"
    assert "--again measures them anew" in capsys.readouterr().out
    assert main([*words, "--again"]) == 0
    assert measured == 2 * shapes
    stops[len(begun) + 2] = KeyboardInterrupt()
    assert main([*words, "--again"]) == 130
    assert main([*words, "--seconds", "1"]) == 0
    assert measured[-len(shapes) :] == shapes, "measured otherwise"


def test_what_ifs_measure_no_fleet_again(known, tmp_path, monkeypatch, capsys):
    """A sweep, a deadline and prices are asked about one after another; only the learner is measured for the sweep's own way."""
    measured, learned = [], []
    planted = {"connect": None, "disconnect": None, "measure_emulator": 9e3, "sample_fragments": []}
    for name, value in planted.items():
        monkeypatch.setattr(workers, name, lambda *_, value=value: value)
    monkeypatch.setattr(
        workers, "measure_fleet", lambda config, task, session, shape, seconds: measured.append(shape) or reading(shape, 1.0)
    )
    monkeypatch.setattr(workers, "find_frontier", lambda *_: known)

    def measure_learner(*_):
        learned.append(len(measured))
        return {"batch_size": 512 * len(learned), "blocks": None, "seconds": [0.1 * len(learned)] * 2}

    monkeypatch.setattr(workers, "measure_learner", measure_learner)
    words = ["workers", "minatar/breakout", "--cpus", "2", "--out", str(tmp_path)]
    assert main(words) == 0
    fleets, plain = list(measured), len(learned)
    assert fleets == to_measure(find_task("minatar/breakout"), 2)
    page = (tmp_path / "workers.html").read_bytes()
    words += ["--sweep", "planted"]
    assert main(words) == 0
    assert (tmp_path / "workers.html").read_bytes() == page, "a plan has a page of its own"
    assert (tmp_path / "plan.html").stat().st_size > 10_000
    with_sweep = len(learned)
    assert with_sweep > plain
    plans = []
    for more in ([], ["--price-cpu-hour", "0.04"], ["--deadline", "100h"], ["--price-cpu-hour", "0.08", "--budget", "1000"]):
        assert main([*words, *more]) == 0, capsys.readouterr().err
        plans.append(json.loads((tmp_path / "workers.json").read_text())["plan"])
    assert measured == fleets
    assert len(learned) == with_sweep
    assert plans[0] != plans[1] != plans[2] != plans[3]


def test_a_busy_machine_is_told_from_a_quiet_one(monkeypatch):
    """Ticks of the system's clock that all CPUs have worked, over the seconds between two looks."""
    hertz = os.sysconf("SC_CLK_TCK")
    ticks = iter([1000.0, 1000.0 + 0.01 * 1.5 * hertz, 5.0, 5.0])
    monkeypatch.setattr(machine, "_cpu_ticks", lambda: next(ticks))
    busy = machine.busy_cpus(0.01)
    assert busy == pytest.approx(1.5)
    assert workers.say_busy(busy) == (
        "this machine is busy: other programs use 1.5 CPUs, and what is measured now is slower than it could be"
    )
    quiet = machine.busy_cpus(0.01)
    assert quiet == 0
    assert workers.say_busy(quiet) is workers.say_busy(None) is None
    monkeypatch.setattr(machine, "_cpu_ticks", lambda: None)
    assert machine.busy_cpus(0.01) is None


def test_the_system_s_clock_counts_work_and_not_waiting():
    """One process that computes for a while adds about as many ticks as it has used."""
    before, used = machine._cpu_ticks(), time.process_time()
    while time.process_time() - used < 0.5:
        pass
    worked = (machine._cpu_ticks() - before) / os.sysconf("SC_CLK_TCK")
    assert worked > 0.4


def test_a_newcomer_measures_and_pastes(tmp_path):
    """The real command with its check; what it prints is typed again."""
    words = ["workers", "classic/cartpole", "--cpus", "1", "--seconds", "0.2", "--validate", "--out", str(tmp_path / "here")]
    done = subprocess.run([sys.executable, "-m", "rlscale", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Use " in done.stdout
    assert "error of the prediction: median" in done.stdout
    record = json.loads((tmp_path / "here" / "workers.json").read_text())
    held_out = [row["shape"] for row in record["validation"]["rows"]]
    assert held_out
    assert not any(fleet["shape"] in held_out for fleet in record["fleets"])
    best = record["validation"]["best_measured"]["rate"]
    assert 0 < record["validation"]["recommended_of_best"] <= 1
    assert best >= max(row["measured"] for row in record["validation"]["rows"])
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("run it:")]
    pasted = line.removeprefix("run it:").split()
    assert pasted[0] == "rlscale"
    assert pasted == ["rlscale", *record["recommendation"]["command"][1:]]
    run = [*pasted[1:], "--optimizer-steps", "1", "--run", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-m", "rlscale", *run], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
