"""Two learners on fake accelerators, a process each: over gloo their sums go through the CPU."""

import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from types import SimpleNamespace

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from accelerated import Setting, config_of, equal_updates, fragments_of, sum_in_equal_pieces
from making import free_port

from rlscale.agents.cluster.processes import pickle_settings
from rlscale.agents.learning import arrange_slots
from rlscale.agents.learning.remote_learners import LearnerActor
from rlscale.envs import find_task

fake.register()

MINI = {"epochs": 2, "mini_batch": 24, "shuffle": "environments"}
SETTINGS = [Setting("mlp", update=MINI), Setting("mlp", update={"stream": True}), Setting("small_cnn", bfloat16=True, rounds=2)]


def learn_as(rank, ports):
    """One of two learners, for every setting on both devices: what it learned, and what its last update waited for."""
    fake.register()
    torch.set_num_threads(1)
    task = {setting.network: find_task(config_of(setting).task) for setting in SETTINGS}
    out = []
    for setting, (cpu, there) in zip(SETTINGS, ports, strict=True):
        for device, port in (("cpu", cpu), ("fake", there)):
            settings = (config_of(setting, learners=2), task[setting.network], device, setting.bfloat16, 1)
            learner = LearnerActor(pickle_settings(settings, task[setting.network]), os.getcwd(), rank)
            learner.join(f"tcp://127.0.0.1:{port}")
            learned = []
            with sum_in_equal_pieces():
                for iteration in range(2):
                    fragments = fragments_of(setting, iteration)
                    slots = arrange_slots([f.group for f in fragments], fragments[0].environments)
                    with fake.counting() as counts:
                        learner.begin(slots, iteration)
                        sent = 0
                        for fragment, slot in zip(fragments, slots, strict=True):
                            mine = learner._blocks.columns
                            reads = slot.columns.start < mine.stop and mine.start < slot.columns.stop
                            if reads or setting.update.get("stream"):  # of a stream the first sets the scale of all
                                learner.accept(fragment, slot)
                                sent += 1
                        learned.append(learner.finish(1e-3, sent))
            out.append((learner.weights(), learned, counts.syncs, dict(counts.uploads)))
            torch.distributed.destroy_process_group()
    return pickle.dumps(out)


@pytest.fixture(scope="module")
def learned():
    """What each of two learners, a process each, has learned: (weights, results, waits, uploads), CPU and fake by turns."""
    context = multiprocessing.get_context("spawn")
    ports = [(free_port(), free_port()) for _ in SETTINGS]
    with ProcessPoolExecutor(2, mp_context=context) as processes:  # one that dies is said at once
        return [pickle.loads(out) for out in processes.map(learn_as, range(2), [ports] * 2, timeout=600)]


@pytest.mark.parametrize("number", range(len(SETTINGS)), ids=[str(s) for s in SETTINGS])
def test_two_learners_make_the_update_that_they_make_on_the_cpu(learned, number):
    for rank in range(2):
        here, there = (SimpleNamespace(weights=x[0], results=x[1]) for x in learned[rank][2 * number : 2 * number + 2])
        equal_updates(here, there)
    np.testing.assert_array_equal(learned[0][2 * number + 1][0], learned[1][2 * number + 1][0])


# Of each setting the sums of an update: one for each of three heads; for each step its gradient and its figures, and where the
# step is measured the last layer's gradient.
SUMS = [3 + 2 * 3 + 2 * 2, 3 + 3, 3 + 3]


@pytest.mark.parametrize(("number", "sums"), list(enumerate(SUMS)), ids=[str(s) for s in SETTINGS])
def test_the_host_waits_for_the_sums_that_gloo_takes_and_to_finish(learned, number, sums):
    """Twice for each sum, to the CPU and back; the copy of the state from before the update stays on the device."""
    for rank in range(2):
        _, _, waits, _ = learned[rank][2 * number + 1]
        staging = [wait for wait in waits if "remote_learners" in wait]
        assert len(staging) == 2 * sums
        assert len(waits) == len(staging) + 1, waits


def test_frames_of_other_learners_environments_do_not_cross(learned):
    _, _, _, uploads = learned[0][2 * 2 + 1]
    assert uploads["torch.uint8"] == sum(f.frames.nbytes for f in fragments_of(SETTINGS[2])) // 2
