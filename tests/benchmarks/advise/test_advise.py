"""`rlscale advise`: settings by hand, lines that work when they are pasted, the real command, and bad input."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run_records import charts_of, make_run

from rlscale.agents.checks import check_config
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.analysis.reading import published, read_noise
from rlscale.benchmarks.advise import fastest
from rlscale.benchmarks.advise.fastest import learning_times, shortest, with_steps
from rlscale.benchmarks.advise.job import config_of
from rlscale.benchmarks.advise.settings import configured, lines_for, settings_for
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.options import parse_train
from rlscale.benchmarks.workers.calibration import ROLLOUT, timed_environments
from rlscale.envs import find_task
from rlscale.estimate import Estimate
from rlscale.records import RunRecord
from rlscale.report.advice_page import Advice, Throughput, advice_lines, write_advice_page
from rlscale.sizing import LearnerTime, ScaleOut

ROOT = Path(__file__).parent.parent.parent.parent
JOB = str(ROOT / "results" / "rllib-pong")
PONG = default_config(find_task("atari/pong"))  # 16 environments of 128 steps, mini-batches of 256, 1e-3


@pytest.mark.parametrize(
    ("suggestion", "actors", "mini_batch", "environments"),
    [
        (Estimate(1100.0, (900.0, 1300.0)), 2, 1024, 32),  # four mini-batches
        (Estimate(300.0, (100.0, 900.0)), 3, 256, 18),  # the task's own batch, over three actors
        (Estimate(None, (5000.0, float("inf")), "not resolved"), 1, 4096, 128),  # only a lower end
        (Estimate(None, (0.0, float("inf")), "nothing"), 1, 256, 16),
        (Estimate(30.0, (20.0, 50.0)), 1, 256, 16),  # less than the task's own
        (Estimate(1e9, None), 1, 2**17, 4096),
    ],
)
def test_settings_follow_the_suggestion(suggestion, actors, mini_batch, environments):
    found = settings_for(PONG, suggestion, actors)
    assert (found.mini_batch, found.environments, found.rollout_length) == (mini_batch, environments, 128)
    assert found.batch_size == environments * 128
    wanted = PONG.update.learning_rate * min((mini_batch / 256) ** 0.5, 4)
    assert found.learning_rate == pytest.approx(wanted, rel=1e-4), "four digits"


@pytest.mark.parametrize(
    ("critical", "sampling", "mini_batch"),
    [
        (800.0, 2e-3, 256),  # by hand, ms for each of the fewest observations: 4.93 at 64, 4.48 at 256, 7.06 at 1,024, 18.5
        (100_000.0, 2e-3, 1024),  # 4.57, 3.40, 3.13, 3.15
        (64.0, 2e-3, 64),
        (100_000.0, 1.0, 64),  # sampling takes all the time, and a larger batch more observations
    ],
)
def test_the_mini_batch_that_ends_soonest(critical, sampling, mini_batch):
    times = {size: 1e-3 * (1 + 100 / size) for size in (64, 256, 1024, 4096)}  # a step costs what 100 observations do
    assert shortest(critical, sampling, times) == mini_batch


@pytest.mark.parametrize(("fixed", "block"), [(0.0, 0.0), (0.3, 0.01)])
def test_mini_batches_that_grow_with_the_batch_take_their_own_time(fixed, block):
    """Planted: a step takes 10 ms, an observation of it 0.1 ms. Four steps of any batch; timed at mini-batches of 256."""
    times = {size: 1e-4 + 1e-2 / size for size in (256, 1024, 4096)}
    learner = with_steps(LearnerTime(fixed, block, times[256], 0.0), times, 4)
    for size in (64, 1024, 65_536):
        assert learner.seconds(4 * size) == pytest.approx(fixed + 16 * block + 4 * 1e-2 + 4 * size * 1e-4)


@pytest.mark.parametrize("times", [{256: 1e-4}, {256: 1e-4, 1024: 2e-4}])
def test_where_larger_mini_batches_save_nothing_the_learner_stays(times):
    learner = LearnerTime(0.1, 0.0, 1e-4, 0.0)
    assert with_steps(learner, times, 4) == learner


def test_the_time_of_an_observation_is_that_of_the_batch_by_its_size(monkeypatch):
    task = find_task("classic/cartpole")
    config = default_config(task)
    monkeypatch.setattr(fastest, "measure_learner", lambda *given: {"seconds": [2.0, 4.0]})
    times = learning_times(config, task, resolve_compute(config), 1e6)
    assert set(times.values()) == {3.0 / (task.cost.many * ROLLOUT)}


def test_learning_is_timed_at_every_mini_batch():
    """More optimizer steps take longer for the same observations, on any machine."""
    task = find_task("classic/cartpole")
    config = default_config(task)
    times = learning_times(config, task, resolve_compute(config), 1e6)
    size = task.cost.many * ROLLOUT
    usual = min(config.update.mini_batch or config.batch, size)
    assert set(times) == {usual * 4**k for k in range(9) if usual * 4**k <= size}
    assert len(times) > 1
    assert times[usual] > times[max(times)]
    assert set(learning_times(config, task, resolve_compute(config), 1.9 * usual)) == {usual}


def test_tiny_mini_batches_are_timed_in_a_few_hundred_steps(monkeypatch):
    """Those of A2C, five observations: 40 environments of 32 steps make 256 of them, and the task's 256 would make 1,638."""
    task = find_task("classic/cartpole")
    usual = default_config(task)
    usual = replace(usual, update=replace(usual.update, mini_batch=None))
    config = replace(usual, update=replace(usual.update, epochs=1, mini_batch=5))
    steps = {}

    def measured(config, task, compute, fragments, blocks):
        steps[config.update.mini_batch] = sum(f.environments for f in fragments) * ROLLOUT / config.update.mini_batch
        return {"seconds": [steps[config.update.mini_batch] * 1e-3]}

    monkeypatch.setattr(fastest, "measure_learner", measured)
    times = learning_times(config, task, resolve_compute(config), 1e6)
    assert max(steps.values()) <= 256
    assert times == pytest.approx({size: 1e-3 / size for size in steps})
    assert timed_environments(config, task) * ROLLOUT / 5 <= 256
    assert timed_environments(usual, task) == task.cost.many


def test_a_mini_batch_that_does_not_divide_what_is_timed_is_timed_all_the_same():
    task = find_task("classic/cartpole")
    config = default_config(task)
    config = replace(config, update=replace(config.update, epochs=1, mini_batch=1000))
    times = learning_times(config, task, resolve_compute(config), 1e6)
    assert set(times) == {1000, 4000}
    assert min(times.values()) > 0


@pytest.mark.parametrize(
    ("in_use", "suggested", "mini_batch"), [(90, 70.0, 90), (90, 100.0, 128), (32, 10.0, 32), (2**18, 1e9, 2**18)]
)
def test_the_mini_batch_in_use_is_the_least(in_use, suggested, mini_batch):
    config = replace(PONG, update=replace(PONG.update, mini_batch=in_use))
    assert settings_for(config, Estimate(suggested, None), 1).mini_batch == mini_batch


def test_a_small_mini_batch_is_not_raised_beyond_the_suggestion():
    """A job of A2C with four environments of five steps: 64 would be said to stay, as in use."""
    config = replace(PONG, rollout=replace(PONG.rollout, environments=4, rollout_length=5, batch_size=None))
    config = replace(config, update=replace(config.update, mini_batch=None))
    assert settings_for(config, Estimate(25.0, None), 1).mini_batch == 32
    assert settings_for(config, Estimate(12.0, None), 1).mini_batch == 20


def test_the_line_is_the_configuration():
    settings = settings_for(PONG, Estimate(1100.0, None), 2)
    lines = lines_for("atari/pong", settings)
    assert parse_train(lines["rlscale"].split()[2:]) == configured(PONG, settings)
    assert "num_env_runners=2, num_envs_per_env_runner=16, rollout_fragment_length=128" in lines["RLlib"]
    assert "train_batch_size_per_learner=4096, minibatch_size=1024" in lines["RLlib"]
    assert "n_envs=32), n_steps=128, batch_size=1024" in lines["Stable-Baselines3"]


def test_only_our_own_line_has_environments_for_mini_batches_that_divide_the_batch():
    """RLlib's defaults: 4,000 observations in mini-batches of 128; the nearest number of whole mini-batches is 31."""
    rollout = replace(PONG.rollout, environments=2, rollout_length=2000, actors=2)
    job = replace(PONG, rollout=rollout, update=replace(PONG.update, mini_batch=128, epochs=30))
    settings = settings_for(job, Estimate(55.0, None), 2)
    lines = lines_for("mine", settings)
    assert "num_envs_per_env_runner=1, rollout_fragment_length=2000" in lines["RLlib"]
    assert "train_batch_size_per_learner=4000, minibatch_size=128" in lines["RLlib"]
    assert "n_envs=2), n_steps=2000, batch_size=128" in lines["Stable-Baselines3"]
    check_config(configured(job, settings))
    assert (settings.environments, settings.rollout_length) == (2, 1984)


@pytest.mark.parametrize(
    ("environments", "steps", "mini_batch", "found"),
    [
        (3, 1333, 128, (3, 1280)),  # RLlib's batch of 4,000 over environments that do not divide it
        (7, 571, 128, (8, 576)),
        (12, 333, 128, (12, 320)),
        (16, 250, 128, (16, 248)),
        (1, 2048, 100, (1, 2000)),  # of Stable-Baselines3
        (1, 1000, 64, (1, 1024)),
        (8, 128, 256, (8, 128)),
    ],
)
def test_a_job_s_batch_that_mini_batches_do_not_divide_becomes_the_nearest_that_they_do(environments, steps, mini_batch, found):
    rollout = replace(PONG.rollout, environments=environments, rollout_length=steps, actors=1)
    job = replace(PONG, rollout=rollout, update=replace(PONG.update, mini_batch=mini_batch))
    settings = settings_for(job, Estimate(None, None, "not resolved"), 1)
    assert (settings.environments, settings.rollout_length, settings.mini_batch) == (*found, mini_batch)
    check_config(configured(job, settings))
    assert (settings.fewest_environments, settings.usual_length) == (environments, steps)


def test_a_batch_of_one_optimizer_step_stays_one_where_nothing_larger_is_suggested():
    job = replace(PONG, update=replace(PONG.update, mini_batch=None, epochs=1))
    settings = settings_for(job, Estimate(500.0, None), 2)
    assert (settings.mini_batch, settings.batch_size) == (2048, 2048)


@pytest.mark.parametrize("task", ["atari/pong", "minatar/breakout", "classic/cartpole"])
@pytest.mark.parametrize("actors", [1, 2, 3, 5, 6, 7, 9, 12, 16])
@pytest.mark.parametrize("suggested", [100.0, 1024.0, 4096.0])
def test_what_is_advised_can_be_typed_with_any_number_of_actors(task, actors, suggested):
    config = default_config(find_task(task))
    settings = settings_for(config, Estimate(suggested, None), actors)
    check_config(configured(config, settings))
    usual = config.update.mini_batch
    assert settings.mini_batch == max(usual, int(suggested))
    assert settings.batch_size < 4 * max(config.batch, 4 * settings.mini_batch) + actors * settings.rollout_length


def test_a_job_of_several_learners_is_read_as_a_whole(tmp_path):
    """RLlib states the batch and mini-batch of one learner, and the rate may be a schedule."""
    stored = {"_train_batch_size_per_learner": 2048, "minibatch_size": 256, "num_epochs": 3, "num_learners": 4}
    stored |= {"num_env_runners": 8, "num_envs_per_env_runner": 2, "lr": [[0, 1e-3], [1_000_000, 0.0]]}
    manifest = {"config": {"rllib": stored}, "task": {"id": "mine"}}
    record = RunRecord(tmp_path, manifest, [{"learning_rate": 5e-4}])
    config = config_of(record)
    assert (config.batch, config.mini_batch, config.update.epochs, config.update.learning_rate) == (8192, 1024, 3, 5e-4)
    settings = settings_for(config, Estimate(4096.0, None), 8)
    line = lines_for("mine", settings, 4)["RLlib"]
    assert (
        f"learners(num_learners=4).training(train_batch_size_per_learner={settings.batch_size // 4}, minibatch_size=1024," in line
    )


def advice_of(tmp_path, **changes):
    run = make_run(tmp_path / "run")
    shares = {"emulator": 0.6, "inference": 0.1, "waiting": 0.08, "transfer": 0.02, "learner": 0.2}
    more = [
        ScaleOut(1, 512, 1.0, 1.0, "sampling"),
        ScaleOut(2, 512, 1.8, 1.11, "sampling"),
        ScaleOut(4, 1024, 2.0, 2.0, "learning"),
    ]
    given = {
        "task": "<pong>",
        "known": True,
        "run": "run",
        "reading": read_noise(run),
        "throughput": Throughput(2, 16, 2, Estimate(900.0, None), 700.0, 800.0, shares, 1.5, timed=2),
        "more": more,
        "unit": "machine",
        "price_hour": 0.25,
        "mini_batch": 64,
        "settings": {"mini_batch": 256, "batch_size": 2048, "epochs": 1},
        "lines": {"rlscale": "rlscale train", "RLlib": "config"},
        "seconds": 200.0,
        "command": ["rlscale", "advise"],
        "commit": None,
        "date": "2026",
    }
    return run, Advice(**(given | changes))


def test_what_a_sweep_takes_follows_from_the_runs_own_mini_batch(tmp_path):
    """A run of B = B_crit took twice the fewest observations, whatever mini-batch is advised."""
    _run, advice = advice_of(tmp_path)
    reading = replace(advice.reading, suggestion=Estimate(64.0, (50.0, 80.0)), observations=8_000_000, last_return=7.0)
    least, low, high, most = published()["sweep_cost"]
    spent = f"cost {low} to {high} times the fewest observations to their goals (all of them {least} to {most:,}), "
    spent += "without evaluation; "
    for epochs, more in ((1, "."), (4, ", or longer: a sweep makes one pass over its observations, and the run made 4.")):
        said = advice_lines(replace(advice, reading=reading, settings={**advice.settings, "epochs": epochs}))
        (line,) = [one for one in said if one.startswith("To measure it")]
        hours = [times * 4_000_000 / 800 / 3600 for times in (low, high)]
        took = f"roughly {hours[0]:.2g} h to {hours[1]:.2g} h here{more}"
        took = f"to the return of 7 that this run reached, this is {took}"
        assert line.endswith(spent + took)
    half = replace(advice, reading=reading, mini_batch=128, valid=0.5)  # of 128 steps as many as of 64 are observations
    assert [one for one in advice_lines(half) if one.endswith(f"{hours[1]:.2g} h here.")]


@pytest.mark.parametrize(("valid", "times"), [(1.0, "3.6"), (0.9, "3.3"), (0.5, None)])
def test_a_mini_batch_in_use_is_too_large_by_its_observations(tmp_path, valid, times):
    """Of 256 steps, where 100 observations are suggested: 1 + 256 valid / 100 times the fewest, told beyond three times."""
    _run, advice = advice_of(tmp_path, valid=valid)
    reading = replace(advice.reading, suggestion=Estimate(100.0, (80.0, 120.0)))
    said = advice_lines(replace(advice, reading=reading))[0]
    assert ("Mini-batches of 256 stay, as in use" in said) == (times is not None)
    assert times is None or f"they cost {times} times the fewest observations" in said


def test_the_page_begins_with_the_answer(tmp_path):
    run, advice = advice_of(tmp_path)
    write_advice_page(tmp_path / "advice.html", advice, run)
    text = (tmp_path / "advice.html").read_text()
    assert text.index("<p class='answer'>&lt;pong&gt;: ") < text.index("This is a prediction, not a measurement")
    assert len(charts_of(tmp_path / "advice.html")) == 3
    said = advice_lines(advice)
    assert "Here 2 actors of 16 environments will do: the environments are the limit" in said[0]
    assert "; the environments are the limit, sampling takes 80% of the time, and twice the CPUs for workers would" in said[3]
    assert " make it 50% faster (emulator 60%, inference 10%, waiting 8%, transfer 2%, learner 20%)." in said[3]
    assert "2 are 1.8 times as fast at 1.11 times the cost, 4 are 2 times" in said[4]
    assert said[4].startswith("More machines like this one, if nothing is lost between them: 2 are ")
    assert "(0.5 an hour for 2 machines); beyond 2, doubling them saves less than a quarter of the time" in said[4]
    assert json.loads(json.dumps(advice.as_json(), allow_nan=False))["more"][1]["speedup"] == 1.8


def test_the_sweep_of_a_task_without_goals_is_given_one(tmp_path):
    """Of its own the task has none, and a sweep asks for them."""
    _run, advice = advice_of(tmp_path, has_goals=False)
    (said,) = [line for line in advice_lines(advice) if line.startswith("To measure it")]
    assert said.startswith("To measure it: rlscale sweep <pong> --goals ")
    for reached, goal in ((1128.0, "1120"), (32_064.0, "32000"), (21.0, "21"), (0.29, "0.29"), (-12.34, "-12.4"), (0.0, "0")):
        reading = replace(advice.reading, last_return=reached)
        (said,) = [line for line in advice_lines(replace(advice, reading=reading)) if line.startswith("To measure it")]
        assert f" --goals {goal}. Half of the published sweeps cost " in said, "a goal that was reached"


def test_no_prediction_is_spoken_of_where_none_is_made(tmp_path):
    run, advice = advice_of(tmp_path)
    advice = replace(advice, reading=replace(advice.reading, suggestion=Estimate(None, (0.0, math.inf), "open")), mini_batch=512)
    advice = replace(advice, settings={**advice.settings, "mini_batch": 512})
    assert not any("This is a prediction" in line for line in advice_lines(advice))
    write_advice_page(tmp_path / "advice.html", advice, run)
    assert "The mini-batch is the one in use, since no other is suggested." in (tmp_path / "advice.html").read_text()


@pytest.mark.parametrize(
    ("measured", "timed", "note"),
    [
        (True, 2, "is the one that is predicted to end soonest here"),
        (True, 1, "is the one in use, since none larger was timed here"),
        (False, 1, "is the suggested one, never less than the one in use"),
    ],
)
def test_the_page_says_where_its_mini_batch_comes_from(tmp_path, measured, timed, note):
    run, advice = advice_of(tmp_path, settings={"mini_batch": 64, "batch_size": 2048, "epochs": 1})
    reading = replace(advice.reading, suggestion=Estimate(50.0, (40.0, 60.0)))
    throughput = replace(advice.throughput, timed=timed) if measured else None
    write_advice_page(tmp_path / "advice.html", replace(advice, reading=reading, throughput=throughput), run)
    assert f"The mini-batch {note}" in (tmp_path / "advice.html").read_text()


def test_what_follows_from_a_lower_end_alone_is_said_to_be_the_least(tmp_path):
    """A noise scale above 505 names no critical batch: what was computed with 505 is no estimate, but a limit."""
    above = Estimate(None, (505.0, math.inf), "not resolved")
    run, advice = advice_of(tmp_path)
    write_advice_page(tmp_path / "advice.html", advice, run)
    assert "lower end of the suggestion" not in (tmp_path / "advice.html").read_text()
    advice = replace(advice, reading=replace(advice.reading, suggestion=above))
    (machines,) = [line for line in advice_lines(advice) if line.startswith("More machines")]
    assert machines.endswith(
        ". This is the least that they give: computed for a critical batch of 505, the lower end of the suggestion."
    )
    (alone,) = [line for line in advice_lines(replace(advice, more=advice.more[:1])) if line.startswith("More machines")]
    assert "are no faster, with a critical batch of 505, the lower end of the suggestion: " in alone
    write_advice_page(tmp_path / "advice.html", advice, run)
    text = (tmp_path / "advice.html").read_text()
    assert "What more machines would give, at least" in text
    assert "fastest, computed for a critical batch of 505, the lower end of the suggestion (with a larger one, more" in text
    assert "if the suggested batch is the critical one" not in text
    assert "in use (computed for a critical batch of 505, the lower end of the suggestion). One of more than 505 obs" in text
    write_advice_page(tmp_path / "advice.html", replace(advice, throughput=None), run)
    said = "The mini-batch is the power of two nearest to 505, the lower end of the suggestion, never less than"
    assert said in (tmp_path / "advice.html").read_text()
    nothing = replace(advice.reading, suggestion=Estimate(None, (0.0, math.inf), "nothing"))
    assert replace(advice, reading=nothing).least is None


def test_what_was_measured_on_a_cluster_is_said_of_clusters(tmp_path):
    """The fleet is the whole cluster's, so twice as much of it is a second cluster, and not one more machine."""
    run, advice = advice_of(tmp_path, unit="cluster")
    write_advice_page(tmp_path / "advice.html", advice, run)
    text = (tmp_path / "advice.html").read_text()
    said = advice_lines(advice)[4]
    assert said.startswith("More clusters like this one, if nothing is lost between them: 2 are 1.8 times as fast")
    assert "(0.5 an hour for 2 clusters)" in said
    assert "What more clusters would give" in text
    assert "clusters like this one" in text
    assert "<td data-label='clusters'>2</td>" in text
    assert "machines like this one" not in text


@pytest.mark.parametrize(
    ("price", "of_two", "of_four"), [(0.0104, "0.0208", "0.0416"), (0.004, "0.008", "0.016"), (1234.5, "2,469", "4,938")]
)
def test_page_and_lines_say_the_same_price_of_machines(tmp_path, price, of_two, of_four):
    """A price of less than a cent is one too."""
    run, advice = advice_of(tmp_path, price_hour=price)
    write_advice_page(tmp_path / "advice.html", advice, run)
    text = (tmp_path / "advice.html").read_text()
    assert f"({of_two} an hour for 2 machines)" in advice_lines(advice)[4]
    assert all(f"<td data-label='price of an hour'>{shown}</td>" in text for shown in (f"{price:,}", of_two, of_four))


def test_where_more_machines_are_slower_that_is_said(tmp_path):
    """A learner that is the limit already: of all numbers of machines one is left."""
    run, advice = advice_of(tmp_path, more=[ScaleOut(1, 512, 1.0, 1.0, "learning")])
    assert "More machines like this one are no faster: one learner has to learn from all that they sample." in advice_lines(
        advice
    )
    write_advice_page(tmp_path / "advice.html", advice, run)
    assert len(charts_of(tmp_path / "advice.html")) == 2, "no chart of a single point"


@pytest.mark.parametrize(
    ("mini_batch", "measured", "said"),
    [
        (16, True, "Of the mini-batches timed here, 16 ends soonest"),
        (32, True, None),
        (256, True, "Mini-batches of 256 stay"),
        (256, False, "Mini-batches of 256 stay"),
        (16, False, None),
    ],
)
def test_the_first_line_tells_why_the_settings_are_not_the_suggestion(tmp_path, mini_batch, measured, said):
    _run, advice = advice_of(tmp_path, settings={"mini_batch": mini_batch, "batch_size": 2048, "epochs": 1})
    reading = replace(advice.reading, suggestion=Estimate(50.0, (40.0, 60.0)))
    advice = replace(advice, reading=reading, throughput=advice.throughput if measured else None)
    first = advice_lines(advice)[0]
    assert said is None or said in first
    assert ("ini-batches" in first) == (said is not None)
    if (mini_batch, measured) == (16, True):
        alone = replace(advice, throughput=replace(advice.throughput, timed=1))
        assert "Mini-batches of 16 stay, and none larger was timed here: " in advice_lines(alone)[0]
        assert "ends soonest" not in advice_lines(alone)[0]
    if mini_batch == 256:
        assert "they cost 6.1 times the fewest observations" in first, "1 + 256/50"
        several = replace(advice, settings={**advice.settings, "epochs": 3})
        assert "with several epochs such predictions have been off both ways" in advice_lines(several)[0]


def test_a_policy_that_is_not_resolved_is_never_given_a_number(tmp_path):
    weak = replace(
        advice_of(tmp_path)[1].reading,
        suggestion=Estimate(None, (400.0, float("inf")), "not resolved"),
        policy=Estimate(None, (400.0, float("inf")), "not resolved"),
        missing=12_345,
    )
    said = advice_lines(advice_of(tmp_path / "b", reading=weak)[1])
    assert "more than 400 observations" in said[0]
    assert "Confidence: poor" in said[0]
    assert "if its signal is as strong as it looks, 12,300 more observations resolve it" in said[2]
    seldom = advice_lines(advice_of(tmp_path / "d", reading=replace(weak, spacing=16))[1])
    assert "12,300 more observations resolve it, measured in every iteration instead of one in 16." in seldom[2]
    learned = advice_lines(advice_of(tmp_path / "e", reading=replace(weak, idle=500, missing=None))[1])
    assert "more observations of a run that has learned its task do not resolve it" in learned[2]
    blind = replace(weak, suggestion=Estimate(None, (0.0, float("inf")), "nothing"), missing=None, visible=False)
    said = advice_lines(advice_of(tmp_path / "c", reading=blind)[1])
    assert "says nothing yet" in said[0]
    assert f"cannot be said; {4 * blind.observations:,} in all" in said[2]


def test_what_is_left_out_of_a_run_is_said(tmp_path):
    _, advice = advice_of(tmp_path)
    said = advice_lines(replace(advice, reading=replace(advice.reading, observations=12_300, idle=1_360_000)))
    assert said[3].startswith(
        "Read from the first 12,300 observations, in which nine tenths of the rise in return were made; the 1,360,000"
    )
    assert not any(line.startswith("Read from") for line in advice_lines(advice))
    assert any("let the batch grow by environments" in line for line in said)


def test_a_job_of_rllib_is_advised_on_from_its_record(tmp_path, capsys):
    assert main(["advise", "--run", JOB, "--json", "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "pong"
    assert found["throughput"] is None
    assert found["mini_batch"] == 128, "the job's own minibatch_size"
    assert set(found["lines"]) == {"RLlib", "Stable-Baselines3"}
    assert "num_env_runners=2, num_envs_per_env_runner=8, rollout_fragment_length=128" in found["lines"]["RLlib"], "2,048 by 16"
    assert any("name the task as well" in line for line in found["said"])
    assert (tmp_path / "advice.html").stat().st_size > 10_000


@pytest.mark.long
def test_a_newcomer_asks_and_pastes(tmp_path):
    """The real command; the line that it prints is typed again."""
    words = ["advise", "classic/cartpole", "--cpus", "1", "--seconds", "3", "--fleet-seconds", "0.2", "--out", "here"]
    done = subprocess.run([sys.executable, "-m", "rlscale", *words], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "here" / "advice.json").read_text())
    assert found["mini_batch"] == 256, "the task's default"
    assert found["throughput"]["end_to_end"] > 0
    assert sum(found["throughput"]["shares"].values()) == pytest.approx(1)
    assert found["more"][0]["speedup"] == 1
    for line in found["said"]:
        assert line in done.stdout
    pasted = [*found["lines"]["rlscale"].split()[1:], "--optimizer-steps", "1", "--run", "run"]
    done = subprocess.run([sys.executable, "-m", "rlscale", *pasted], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "TASK: there is nothing to advise on"),
        (["atari/pon"], "TASK: there is no task 'atari/pon'"),
        (["--run", "nowhere"], "--run: "),
        (["classic/cartpole", "--seconds", "0"], "--seconds: 0.0 is not a positive number"),
        (["classic/cartpole", "--cpus", "4096"], "--cpus: this machine has "),
        (["classic/cartpole", "--price-hour", "-1"], "--price-hour: -1.0 is not zero or more"),
        (["--run", JOB, "--seconds", "5"], "--seconds: it is of the training, and with --run nothing is trained"),
        (["--run", JOB, "--seed", "1"], "--seed: it is of the training, and with --run nothing is trained"),
        (["--run", JOB, "--cpus", "1"], "--cpus: nothing is measured here, since rlscale does not know the task 'pong'"),
        (["--run", JOB, "--price-hour", "1"], "--price-hour: nothing is measured here"),
        (["--run", JOB, "--ray-address", "auto"], "--ray-address: nothing is measured here"),
        (["--run", JOB, "--fleet-seconds", "1"], "--fleet-seconds: nothing is measured here"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["advise", *words]) == 2
    said, problem = capsys.readouterr()
    assert message in problem
    assert problem.count("\n") == 1
    assert said == ""
    assert not list(tmp_path.iterdir())


def test_numbers_of_machines_that_were_not_tried_are_not_promised(tmp_path):
    more = [ScaleOut(n, 512 * n, 1.9**k, 1.05**k, "sampling") for k, n in enumerate((1, 2, 4, 8))]
    _run, advice = advice_of(tmp_path, more=more)
    (said,) = [line for line in advice_lines(advice) if line.startswith("More machines like this one")]
    assert said.endswith("; every doubling up to 8 pays, more were not tried.")


def test_a_job_whose_updates_have_two_blocks_needs_environments_not_observations(tmp_path):
    _run, advice = advice_of(tmp_path)
    open_one = Estimate(None, (0.0, math.inf), "an interval needs at least three blocks in every update")
    reading = replace(advice.reading, policy=open_one, few_blocks=True, idle=0, missing=None, visible=False)
    (said,) = [line for line in advice_lines(replace(advice, reading=reading)) if line.startswith("Policy's loss alone")]
    assert said.endswith("every update held two blocks and an interval needs three, so give the job eight environments or more.")
