"""What Ray is asked for, on clusters that are only told of: learners kept together, fragments that must fit into the stores.

test_nodes.py asks real nodes.
"""

from importlib import import_module
from types import SimpleNamespace

import pytest
import ray

from rlscale.agents.cluster.placement import keep_together, require_room
from rlscale.agents.cluster.resources import cpus_for_actors, free_places, store_bytes
from rlscale.agents.metrics import RayMetrics
from rlscale.errors import UsageError

groups = import_module("ray.util.placement_group")  # the package has a function of that name


@pytest.fixture
def tell(monkeypatch):
    """Tells this process of a cluster: the resources of its living nodes, on the first of which it is. One more node is dead."""

    def telling(*nodes):
        dead = {"CPU": 64.0, "GPU": 64.0, "object_store_memory": 1.0}
        told = [
            {"NodeID": f"node {number}", "Alive": number < len(nodes), "Resources": resources}
            for number, resources in enumerate([*nodes, dead])
        ]
        monkeypatch.setattr(ray, "nodes", lambda: told)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "node 0"))

    return telling


@pytest.mark.parametrize(
    ("processes", "field", "text"),
    [
        ([{"CPU": 1.0}] * 7, "--actors", "the run needs 7 CPUs, the cluster has 6 CPUs on 3 nodes"),
        ([{"CPU": 3.0}], "--actors", "one process of the run needs 3 CPUs, and no node of the cluster has so many"),
        ([{"CPU": 1.0, "GPU": 1.0}] * 3, "--learners", "the run needs 3 GPUs, the cluster has 2 GPUs on 3 nodes"),
    ],
)
def test_a_cluster_that_is_too_small(tell, processes, field, text):
    tell({"CPU": 2.0}, {"CPU": 2.0, "GPU": 2.0}, {"CPU": 2.0})
    with pytest.raises(UsageError) as caught:
        require_room(processes)
    assert caught.value.field == field
    assert caught.value.problem == text


class Places:
    """Stands in for Ray's placement groups: those that were asked for, and which were given back.

    Args:
        room: whether a group of these options finds room.
    """

    def __init__(self, room):
        self._room, self.asked, self.given_back = room, [], []

    def placement_group(self, bundles, **options):
        self.asked.append((bundles, options))
        return SimpleNamespace(number=len(self.asked) - 1, wait=lambda seconds: self._room(options))

    def remove_placement_group(self, group):
        self.given_back.append(group.number)


HERE = {"strategy": "PACK", "bundle_label_selector": [{"ray.io/node-id": "node 0"}] * 2}
ANYWHERE = {"strategy": "PACK"}


@pytest.mark.parametrize(
    ("each", "room_here", "asked"),
    [
        pytest.param({"CPU": 1.0}, True, [HERE], id="there is room here"),
        pytest.param({"CPU": 1.0}, False, [HERE, ANYWHERE], id="others use this node"),
        pytest.param({"CPU": 2.0}, True, [ANYWHERE], id="this node is too small"),
        pytest.param({"CPU": 1.0, "GPU": 1.0}, True, [ANYWHERE], id="this node has no GPUs"),
    ],
)
def test_learners_are_together_and_here_if_they_find_room(tell, monkeypatch, each, room_here, asked):
    tell({"CPU": 2.0}, {"CPU": 8.0, "GPU": 2.0})
    places = Places(lambda options: room_here or options == ANYWHERE)
    for name in ("placement_group", "remove_placement_group"):
        monkeypatch.setattr(groups, name, getattr(places, name))
    group = keep_together(each, 2)
    assert places.asked == [([each, each], options) for options in asked]
    assert group.number == len(asked) - 1
    assert places.given_back == list(range(len(asked) - 1))


MIB = 1 << 20


@pytest.mark.parametrize(
    ("nodes", "one", "several"),
    [
        pytest.param([(2, 150), (2, 90), (2, 150)], 150, 90, id="the smallest store is elsewhere"),
        pytest.param([(2, 90), (2, 150)], 90, 90, id="it is here"),
        pytest.param([(2, 400), (2, 90), (2, 150)], 270, 90, id="an even share of three nodes is on the smallest"),
        pytest.param([(0, 80), (2, 90), (2, 100)], 80, 90, id="nothing is made where there are no CPUs"),
    ],
)
def test_fragments_must_fit_where_they_are_made_and_where_they_are_read(tell, nodes, one, several):
    """One learner reads here; one of several may read on any node that has a CPU for it."""
    tell(*({"CPU": float(cpus), "object_store_memory": float(mib * MIB)} for cpus, mib in nodes))
    assert store_bytes(learners=1) == one * MIB
    assert store_bytes(learners=2) == several * MIB


@pytest.mark.parametrize(
    ("nodes", "asked", "fits"),
    [
        pytest.param([(0, 200), *[(8, 20)] * 4, (96, 20)], {"actors": 128}, 20 * 128 / 96, id="a large node makes most of it"),
        pytest.param([(64, 60)] * 7 + [(8, 8)], {"actors": 256}, 60, id="a small one a small part, though its store is small"),
        pytest.param([(64, 60)] * 7 + [(8, 8)], {"actors": 64}, 60, id="eight on each"),
        pytest.param([(9, 90), (9, 90)], {"actors": 2, "cpus": 4}, 90, id="the learner reads a whole batch"),
        pytest.param([(9, 90), (9, 90)], {"actors": 2, "cpus": 4, "stream": True}, 180, id="of a stream it reads little"),
        pytest.param([(9, 90), (9, 90)], {"actors": 2, "cpus": 4, "lag": 1}, 120, id="of two batches it reads one"),
        pytest.param([(9, 90)], {"actors": 2, "lag": 1}, 90, id="one machine holds both"),
        pytest.param([(0, 90), (9, 90)], {"actors": 2, "lag": 1}, 90, id="another machine makes both"),
        pytest.param([(0, 30), (9, 90)], {"actors": 2, "lag": 1}, 60, id="and this one reads one"),
        pytest.param([(9, 90), (9, 30)], {"actors": 0}, 90, id="without actors all are made here"),
    ],
)
def test_actors_are_dealt_out_by_the_room_that_nodes_have(tell, nodes, asked, fits):
    """Bytes of all batches that exist at once: seven of 64 CPUs and one of 8 deal 256 actors out as 35 or 36 each and 8."""
    tell(*({"CPU": float(cpus), "object_store_memory": float(mib * MIB)} for cpus, mib in nodes))
    assert store_bytes(1, **asked) == pytest.approx(fits * MIB, abs=1)


@pytest.mark.parametrize(
    ("nodes", "asked", "fits"),
    [
        pytest.param([(8, 10), (8, 100)], {"actors": 1}, 10, id="learners read here, where no fragment is made"),
        pytest.param([(8, 100), (8, 10)], {"actors": 0}, 10, id="learners may be where no actor is"),
        pytest.param([(0, 10), (8, 100), (8, 100)], {"actors": 2}, 100, id="a node without CPUs has no learner"),
        pytest.param([(8, 100), (3, 10)], {"actors": 0}, 100, id="nor has one with too few for it"),
        pytest.param([(8, 100), (8, 100)], {"actors": 8, "lag": 1}, 100, id="they fill this node: all is made on the other"),
        pytest.param([(0, 100), (4, 60), (8, 60)], {"actors": 4, "stream": True}, 60, id="or the largest, if this has no room"),
        pytest.param([(16, 100), (8, 100)], {"actors": 8, "stream": True}, 200, id="four actors are beside them"),
        pytest.param([(2, 100), (2, 100)], {"actors": 2}, 200, id="no node has room for a learner"),
    ],
)
def test_learners_take_room_from_actors_and_read_whole_batches(tell, nodes, asked, fits):
    """Two learners of four CPUs each, which are put here if both have room, but may be elsewhere if others use this node."""
    tell(*({"CPU": float(cpus), "object_store_memory": float(mib * MIB)} for cpus, mib in nodes))
    assert store_bytes(2, learner={"CPU": 4.0}, **asked) == fits * MIB


def test_learners_on_accelerators_read_only_where_there_are_any(tell):
    small, large = {"CPU": 8.0, "object_store_memory": 10.0 * MIB}, {"CPU": 8.0, "GPU": 2.0, "object_store_memory": 90.0 * MIB}
    tell(large, small)
    assert store_bytes(2, 0, learner={"CPU": 4.0, "GPU": 1.0}) == 90 * MIB
    assert store_bytes(2, 0, learner={"CPU": 4.0}) == 10 * MIB


def test_room_for_processes_of_several_cpus_is_counted_node_by_node(monkeypatch):
    free = {name: {"CPU": 64.0} for name in "abcdefgh"}
    monkeypatch.setattr("ray._private.state.available_resources_per_node", lambda: free)
    assert free_places(3) == 8 * 21
    assert free_places(1) == 512


def test_halves_of_a_cpu_that_are_free_on_several_nodes_are_no_place_for_a_process(monkeypatch):
    """As where half of one is reserved by another program: an actor that was started on the two halves would never come."""
    free = {name: {"CPU": 3.5} for name in "ab"}
    monkeypatch.setattr("ray._private.state.available_resources_per_node", lambda: free)
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 7.0})
    assert free_places(1) == 6
    assert cpus_for_actors(None, "auto") == 6
    with pytest.raises(UsageError, match="--cpus: 6 of the cluster are free, not 7"):
        cpus_for_actors(7, "auto")


def test_of_thousands_of_mini_batches_the_last_is_shown(monkeypatch):
    """An estimate of each would take seconds, and every gauge would keep the last one's all the same."""
    shown, made = [], []
    gauge = SimpleNamespace(set=lambda value, labels: shown.append((labels["head"], value)))
    metrics = object.__new__(RayMetrics)
    metrics._labels, metrics._gauges, metrics._noise = {}, {}, {"trace_cov": gauge}
    metrics._observations = SimpleNamespace(inc=lambda *_: None)
    monkeypatch.setattr("rlscale.agents.metrics.noise_scale", lambda s: made.append(s) or SimpleNamespace(trace_cov=s))
    noise = [SimpleNamespace(head=head, kind="mini-batch", statistics=n) for n in range(1000) for head in ("joint", "policy")]
    metrics.write({"batch_observations": 1}, noise)
    assert shown == [("joint", 999), ("policy", 999)]
    assert made == [999, 999]
