"""A cluster that is too small for a run: what is short is said, and of which of its processes there are too many."""

from importlib import import_module

import pytest
import ray

from rlscale.agents.cluster import placement
from rlscale.agents.cluster.placement import require_room
from rlscale.errors import UsageError

connecting = import_module("rlscale.agents.cluster.connect")  # the package has a function of that name
LEARNERS, ACTORS = [{"CPU": 8.0}] * 4, [{"CPU": 1.0}] * 2


@pytest.mark.parametrize(
    ("learners", "actors", "nodes", "field", "text"),
    [
        (
            4,
            0,
            4,
            "--learners",
            "the run needs 32 CPUs, the cluster has 16 CPUs on 4 nodes. Use fewer learners, or fewer --threads",
        ),
        (
            4,
            2,
            4,
            "--learners",
            "the run needs 34 CPUs, the cluster has 16 CPUs on 4 nodes. Use fewer learners, fewer --threads or fewer actors",
        ),
        (0, 2, 0, "--actors", "the run needs 2 CPUs, the cluster has 0 CPUs. Use fewer actors, or fewer --actor-cpus"),
        (
            1,
            2,
            9,
            "--threads",
            "one process of the run needs 8 CPUs, and no node of the cluster has so many. Use fewer, or larger nodes",
        ),
    ],
)
def test_learners_are_not_taken_for_actors(monkeypatch, learners, actors, nodes, field, text):
    monkeypatch.setattr(placement, "living_nodes", lambda: {f"node {number}": {"CPU": 4.0} for number in range(nodes)})
    with pytest.raises(UsageError) as caught:
        require_room(LEARNERS[:learners] + ACTORS[:actors], learners)
    assert str(caught.value) == f"{field}: {text}"


@pytest.mark.parametrize(
    ("learner_cpus", "text"),
    [
        (0, "the actors need 64 CPUs, the cluster has 4. Use fewer actors or fewer CPUs, or start more nodes"),
        (
            60,
            "the run's processes need 64 CPUs, 60 of them its learners, the cluster has 4. "
            "Use fewer --threads or --learners, or start more nodes",
        ),
    ],
)
def test_cpus_of_learners_are_not_said_to_be_those_of_actors(monkeypatch, learner_cpus, text):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr(connecting, "disconnect", lambda: None)
    with pytest.raises(UsageError) as caught:
        connecting.connect(None, 64, learner_cpus=learner_cpus)
    assert str(caught.value) == f"--ray-address: {text}"
