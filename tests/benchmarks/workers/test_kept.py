"""What `rlscale workers` has measured is used again, and only where it was measured alike."""

import contextlib
import json
import os
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from planted import known_frontier, reading

from rlscale.agents.cluster.head_node import LostHeadError
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.workers import kept as kept_module
from rlscale.benchmarks.workers import measuring as measuring_module
from rlscale.benchmarks.workers import recommendation
from rlscale.benchmarks.workers import run as workers
from rlscale.benchmarks.workers.recommendation import to_measure
from rlscale.envs import find_task
from rlscale.records.files import lock_folder


@pytest.fixture(scope="module")
def known():
    return known_frontier()


@pytest.fixture
def measuring(monkeypatch, known):
    """The command without Ray: fleets begun and measured, and what stops it by the number of fleets begun before."""
    seen = SimpleNamespace(begun=[], measured=[], learned=[], emulated=0, stops={})

    def measure(config, task, session, shape, seconds):
        seen.begun.append(shape)
        if len(seen.begun) - 1 in seen.stops:
            raise seen.stops[len(seen.begun) - 1]
        seen.measured.append(shape)
        return reading(shape, 1.0)

    def measure_learner(*_):
        seen.learned.append(len(seen.measured))
        return {"batch_size": 512 * len(seen.learned), "blocks": None, "seconds": [0.1 * len(seen.learned)] * 2}

    def measure_emulator(*_):
        seen.emulated += 1
        return 9e3

    joined = []

    @contextlib.contextmanager
    def connected(*_):
        joined.append(True)
        yield
        joined.clear()

    monkeypatch.setattr(workers, "connected", connected)
    monkeypatch.setattr(workers, "cpus_for_actors", lambda cpus, _: cpus)
    monkeypatch.setattr(workers, "offered_cpus", lambda _: 1e9 if joined else pytest.fail("asked of a cluster that was left"))
    planted = {
        "find_frontier": known,
        "gpus_there": 0.0,
        "describe_nodes": [],
        "share_beside_learner": 1.0,
        "busy_cpus": None,
        "watch_head": contextlib.nullcontext(),
    }
    for name, value in planted.items():
        monkeypatch.setattr(workers, name, lambda *_, value=value: value)
    monkeypatch.setattr(recommendation, "store_bytes", lambda *_, **__: 1 << 62)
    monkeypatch.setattr(measuring_module, "sample_fragments", lambda *_: [])
    monkeypatch.setattr(measuring_module, "measure_fleet", measure)
    monkeypatch.setattr(measuring_module, "measure_learner", measure_learner)
    monkeypatch.setattr(measuring_module, "measure_emulator", measure_emulator)
    return seen


def test_what_was_measured_before_a_stop_is_kept(tmp_path, measuring, capsys):
    """Ctrl-C, then a head that dies, then the rest: no fleet is measured twice. Other measurements begin afresh."""
    measuring.stops |= {2: KeyboardInterrupt(), 4: LostHeadError()}
    begun, measured, stops = measuring.begun, measuring.measured, measuring.stops
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


def test_a_what_if_says_when_and_beside_what_its_fleets_were_measured(tmp_path, measuring, monkeypatch, capsys):
    """Stopped beside other programs, ended on a quiet day; then what-ifs on a busy one, which measure nothing."""
    words = ["workers", "classic/cartpole", "--cpus", "2", "--out", str(tmp_path)]
    beside = "other programs used 1.7 CPUs of this machine while it was measured"
    steps = []
    made = measuring_module.Steps
    monkeypatch.setattr(measuring_module, "Steps", lambda console, total: steps.append(total) or made(console, total))
    measuring.stops[2] = KeyboardInterrupt()
    shapes = len(to_measure(find_task("classic/cartpole"), 2))
    for day, (busy, code) in enumerate(((1.7, 130), (0.0, 0), (1.9, 0)), 1):
        monkeypatch.setattr(workers, "busy_cpus", lambda busy=busy: busy)
        monkeypatch.setattr(kept_module, "now", lambda day=day: f"2026-11-0{day}")
        assert main(words) == code
        assert ("this machine is busy" in capsys.readouterr().out) == (day == 1)
        if code == 0:
            record = json.loads((tmp_path / "workers.json").read_text())
            assert (record["date"], record["busy_cpus"]) == ("2026-11-01", 1.7)
            assert beside in (tmp_path / "workers.html").read_text()
    assert steps == [shapes + 2, shapes - 2 + 1, 0], "the emulator and two fleets had been measured"


def test_what_ifs_measure_no_fleet_again(tmp_path, measuring, capsys):
    """A sweep, a deadline and prices are asked about one after another; only the learner is measured for the sweep's own way."""
    measured, learned = measuring.measured, measuring.learned
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


def test_emulator_and_learner_are_kept_as_well(tmp_path, measuring):
    """Stopped in the first fleet, then in a held-out one."""
    words = ["workers", "minatar/breakout", "--cpus", "2", "--validate", "--out", str(tmp_path)]
    fleets = len(to_measure(find_task("minatar/breakout"), 2))
    measuring.stops |= {0: KeyboardInterrupt(), fleets + 1: KeyboardInterrupt()}
    assert main(words) == 130
    assert main(words) == 130
    learned = len(measuring.learned)
    assert learned > 0
    assert main(words) == 0
    assert (measuring.emulated, len(measuring.learned)) == (1, learned)
    assert main([*words, "--again"]) == 0
    assert (measuring.emulated, len(measuring.learned)) == (2, 2 * learned)


def test_no_fleet_is_measured_that_no_node_has_room_for(tmp_path, measuring, monkeypatch):
    monkeypatch.setattr(workers, "cpus_by_node", lambda _: (2, 2, 2))
    words = ["workers", "minatar/breakout", "--cpus", "6", "--ray-address", "auto", "--validate", "--out", str(tmp_path)]
    assert main(words) == 0
    assert {shape.threads for shape in measuring.measured} == {1, 2}


def test_the_warnings_of_a_sweep_stand_beside_its_plan(tmp_path, measuring, monkeypatch, known, capsys):
    monkeypatch.setattr(workers, "find_frontier", lambda *_: replace(known, warnings=["take care."]))
    assert main(["workers", "minatar/breakout", "--cpus", "2", "--sweep", "planted", "--out", str(tmp_path)]) == 0
    assert "\ntake care.\n" in capsys.readouterr().out
    assert "<p class='warning'>take care.</p>" in (tmp_path / "plan.html").read_text()


def test_a_plan_has_no_batch_that_rlscale_train_would_refuse_for_memory(tmp_path, measuring, monkeypatch, known, capsys):
    """Fragments have three quarters of 23 MiB less 16 for parameters: 1.25 MiB. 2,048 observations take 0.83 MiB, 8,192 3.3."""
    monkeypatch.setattr("rlscale.agents.memory._shared_memory", lambda: 23 << 20)
    words = ["workers", "minatar/breakout", "--cpus", "2", "--sweep", "planted", "--out", str(tmp_path)]
    assert main(words) == 0
    assert {choice["batch_size"] for choice in json.loads((tmp_path / "workers.json").read_text())["plan"]} == {128, 512, 2048}
    said = "The plan leaves out the batch sizes that do not fit into memory here: 8,192."
    assert said in capsys.readouterr().out.replace("\n", " ")
    assert said in (tmp_path / "plan.html").read_text()
    monkeypatch.setattr(workers, "find_frontier", lambda *_: replace(known, rates={8192: 0.0123}))
    assert main(words) == 2
    assert "rlscale: --sweep: none of its batch sizes fits into memory here. Plan where there is more" in capsys.readouterr().err


def test_fleets_of_a_sweep_without_clones_are_not_used_for_one_with_them(tmp_path, measuring, monkeypatch, known):
    words = ["workers", "minatar/breakout", "--cpus", "2", "--sweep", "planted", "--out", str(tmp_path)]
    assert main(words) == 0
    before = len(measuring.measured)
    cloned = replace(known.config, rollout=replace(known.config.rollout, clones=2))
    monkeypatch.setattr(workers, "find_frontier", lambda *_: replace(known, config=cloned))
    assert main(words) == 0
    assert len(measuring.measured) == 2 * before


def test_fleets_of_another_installed_version_are_not_used(tmp_path, measuring, monkeypatch):
    words = ["workers", "minatar/breakout", "--cpus", "2", "--out", str(tmp_path)]
    counts = []
    for code in ("installed-11111111", "installed-11111111", "installed-22222222"):
        monkeypatch.setattr(workers, "find_code", lambda code=code: code)
        assert main(words) == 0
        counts.append(len(measuring.measured))
    fleets = counts[0]
    assert counts == [fleets, fleets, 2 * fleets]


def test_fleets_of_another_cluster_are_not_used(tmp_path, measuring, monkeypatch):
    """Two nodes of eight CPUs, then one of sixteen, joined from the same machine and with as many free CPUs."""
    monkeypatch.setattr(workers, "cpus_by_node", lambda _: (8, 8))
    words = ["workers", "minatar/breakout", "--cpus", "6", "--ray-address", "auto", "--out", str(tmp_path)]
    counts = []
    for kinds in ([(8, 2)], [(8, 2)], [(16, 1)]):
        nodes = [{"cpus": cpus, "gpus": 0, "count": count} for cpus, count in kinds]
        monkeypatch.setattr(workers, "describe_nodes", lambda nodes=nodes: nodes)
        assert main(words) == 0
        counts.append(len(measuring.measured))
    fleets = counts[0]
    assert counts == [fleets, fleets, 2 * fleets]


def test_a_plan_for_lag_1_says_that_its_frontier_is_of_lag_0(tmp_path, measuring, monkeypatch, capsys):
    monkeypatch.setattr(workers, "cpus_by_node", lambda _: (2, 2))
    monkeypatch.setattr(workers, "share_beside_learner", lambda _: 0.5)
    words = ["workers", "minatar/breakout", "--cpus", "2", "--sweep", "planted", "--ray-address", "auto", "--out", str(tmp_path)]
    learned = []
    doubt = "The sweep's runs were at lag 0; at lag 1 a run may need more iterations than this plan takes."
    for lag in ("0", "1"):
        assert main([*words, "--lag", lag]) == 0
        said = capsys.readouterr().out
        assert said.count(doubt) == int(lag)
        assert said.replace("\n", " ").count("note: actors on this machine compete with the learner at lag 1") == int(lag)
        assert ("The sweep&#x27;s runs were at lag 0; at lag 1" in (tmp_path / "plan.html").read_text()) == (lag == "1")
        learned.append(len(measuring.learned))
    assert learned[1] == 2 * learned[0], "an update of several steps takes another pass at lag 1, so it is timed again"


def test_the_check_says_what_is_measured_and_what_predicted(tmp_path, measuring, capsys):
    assert main(["workers", "classic/cartpole", "--cpus", "1", "--validate", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "; with sampling as measured and learning as predicted, the recommended fleet makes " in said
    assert "of the best one (1 × " in said


def test_the_page_of_a_plan_names_the_budget(tmp_path, measuring):
    words = ["workers", "minatar/breakout", "--cpus", "2", "--sweep", "planted", "--price-cpu-hour", "0.08", "--budget", "1000"]
    assert main([*words, "--out", str(tmp_path)]) == 0
    assert "the fastest that costs at most 1,000: batch size" in (tmp_path / "plan.html").read_text()


def test_again_measures_everything_anew_but_goes_on_with_itself(tmp_path, measuring):
    """Fleets that an ended command measured, and one more that an interrupted one did: all are measured again."""
    words = ["workers", "classic/cartpole", "--cpus", "2", "--out", str(tmp_path)]
    shapes = to_measure(find_task("classic/cartpole"), 2)
    assert main(words) == 0
    measuring.stops[len(measuring.begun) + 1] = KeyboardInterrupt()
    assert main([*words, "--validate"]) == 130
    assert len(measuring.measured) == len(shapes) + 1
    assert len(json.loads((tmp_path / "measured.json").read_text())["fleets"]) == 1, "the others are in workers.json"
    measuring.measured.clear()
    measuring.stops[len(measuring.begun) + 2] = KeyboardInterrupt()
    assert main([*words, "--again"]) == 130
    assert main([*words, "--again"]) == 0
    assert measuring.measured == shapes


def test_again_leaves_a_first_command_aside_that_was_interrupted(tmp_path, measuring):
    words = ["workers", "classic/cartpole", "--cpus", "2", "--out", str(tmp_path)]
    measuring.stops[3] = KeyboardInterrupt()
    assert main(words) == 130
    measuring.measured.clear()
    assert main([*words, "--again"]) == 0
    assert measuring.measured == to_measure(find_task("classic/cartpole"), 2)


def test_no_reading_is_lost_to_a_what_if(tmp_path, measuring):
    """Held-out fleets are measured, some before an interruption; then a plan is asked for, then the check again."""
    words = ["workers", "minatar/breakout", "--cpus", "2", "--out", str(tmp_path)]
    measuring.stops[len(to_measure(find_task("minatar/breakout"), 2)) + 1] = KeyboardInterrupt()
    assert main([*words, "--validate"]) == 130
    assert main(words) == 0
    assert main([*words, "--validate"]) == 0
    assert len(set(measuring.measured)) == len(measuring.measured)
    validation = json.loads((tmp_path / "workers.json").read_text())["validation"]
    everything = list(measuring.measured)
    for more in (["--sweep", "planted"], []):
        assert main([*words, *more]) == 0
        assert json.loads((tmp_path / "workers.json").read_text())["validation"] is None
    assert main([*words, "--validate"]) == 0
    assert measuring.measured == everything
    assert json.loads((tmp_path / "workers.json").read_text())["validation"] == validation


@pytest.mark.parametrize("place", ["taken", "taken/below"])
def test_a_folder_that_cannot_be_made_is_said_before_anything_is_measured(tmp_path, measuring, capsys, place):
    (tmp_path / "taken").write_text("a file")
    assert main(["workers", "classic/cartpole", "--cpus", "2", "--out", str(tmp_path / place)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"rlscale: --out: cannot write {tmp_path / place}: ")
    assert said.count("\n") == 1
    assert measuring.begun == []


def test_two_commands_do_not_write_one_record(tmp_path, measuring, capsys):
    lock = lock_folder(tmp_path, "--out")
    assert main(["workers", "classic/cartpole", "--cpus", "2", "--out", str(tmp_path)]) == 2
    os.close(lock)
    assert f"--out: {tmp_path} is being written by this process already" in capsys.readouterr().err
    assert measuring.begun == []
