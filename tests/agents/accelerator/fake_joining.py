"""How several learners join on accelerators: by torch's own backend for the device, in whose memory sums are taken."""

from types import SimpleNamespace

import fake_accelerator as fake
import pytest
import torch

from rlscale.agents.cluster import learner_resources
from rlscale.agents.devices import group_backend
from rlscale.agents.learning.remote_learners import LearnerActor

fake.register()


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl"), ("xpu", "xccl"), ("fake", "gloo")])
def test_the_backend_is_torchs_own_choice_and_gloo_where_it_has_none(device, backend):
    assert group_backend(torch.device(device)) == backend


def not_joined(device):
    """A learner that has its settings and no network: there may be no such device here."""
    learner = LearnerActor.__new__(LearnerActor)
    learner._device = learner._sums_on = torch.device(device)
    learner._rank, learner._config = 1, SimpleNamespace(update=SimpleNamespace(learners=4))
    return learner


def test_learners_on_cuda_join_by_nccl_and_add_up_there(monkeypatch):
    """Up to where NCCL would begin."""
    calls = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **kwargs: calls.append((args, kwargs)))
    learner = not_joined("cuda")
    learner.join("tcp://10.0.0.1:1234")
    ((args, kwargs),) = calls
    assert args == ("nccl",)
    assert (kwargs["init_method"], kwargs["rank"], kwargs["world_size"]) == ("tcp://10.0.0.1:1234", 1, 4)
    assert learner._sums_on == torch.device("cuda")
    assert learner_resources(3, "cuda") == {"CPU": 3.0, "GPU": 1.0}
    assert learner_resources(3, "cpu") == {"CPU": 3.0}


def test_sums_are_taken_in_the_memory_of_the_backend(monkeypatch):
    """Of a backend of the device's own: what lies there is added up in place, and what lies on the CPU goes there and back."""
    seen = []

    def all_reduce(total):
        seen.append(total.device.type)
        total.mul_(2)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    learner = not_joined("fake")
    on_device, on_cpu = torch.ones(3, device="fake"), torch.ones(3, dtype=torch.float64)
    with fake.counting() as counts:
        learner._add_over_learners(on_device)
    assert counts.syncs == []
    learner._add_over_learners(on_cpu)
    assert seen == ["fake", "fake"]
    assert on_device.tolist() == on_cpu.tolist() == [2, 2, 2]
