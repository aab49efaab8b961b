"""What only accelerators have: shares of one, which Ray reserves for actors, and memory of their own that can run out."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray
import torch

from rlscale.agents.cluster.placement import rollout_resources
from rlscale.agents.cluster.processes import kind_of_loss
from rlscale.agents.config import default_config
from rlscale.agents.rollout import RayFleet, WorkerSettings, ray_fleet
from rlscale.agents.setup import prepare
from rlscale.envs import find_task

TASK = find_task("classic/cartpole")


@pytest.mark.parametrize(
    ("gpus", "cpus", "most", "share"),
    [
        pytest.param(1, 8, 4, 0.125, id="half a GPU for all of them"),
        pytest.param(1, 8, 16, 0.0625, id="no more actors than there are CPUs for"),
        pytest.param(4, 8, 1, 1.0, id="one on four GPUs uses one"),
        pytest.param(8, 8, 3, 1.0, id="no fraction above one"),
        pytest.param(4, 8, 3, 0.5, id="three on two of four GPUs: a third of two each would take three"),
        pytest.param(4, 64, 11, 0.1666, id="eleven on two"),
        pytest.param(8, 64, 7, 0.5, id="seven on four of eight"),
        pytest.param(3, 64, 4, 0.25, id="four on one of three"),
        pytest.param(1, 128, 128, 0.0039, id="a small share is one still"),
        pytest.param(2, 0, 1, 1.0, id="a cluster that has no CPUs yet"),
    ],
)
def test_all_actors_there_can_be_share_half_of_the_gpus(monkeypatch, gpus, cpus, most, share):
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": float(gpus), "CPU": float(cpus)})
    assert rollout_resources(most, 1, "cuda") == {"CPU": 1.0, "GPU": share}


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out of memory"),
        (MemoryError(), "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (RuntimeError("shapes do not match"), None),
    ],
)
def test_a_process_whose_accelerator_has_no_memory_left_ran_out_of_memory(cause, kind):
    raised = ray.exceptions.RayTaskError("sample", f"traceback: {cause}", cause).as_instanceof_cause()
    assert kind_of_loss(raised) == kind


def test_where_actors_come_later_their_share_is_left_to_them(monkeypatch):
    """`--actors auto` begins with one, and there may come to be one for each group."""
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 1.0, "CPU": 8.0})
    config = default_config(TASK)
    rollout = replace(config.rollout, environments=32, actors="auto", actor_cpus=1, ray_address="auto", fragment_environments=8)
    setup = prepare(replace(config, rollout=rollout), TASK)
    setup = replace(setup, compute=replace(setup.compute, acting=torch.device("cuda")))
    assert setup.reservations() == [{"CPU": 1.0, "GPU": 0.125}]


@pytest.mark.parametrize(("grows", "most"), [(True, 6), (False, 2)])
def test_a_fleet_says_how_many_actors_it_may_come_to_have(monkeypatch, grows, most):
    asked = []

    def actors(settings, groups, **numbers):
        asked.append(numbers)
        return SimpleNamespace(working={0: None, 1: None}, take_first_states=dict)

    monkeypatch.setattr(ray_fleet, "RolloutActors", actors)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
    settings = WorkerSettings(TASK, 2, 8, "mlp", False, 1, True, 0, 0, groups=6)
    RayFleet(settings, 6, actors=2, grows=grows)
    assert asked == [{"fewest": 1 if grows else 2, "most": most}]
