"""The learner on the fake accelerator: every network and every kind of batch, bit for bit the CPU's, within its budgets."""

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from accelerated import TASKS, Setting, check_update, config_of, equal_updates, fragments_of, learn, sum_in_equal_pieces

from rlscale.agents.learning import Learner, learn_batch
from rlscale.envs import find_task

fake.register()

CPU, THERE = torch.device("cpu"), torch.device("fake")

MINI = {"epochs": 2, "mini_batch": 24}
SETTINGS = [
    *(Setting(network) for network in TASKS if network != "nature_cnn"),  # which takes longest, and is in bfloat16 below
    *(Setting(network, bfloat16=True) for network in TASKS),
    Setting("mlp", rounds=3, update={"advantage_scale": "batch", "optimizer": "rmsprop"}),
    Setting("mlp", update={**MINI, "shuffle": "environments"}),
    Setting("mlp", rounds=2, update={**MINI, "shuffle": "transitions"}),
    Setting("small_cnn", rounds=2, update={**MINI, "shuffle": "transitions"}),
    Setting("small_cnn", bfloat16=True, update={"stream": True}),
    Setting("minatar_cnn", rounds=2, update={"stream": True}),
    Setting("mlp", update={"stream": True, "advantage_scale": "none"}),
    Setting("mlp", lag=1),
    Setting("small_cnn", lag=1, update={**MINI, "shuffle": "environments"}),
    Setting("mlp", lag=1, update={"stream": True}),
    Setting("mlp", continuous=True),
    Setting("mlp", continuous=True, bfloat16=True, rounds=2, update={**MINI, "shuffle": "transitions"}),
    Setting("mlp", continuous=True, lag=1, update={"stream": True}),
    Setting("mlp", update={**MINI, "proximal_average": 3.0, "tuned_batch": 96}),
    Setting("small_cnn", bfloat16=True, lag=1, update={"stream": True, "proximal_average": 3.0}),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_an_update_is_the_cpus_and_stays_within_its_budgets(setting):
    # A second one goes on from the optimizer's state on the device, whatever the network, and from what lags.
    updates = 2 if setting.network == "mlp" or setting.lag else 1
    learned = check_update(setting, updates)
    assert [len(counts.syncs) for counts in learned.counts] == [1] * updates  # whatever the number of optimizer steps


@pytest.mark.parametrize("shuffle", ["environments", "transitions"])
@pytest.mark.parametrize("network", ["mlp", "small_cnn"])
def test_frames_that_do_not_fit_visit_the_device_once_a_pass(network, shuffle, monkeypatch):
    """Not a stack of four for every observation: up to four of them show a frame, and it crosses once."""
    monkeypatch.setattr(fake, "_FREE", [0])
    setting = Setting(network, rounds=2, update={"chunk": 1000, "shuffle": shuffle})
    learned = learn(setting, "fake")
    equal_updates(learned, learn(setting, "cpu"))
    assert learned.in_blocks == []
    fragments = fragments_of(setting)
    frames, observations = sum(f.frames.nbytes for f in fragments), sum(f.action.size for f in fragments)
    passes = 2  # the heads, then the step
    small = 0 if network == "small_cnn" else observations * (12 + 4 * passes) + 512  # what else there is of the frames' type
    for counts in learned.counts:
        crossed = counts.uploads[f"torch.{fragments[0].frames.dtype}"]
        assert 0.95 * frames * passes <= crossed <= frames * passes + small
        assert len(counts.syncs) == 1


def test_a_checkpoint_is_on_the_cpu_and_goes_on_there_and_back():
    """Two updates on the accelerator, two on the CPU, two on the accelerator are six on the CPU."""
    setting = Setting("mlp", update={**MINI, "shuffle": "environments"})
    config, task = config_of(setting), find_task("classic/cartpole")
    alone = Learner(config, task, CPU, False)
    state = None
    with sum_in_equal_pieces():
        for iteration, device in enumerate((THERE, THERE, CPU, CPU, THERE, THERE)):
            learner = Learner(config, task, device, False)
            if state is not None:
                learner.set_state(state)
            fragments = fragments_of(setting, iteration)
            assert (
                learn_batch(alone, fragments, iteration, 1e-3).figures == learn_batch(learner, fragments, iteration, 1e-3).figures
            )
            state = learner.get_state()
            for tensor in (state["parameters"], *state["optimizer"]["state"][0].values()):
                assert type(tensor) is torch.Tensor, "a checkpoint holds a tensor of the accelerator"
    np.testing.assert_array_equal(learner.weights(), alone.weights())


def test_what_torch_keeps_of_the_last_batch_is_room_for_the_next(monkeypatch):
    """To the device it is taken; were it not counted, only the first batch of a run would fit."""
    monkeypatch.setattr(fake, "_FREE", [0])
    monkeypatch.setattr(torch.accelerator, "memory_reserved", lambda device: 3 << 30)
    monkeypatch.setattr(torch.accelerator, "memory_allocated", lambda device: 1 << 30)
    check_update(Setting("small_cnn"), updates=1)  # a frame crosses once, so they are held


@pytest.mark.parametrize("device", [CPU, THERE], ids=str)
def test_a_state_is_a_copy(device):
    """What is saved at the beginning of an iteration does not change with it."""
    setting = Setting("mlp")
    learner = Learner(config_of(setting), find_task("classic/cartpole"), device, False)
    learn_batch(learner, fragments_of(setting), 0, 1e-3)
    before, weights = learner.get_state(), learner.weights()
    moments = before["optimizer"]["state"][0]["exp_avg"].clone()
    learn_batch(learner, fragments_of(setting, 1), 1, 1e-3)
    np.testing.assert_array_equal(before["parameters"].numpy(), weights)
    assert torch.equal(before["optimizer"]["state"][0]["exp_avg"], moments)
    assert not np.array_equal(learner.weights(), weights)
