"""Acting, and whole runs, on the fake accelerator: the CPU's fragments and records, and one wait for each step that is acted."""

from dataclasses import replace

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from accelerated import CONTINUOUS, TASKS, sum_in_equal_pieces

from rlscale.agents.compute import resolve_compute, resolve_device
from rlscale.agents.config import Budget, default_config
from rlscale.agents.devices import free_bytes
from rlscale.agents.machine import describe_machine
from rlscale.agents.networks.layers import Dense
from rlscale.agents.rollout import RolloutWorker, WorkerSettings
from rlscale.agents.setup import prepare
from rlscale.agents.train import train
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.run import read_run

fake.register()

STEPS = 5


def worker_on(device, network="mlp", bfloat16=False, task="classic/cartpole"):
    return RolloutWorker(WorkerSettings(find_task(task), 4, STEPS, network, bfloat16, 1, True, 0, seed=3, device=device), 0)


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize(("network", "played"), [*TASKS.items(), ("mlp", CONTINUOUS)])
def test_a_fragment_is_the_cpus(network, played, bfloat16, monkeypatch):
    """The host waits once a step, for the action, and nothing else crosses than observations, weights and what is acted by."""
    # On the CPU dense layers above pixels are packed for oneDNN, whose sums round otherwise.
    monkeypatch.setattr(Dense, "prepare_for_inference", lambda self, dtype: None)
    here, there = (worker_on(device, network, bfloat16, played) for device in ("cpu", "fake"))
    task = find_task(played)
    frame = int(np.prod(task.observation_shape)) * np.dtype(task.frame_dtype).itemsize
    numbers = 2 * len(task.actions) if played == CONTINUOUS else task.actions  # of what an action is drawn from
    weights = here._flat.numpy() * 1.25
    for version in range(2):
        weights = weights + np.float32(0.01)
        with fake.counting() as counts:
            there.use_policy(weights, version)
        assert counts.syncs == []
        assert counts.uploads == {"torch.float32": weights.nbytes}
        here.use_policy(weights, version)
        one = here.sample(version)
        with fake.counting() as counts:
            other = there.sample(version)
        assert len(counts.syncs) == STEPS + 1  # and the value of the last observation
        assert counts.uploads == {f"torch.{task.frame_dtype}": (STEPS + 1) * 4 * frame}
        assert counts.fetches == {"torch.float32": (STEPS + 1) * 4 * (numbers + 1) * 4}
        for name in ("frames", "action", "log_prob", "value", "bootstrap_value", "reward"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for worker in (here, there):
        worker.close()


def config_on(device, acting="cpu", **rollout):
    config = default_config(find_task("classic/cartpole"))
    return replace(
        config,
        rollout=replace(config.rollout, environments=16, rollout_length=8, actor_device=acting, **rollout),
        update=replace(config.update, epochs=2, mini_batch=32, device=device, threads=1),
        budget=Budget(observations=None, optimizer_steps=4 * 8),
        recording=replace(config.recording, checkpoint_seconds=1e-6),
    )


@pytest.mark.parametrize("lag", [0, 1])
def test_a_session_waits_once_to_learn_and_once_for_the_weights(lag):
    """Of four optimizer steps an iteration; acting is on the CPU."""
    config = config_on("fake", lag=lag)
    session = prepare(config, find_task("classic/cartpole")).start()
    try:
        for iteration in range(3):
            with fake.counting() as counts:
                session.iterate()
            first = 1 if lag and iteration == 0 else 0  # with lag the first iteration asks for two batches
            assert len(counts.syncs) == 2 + first, counts.syncs
        assert session.optimizer_steps == 3 * 8
    finally:
        session.close()


def test_a_run_is_the_cpus_and_goes_on_there(tmp_path):
    """A run that acts and learns on the accelerator, is stopped, and goes on on the CPU makes the record of one on the CPU."""
    with sum_in_equal_pieces():
        train(config_on("cpu"), tmp_path / "cpu", command=[])
        half = replace(config_on("auto", "auto"), budget=Budget(observations=None, optimizer_steps=2 * 8))
        train(half, tmp_path / "there", command=[])
        manifest = read_run(tmp_path / "there").manifest
        assert (manifest["device"], manifest["machine"]["accelerator"]) == ("fake:0", "fake accelerator")
        train(replace(config_on("cpu"), resume=str(tmp_path / "there")), tmp_path / "there", command=[])
    one, other = read_run(tmp_path / "cpu"), read_run(tmp_path / "there")
    assert [segment["device"] for segment in other.manifest["segments"]] == ["fake:0", "cpu"]
    assert len(one.rows) == len(other.rows) == 4
    timed = {name for name in one.rows[0] if "seconds" in name or "per_second" in name}
    for a, b in zip(one.rows, other.rows, strict=True):
        assert {k: v for k, v in a.items() if k not in timed} == {k: v for k, v in b.items() if k not in timed}


def test_auto_takes_the_accelerator_and_names_are_checked():
    assert resolve_device("auto") == resolve_device("fake") == torch.device("fake", 0)
    assert resolve_device("fake:1") == torch.device("fake", 1)
    for name, message in (
        ("fake:2", "--device: fake:2 is not on this machine. Use --device cpu"),
        ("cuda", "--device: cuda is not on this machine. Use --device cpu"),
        ("meta", "--device: meta is not on this machine. Use --device cpu"),
        ("abacus", "--device: 'abacus' is no device. Use auto, cpu or fake"),
    ):
        with pytest.raises(UsageError) as error:
            resolve_device(name)
        assert str(error.value) == message


def test_a_device_without_float64_is_not_taken(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(UsageError, match=r"^--device: mps does not compute in float64.*\. Use --device cpu"):
        resolve_device("mps")


def test_nor_is_one_that_says_so_when_it_is_tried(monkeypatch):
    def refuse(*args, **more):
        raise RuntimeError("Required aspect fp64 is not supported on the device")

    monkeypatch.setattr(torch, "ones", refuse)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(UsageError, match=r"^--device: fake:1 does not compute in float64"):
        resolve_device("fake:1")


def test_one_that_others_fill_is_no_worse_for_it(monkeypatch):
    """Else `auto` would take the CPU without a word."""

    def full(*args, **more):
        raise torch.OutOfMemoryError("out of memory. Tried to allocate 16 bytes")

    monkeypatch.setattr(torch, "ones", full)
    assert resolve_device("auto") == torch.device("fake", 0)


def test_one_that_does_not_say_what_is_free_has_nothing_free(monkeypatch):
    def unknown(device=None):
        raise RuntimeError("the device does not support querying available memory")

    monkeypatch.setattr(type(torch.get_device_module(torch.device("fake"))), "mem_get_info", staticmethod(unknown))
    assert free_bytes(torch.device("fake", 0)) == 0


def test_a_learner_beside_rays_actors_takes_the_last_accelerator_unless_it_is_numbered():
    config = default_config(find_task("atari/pong"))

    def found(device, actors, acting):
        rollout = replace(config.rollout, actors=actors, actor_device=acting)
        compute = resolve_compute(replace(config, rollout=rollout, update=replace(config.update, device=device)))
        return str(compute.device)

    assert found("auto", 2, "auto") == found("fake", 2, "fake") == "fake:1"
    assert found("fake:0", 2, "fake") == found("auto", 0, "fake") == found("auto", 2, "cpu") == "fake:0"
    assert found("cpu", 2, "fake") == "cpu"


def test_pixels_on_an_accelerator_are_learned_and_acted_on_in_bfloat16():
    config = default_config(find_task("atari/pong"))
    compute = resolve_compute(replace(config, rollout=replace(config.rollout, actor_device="auto")))
    assert (compute.device.type, compute.acting.type, compute.precision, compute.acts_in_bfloat16) == (
        "fake",
        "fake",
        "bfloat16",
        True,
    )


def test_a_process_uses_the_device_that_it_is_given_by_number(monkeypatch):
    """Page-locked memory and process groups belong to the current device, whatever device a tensor is on."""
    used = []
    monkeypatch.setattr(torch.accelerator, "set_device_index", used.append)
    for device in ("cpu", "fake", "fake:1"):
        resolve_compute(config_on(device)).prepare_process()
    assert used == [0, 1]
    worker_on("fake:1").close()
    assert used == [0, 1, 1]


def test_the_machine_names_its_accelerator():
    assert describe_machine(torch.device("fake"))["accelerator"] == "fake accelerator"
    assert describe_machine(torch.device("cpu"))["accelerator"] is None
