"""`rlscale workers`: readings that a planted law made give it back, the fleet that is recommended, the plan, the words."""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from planted import FIXED, PARALLEL, PONG, known_frontier, reading, readings

from rlscale.agents import machine
from rlscale.agents.cluster import resources
from rlscale.agents.cluster.processes import pickle_settings
from rlscale.agents.cluster.resources import cpus_by_node, cpus_for_actors, offered_cpus, share_beside_learner
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.agents.rollout.fleet import LocalFleet
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.workers import calibration
from rlscale.benchmarks.workers import run as workers
from rlscale.benchmarks.workers.calibration import Shape, fit_fleet, measure_learner, sample_fragments
from rlscale.benchmarks.workers.display import say_busy, say_resets
from rlscale.benchmarks.workers.options import WorkersOptions
from rlscale.benchmarks.workers.plan import make_plan, price_of
from rlscale.benchmarks.workers.recommendation import candidates, to_measure
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.report.workers_page import WorkersPage, knee, plan_figure, throughput_figure, write_workers_page
from rlscale.sizing import LearnerTime, Price, service


def test_a_planted_law_comes_back():
    law = fit_fleet(readings(), rollout_length=128)
    assert law.service.fixed == pytest.approx(FIXED, rel=1e-3)
    assert law.service.parallel == pytest.approx(PARALLEL, rel=1e-3)
    assert dict(law.slowdowns) == pytest.approx({1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3})
    assert law.seconds(4, 32) == pytest.approx(128 * (FIXED + 32 * PARALLEL) * 1.3 + 4 * 0.01, rel=1e-3)
    assert law.seconds(2, 64, 2) == pytest.approx(128 * (FIXED + 64 * PARALLEL / 2) * 1.3 / 1.1 + 2 * 0.01, rel=1e-3)
    assert law.rate(4, 32).value == pytest.approx(4 * 32 * 128 / law.seconds(4, 32))
    assert law.observation_bytes == pytest.approx(7100)


def test_steps_that_only_reset_an_environment_are_counted_apart(monkeypatch):
    """Every second step of the digits is one: an episode of one observation, then a reset."""
    monkeypatch.setattr(calibration, "RayFleet", lambda settings, fragments, ahead: LocalFleet(settings))
    task = find_task("toy/digits")
    config = default_config(task)
    measured = calibration.measure_fleet(config, task, resolve_compute(config), Shape(1, 1, 8), 0.01)
    assert measured.valid == 0.5
    steps = 8 * calibration.measured_steps(config)
    assert measured.observations == steps, "as long as a step that is an observation"
    assert say_resets([measured]).startswith("50% of the steps here are observations, the others only reset an environment; ")
    assert say_resets([replace(measured, valid=0.99)]) is None


def test_the_emulator_s_rate_counts_every_environment(tmp_path, monkeypatch):
    """Four environments whose steps take a tenth of a second: 40 observations per second, or fewer on a busy machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    task = find_task("bandits:SlowBandit")
    assert 25 < calibration.emulate(pickle_settings((task, 4, 0.35), task), str(tmp_path)) <= 40


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


@pytest.mark.parametrize(("cpus", "parts"), [(2, 4), (8, 6)])
def test_a_prediction_s_interval_knows_that_every_fleet_errs_in_its_own_way(monkeypatch, cpus, parts):
    """By 6% here, and its rounds by 2%: however many those are, each is no further fleet."""
    monkeypatch.setattr(service, "_DRAWS", 1 << 10)
    rng = np.random.default_rng(0)

    def fleet(shape, rounds):
        slowdown = (1 + 0.1 * (shape.actors * shape.threads - 1)) / (1 + 0.1 * (shape.threads - 1))
        off = np.exp(0.06 * rng.normal())
        return reading(shape, slowdown * off, rounds=rounds, message=0.0, noise=lambda: np.exp(0.02 * rng.normal()))

    measured = to_measure(PONG, cpus)
    others = [s for s in candidates(PONG, cpus) if s not in measured]
    inside = []
    for _ in range(20):
        law = fit_fleet([fleet(shape, 40) for shape in measured], 32)
        for i in rng.choice(len(others), 5, replace=False):
            low, high = law.rate(others[i].actors, others[i].environments, others[i].threads).interval
            inside.append(low <= fleet(others[i], 1).rates[0] <= high)
    assert np.mean(inside) >= 0.9
    exact = fit_fleet([reading(s, 1 + 0.1 * (s.environments % 3), rounds=40) for s in measured], 32)
    assert exact.freedom == pytest.approx(len(measured) - parts), "rounds that agree leave the fleets"


def test_few_fleets_are_measured_and_many_could_be_used():
    for cpus in (1, 2, 4, 16, 64):
        few, grid = to_measure(PONG, cpus), candidates(PONG, cpus)
        assert set(few) <= set(grid)
        assert all(s.actors * s.threads <= cpus for s in grid)
        assert len(set(grid)) == len(grid) > len(few)
        assert len(few) <= 17
        assert {s.actors for s in few} >= {1, cpus}
    assert len(to_measure(PONG, 2)) == 7


@pytest.mark.parametrize(
    ("cpus", "nodes", "room"),
    [
        (6, (2, 2, 2), {1: 6, 2: 3}),
        (6, (3, 3), {1: 6, 2: 2}),
        (7, (5, 0, 2), {1: 7, 2: 3, 4: 1}),
        (3, (2, 2, 2), {1: 3, 2: 1}),
        (6, None, {1: 6, 2: 3, 4: 1}),
    ],
)
def test_the_cpus_of_an_actor_are_all_of_one_node(cpus, nodes, room):
    """Three nodes of two CPUs have six, and no place for an actor of four; two of three have place for two actors of two."""
    few, grid = to_measure(PONG, cpus, nodes), candidates(PONG, cpus, nodes)
    assert set(few) <= set(grid)
    assert {t: max(s.actors for s in grid if s.threads == t) for t in {s.threads for s in grid}} == room
    assert {s.threads for s in few} == set(room)


def test_the_free_cpus_of_a_cluster_are_told_node_by_node(monkeypatch):
    free = {"a": {"CPU": 2.0, "memory": 1e9}, "b": {"memory": 1e9}, "c": {"CPU": 3.5}}
    monkeypatch.setattr("ray._private.state.available_resources_per_node", lambda: free)
    assert cpus_by_node("auto") == (2, 0, 3)
    assert cpus_by_node(None) is None


@pytest.mark.parametrize(
    ("address", "offered", "lag", "paid"),
    [(None, 8.0, 0, 16), ("auto", 8.0, 0, 16), ("auto", 0.0, 0, 24), ("auto", 8.0, 1, 24), ("auto", 64.0, 0, 80)],
    ids=["alone", "shared", "apart", "shared, both at once", "a large head"],
)
def test_the_learner_s_cpus_are_paid_once_where_it_takes_turns(monkeypatch, address, offered, lag, paid):
    """As many workers as the larger of 16 and the head's 64 CPUs, and a learner of as many threads as the head has CPUs, or 8."""
    nodes = [{"NodeID": name, "Resources": {"CPU": cpus}, "Alive": True} for name, cpus in (("a", offered), ("b", 16.0))]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a"))
    options = WorkersOptions("classic/cartpole", cpus=None if address else 16, ray_address=address, lag=lag)
    compute = replace(
        resolve_compute(default_config(find_task("classic/cartpole"))), device=torch.device("cpu"), threads=int(offered) or 8
    )
    price = price_of(options, compute, share_beside_learner(address), offered_cpus(address), 0.0)
    assert price.of_hour(max(16, offered)) == paid


@pytest.mark.parametrize(
    ("address", "head", "paid"), [(None, 4.0, [2, 3, 4, 4]), ("auto", 4.0, [2, 3, 4, 4]), ("auto", 0.0, [2, 3, 4, 5])]
)
def test_no_more_cpus_are_paid_for_than_there_are_beside_a_gpu(monkeypatch, address, head, paid):
    """Its learner takes a CPU as well: of the machine of four workers, or of a head whose CPUs Ray was not given."""
    nodes = [{"NodeID": "a", "Resources": {"CPU": head}, "Alive": True}]
    nodes += [] if head else [{"NodeID": "b", "Resources": {"CPU": 4.0}, "Alive": True}]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a"))
    monkeypatch.setattr(resources, "usable_cpus", lambda: 4)
    compute = replace(resolve_compute(default_config(find_task("classic/cartpole"))), device=torch.device("cuda"))
    options = WorkersOptions("classic/cartpole", ray_address=address)
    price = price_of(options, compute, share_beside_learner(address), offered_cpus(address), 1.0)
    assert [price.of_hour(workers) for workers in (1, 2, 3, 4)] == paid


@pytest.mark.parametrize(
    ("asked", "free", "found"),
    [(None, 8, 8), (4, 8, 4), (16, 8, "--cpus: 8 of the cluster are free"), (4, 0, "--ray-address: all")],
)
def test_actors_get_what_is_free_of_a_cluster(monkeypatch, asked, free, found):
    """More would be waited for, and the fleet refused under the name of an option of another command."""
    monkeypatch.setattr(resources, "free_cpus", lambda: free)
    if isinstance(found, int):
        assert cpus_for_actors(asked, "auto") == found
    else:
        with pytest.raises(UsageError, match=found):
            cpus_for_actors(asked, "auto")


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


@pytest.fixture(scope="module")
def known():
    return known_frontier()


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
        warnings=["take <care>."],
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
    assert "<p class='warning'>take &lt;care&gt;.</p>" in text
    run = "<p class='note'>For &lt;x&gt;:</p><pre class='command'><span>rlscale</span> <span>train</span> <span>&#x27;x</span> "
    assert f"{run}<span>y&#x27;</span></pre>" in text
    assert "Wall time against cost, to a mean return of 4" in text
    assert "a &#x27;b c&#x27;" in text
    points = plan_figure(made, currency=True).chart.to_dict()["layer"]
    drawn = [len(layer["data"]["values"]) for layer in points]
    assert drawn == [len(made.pareto), len(made.choices), len(made.pareto)]
    assert [p["time"] for p in points[1]["data"]["values"]] == pytest.approx([c.seconds / 60 for c in made.choices])
    assert "wall time to the goal, minutes" in str(points)
    # 295.3 updates of 512 observations on four workers, 0.266 s each, at 1.0 for the hour of each of four CPUs and the learner's.
    for cell in ("'workers'>4", "'wall time'>1 min 19 s", "'cost'>0.109", "'iterations'>295", "'observations'>151,200"):
        assert f"<td data-label={cell}</td>" in text


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
    of_64 = [p["rate"] for p in lines if p["of"] == "64 environments an actor"]
    assert of_64 == pytest.approx([n * 64 / (FIXED + 64 * PARALLEL) for n in (1, 2, 3, 4)])
    assert ring == [{"actors": 2, "rate": law.rate(2, 32).value}]
    assert "ring: the recommended fleet." in throughput_figure(page_of(law, None)).note
    wide = throughput_figure(replace(page_of(law, None), chosen=(1, 2, 32)))
    assert len(wide.chart.to_dict()["layer"]) == 3, "the chart is of actors of one CPU"
    assert "ring" not in wide.note
    assert knee(law, 32, 4) == 4
    crowded = fit_fleet(readings(contention=0.5, message=0.0), 32)  # n workers sample n / (1 + (n - 1) / 2): 1, 1.33, 1.5, 1.6
    assert knee(crowded, 32, 4) == 1
    assert "Beyond 1 actor, one more" in throughput_figure(page_of(crowded, None)).note
    assert "one more" not in throughput_figure(replace(page_of(law, None), cpus=1)).note, "no second one was measured"


def test_a_measured_fleet_is_drawn_at_its_median_round(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "_DRAWS", 1 << 10)
    page = replace(page_of(fit_fleet(readings(), 32), None), measured=[(2, 1, 32, [1000.0, 4000.0, 2000.0])])
    points = throughput_figure(page).chart.to_dict()["layer"][2]["data"]["values"]
    of = "32 environments an actor"
    assert points == [{"actors": 2, "rate": 2000.0, "low": 1000.0, "high": 4000.0, "of": of}]
    write_workers_page(tmp_path / "workers.html", page)
    text = (tmp_path / "workers.html").read_text()
    assert "<td data-label='observations per second'>2,000</td>" in text
    assert "<td data-label='slowest and fastest round'>1,000 to 4,000</td>" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--deadline", "1h"], "--deadline: how long a run takes follows from a sweep"),
        (["--sweep", "nowhere"], "--sweep: "),
        (["--cpus", "4096"], "--cpus: this machine has "),
        (["--cpus", "0"], "--cpus: 0 is not a positive number"),
        (["--sweep", "results/minatar-breakout", "--price-gpu-hour", "2"], "--price-gpu-hour: it cannot be added to CPU hours"),
        (["--price-gpu-hour", "2"], "--price-gpu-hour: how long a run takes follows from a sweep"),
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


def test_a_gpu_that_nobody_learns_on_has_no_price(capsys):
    """With CPUs in its price every cost would be zero, and every budget met."""
    words = ["--sweep", "results/ladder/pendulum", "--price-cpu-hour", "0", "--price-gpu-hour", "2", "--device", "cpu"]
    assert main(["workers", "classic/pendulum", *words]) == 2
    problem = "--price-gpu-hour: the learner works on a CPU here. Leave it out, or give the --device that is hired"
    assert capsys.readouterr().err == f"rlscale: {problem}\n"


def test_a_gpu_that_somebody_learns_on_has_a_price_where_cpus_have_one(monkeypatch, capsys):
    compute = SimpleNamespace(prepare_process=lambda: None, device=torch.device("cuda"), acting=torch.device("cpu"), threads=1)
    monkeypatch.setattr(workers, "resolve_compute", lambda _: compute)
    words = ["--sweep", "results/ladder/pendulum", "--price-cpu-hour", "0.04"]
    assert main(["workers", "classic/pendulum", *words]) == 2
    problem = "--price-gpu-hour: the learner takes a GPU, which has no price yet"
    assert capsys.readouterr().err == f"rlscale: {problem}. Give it, 0 where it is in the CPU's price, or --device cpu\n"


def test_gpus_that_only_actors_use_have_a_price_too(monkeypatch, capsys):
    devices = {"device": torch.device("cpu"), "acting": torch.device("cuda")}
    compute = SimpleNamespace(prepare_process=lambda: None, threads=1, **devices)
    monkeypatch.setattr(workers, "resolve_compute", lambda _: compute)
    assert main(["workers", "classic/pendulum", "--sweep", "results/ladder/pendulum", "--price-cpu-hour", "0.04"]) == 2
    assert capsys.readouterr().err.startswith("rlscale: --price-gpu-hour: acting takes a GPU, which has no price yet. Give it")


@pytest.mark.parametrize(
    ("learns", "acts", "gpus", "workers", "hired"),
    [
        ("cuda", "cuda", 8, 16, 5),
        ("cuda", "cuda", 8, 2, 3),
        ("cuda", "cuda", 1, 16, 1),
        ("cuda", "cpu", 8, 16, 1),
        ("cpu", "cuda", 8, 16, 4),
        ("cpu", "cuda", 1, 16, 1),
        ("cpu", "cpu", 8, 16, 0),
    ],
)
def test_gpus_that_actors_act_on_are_paid_for(learns, acts, gpus, workers, hired):
    """Half of those that there are, at most one a worker, beside the learner's own; the only one serves both."""
    compute = resolve_compute(default_config(find_task("classic/cartpole")))
    compute = replace(compute, device=torch.device(learns), acting=torch.device(acts))
    price = price_of(WorkersOptions("classic/cartpole", price_cpu_hour=0.0, price_gpu_hour=1.0), compute, 0.0, 64.0, float(gpus))
    assert price.of_hour(workers) == hired


def test_at_lag_1_actors_and_learner_need_a_gpu_each(monkeypatch, tmp_path, capsys):
    devices = {"device": torch.device("cuda"), "acting": torch.device("cuda")}
    compute = SimpleNamespace(prepare_process=lambda: None, threads=1, **devices)
    monkeypatch.setattr(workers, "resolve_compute", lambda _: compute)
    monkeypatch.setattr(workers, "connected", lambda *_: nullcontext())
    monkeypatch.setattr(workers, "gpus_there", lambda: 1.0)
    monkeypatch.chdir(tmp_path)
    assert main(["workers", "classic/cartpole", "--cpus", "2", "--lag", "1"]) == 2
    problem = "--lag: here actors and learner share the same GPU. Leave it out, or give a cluster or another GPU"
    assert capsys.readouterr().err.splitlines()[-1] == f"rlscale: {problem}"


def test_a_cluster_of_one_machine_is_no_other_machine(monkeypatch, tmp_path, capsys):
    """`ray start --head` here, and then its address: actors and learner share the same cores all the same."""
    nodes = [{"NodeID": "a", "Resources": {"CPU": 2.0}, "Alive": True}]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "a"))
    monkeypatch.setattr("ray._private.state.available_resources_per_node", lambda: {"a": {"CPU": 2.0}})
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(workers, "connected", lambda *given: nullcontext())
    words = ["--cpus", "2", "--ray-address", "auto", "--lag", "1", "--out", str(tmp_path / "out")]
    assert main(["workers", "classic/cartpole", *words]) == 2
    assert "--lag: in this cluster of one machine actors and learner share the same cores" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_busy_machine_is_told_from_a_quiet_one(monkeypatch):
    """Ticks of the system's clock that all CPUs have worked, over the seconds between two looks."""
    hertz = os.sysconf("SC_CLK_TCK")
    ticks = iter([1000.0, 1000.0 + 0.01 * 1.5 * hertz, 5.0, 5.0])
    monkeypatch.setattr(machine, "_cpu_ticks", lambda: next(ticks))
    busy = machine.busy_cpus(0.01)
    assert busy == pytest.approx(1.5)
    assert say_busy(busy) == (
        "this machine is busy: other programs use 1.5 CPUs, and what is measured now is slower than it could be"
    )
    quiet = machine.busy_cpus(0.01)
    assert quiet == 0
    assert say_busy(quiet) is say_busy(None) is None
    monkeypatch.setattr(machine, "_cpu_ticks", lambda: None)
    assert machine.busy_cpus(0.01) is None


def test_the_system_s_clock_counts_work_and_not_waiting():
    """One process that computes for a while adds about as many ticks as it has used."""
    before, used = machine._cpu_ticks(), time.process_time()
    while time.process_time() - used < 0.5:
        pass
    worked = (machine._cpu_ticks() - before) / os.sysconf("SC_CLK_TCK")
    assert worked > 0.4


@pytest.mark.long
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
