"""Several Ray nodes on one machine: code that reaches them, where processes are put, and a head that dies."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import ray
from making import free_port
from nodes import ENVIRONMENT, bare_python, nodes, wait_until
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table, remove_placement_group

from rlscale.agents.cluster import placement
from rlscale.agents.cluster.connect import connect, disconnect
from rlscale.agents.cluster.placement import keep_together, require_room
from rlscale.agents.cluster.resources import store_bytes
from rlscale.agents.networks import flatten_parameters, make_network
from rlscale.agents.rollout.ray_fleet import RayFleet
from rlscale.agents.rollout.worker import WorkerSettings
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.run import read_run

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "rlscale", "train"]
SMALL = ["classic/cartpole", "--environments", "8", "--rollout-length", "16", "--mini-batch", "64", "--threads", "1"]

PROBE = """
import ray, sys
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=1)
def look():
    import importlib, os, sys
    importlib.import_module("torch")
    try:
        importlib.import_module("rlscale")
        return "found"
    except ModuleNotFoundError as error:
        return f"{sys.executable} {error.name}"

print(ray.get(look.remote()))
"""


def run(folder, *words, seconds=120, **more):
    return subprocess.run(
        words, cwd=folder, env={**ENVIRONMENT, **more}, capture_output=True, text=True, timeout=seconds, check=False
    )


def test_rollouts_run_on_a_node_that_knows_nothing_of_us(tmp_path):
    """Its Python has the dependencies only; the head has no CPUs, so every actor is there. Also with a user's own module."""
    python = bare_python(tmp_path / "bare")
    elsewhere, mine = tmp_path / "elsewhere", tmp_path / "mine"
    elsewhere.mkdir()
    mine.mkdir()
    example = re.search(r"```python\n(# corridor.*?)```", (ROOT / "docs" / "tasks.md").read_text(), re.DOTALL)
    (mine / "corridor.py").write_text(example.group(1))
    with nodes(free_port(), elsewhere) as cluster:
        cluster.start(0)
        cluster.start(2, python=python)
        (elsewhere / "probe.py").write_text(PROBE)
        probe = run(elsewhere, str(python), "probe.py", cluster.address)
        assert probe.stdout.split() == [str(python), "rlscale"], probe.stdout + probe.stderr
        for task in ("classic/cartpole", "corridor:make"):
            words = [task, *SMALL[1:], "--actors", "2", "--observations", "1000", "--run", task.partition(":")[0]]
            done = run(mine, *COMMAND, *words, "--ray-address", cluster.address, PYTHONPATH=str(ROOT))
            assert done.returncode == 0, done.stderr
            assert read_run(mine / task.partition(":")[0]).rows[-1]["observations"] >= 1000


@pytest.fixture(scope="module")
def three_nodes(shared_ray):
    """Three nodes of two CPUs, one of them with two make-believe GPUs; this process is on the head."""
    shared_ray.end()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2, num_gpus=2, object_store_memory=90 << 20)
    cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    connect(cluster.address, 1)
    yield cluster
    disconnect()
    cluster.shutdown()


@ray.remote(num_cpus=1)
class Other:
    """Somebody else's job."""

    def ready(self):
        return ray.get_runtime_context().get_node_id()


def occupy(count, **options):
    """So many CPUs, and the nodes they are on."""
    others = [Other.options(**options).remote() for _ in range(count)]
    return others, ray.get([other.ready.remote() for other in others])


def leave(others):
    for other in others:
        ray.kill(other)
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 6)


def test_actors_are_spread_over_the_nodes(three_nodes):
    task = find_task("classic/cartpole")
    settings = WorkerSettings(
        task, 2, 8, "mlp", bfloat16=False, threads=1, cut_on_life_loss=True, random_first_steps=0, seed=1, generation=0, workers=3
    )
    fleet = RayFleet(settings, most_fragments=3)
    try:
        living = [actor for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]
        assert len(living) == 3
        assert {actor["Address"]["NodeID"] for actor in living} == {node["NodeID"] for node in ray.nodes()}
    finally:
        fleet.close()
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 6)


def test_a_cluster_that_is_too_small_or_that_others_use(three_nodes, monkeypatch):
    monkeypatch.setattr(placement, "ROOM_SECONDS", 2.0)
    with pytest.raises(UsageError, match="the run needs 7 CPUs, the cluster has 6 CPUs on 3 nodes"):
        require_room([{"CPU": 1.0}] * 7)
    require_room([{"CPU": 2.0}] * 3)
    others, _ = occupy(4)
    try:
        with pytest.raises(UsageError, match=r"the run needs 3 CPUs; of the 6 there 2 are free\. Wait for others"):
            require_room([{"CPU": 1.0}] * 3)
    finally:
        leave(others)
    others, places = occupy(3, scheduling_strategy="SPREAD")
    try:
        assert len(set(places)) == 3
        with pytest.raises(UsageError, match="2 CPUs; of the 6 there 3 are free, in parts too small for one process"):
            require_room([{"CPU": 2.0}])
        require_room([{"CPU": 1.0}] * 3)
    finally:
        leave(others)


def places_of(group):
    return set(placement_group_table(group)["bundles_to_node_id"].values())


def test_learners_are_together_and_here_if_they_find_room(three_nodes, monkeypatch):
    monkeypatch.setattr(placement, "ROOM_SECONDS", 2.0)
    here = ray.get_runtime_context().get_node_id()
    (with_gpus,) = (node["NodeID"] for node in ray.nodes() if node["Resources"].get("GPU"))
    assert with_gpus != here

    def place(each, count):
        group = keep_together(each, count)
        found = places_of(group)
        remove_placement_group(group)
        wait_until(lambda: ray.available_resources().get("CPU", 0) >= 5)
        return found

    assert place({"CPU": 1.0}, 2) == {here}
    assert place({"CPU": 1.0, "GPU": 1.0}, 2) == {with_gpus}
    assert len(place({"CPU": 1.0}, 4)) == 2
    others, _ = occupy(1, label_selector={"ray.io/node-id": here})
    try:
        (elsewhere,) = place({"CPU": 1.0}, 2)
        assert elsewhere != here
    finally:
        leave(others)


def test_fragments_must_fit_where_they_are_made_and_where_they_are_read(three_nodes):
    """Stores of 150, 90 and 150 MiB; this process is on one of the larger, an even share of its actors on the smallest."""
    assert store_bytes(learners=1) == 150 << 20
    assert store_bytes(learners=2) == 90 << 20
    small = three_nodes.add_node(num_cpus=1, object_store_memory=80 << 20)
    try:
        three_nodes.wait_for_nodes()
        wait_until(lambda: store_bytes(learners=2) == 80 << 20)
        assert store_bytes(learners=1) == 150 << 20
    finally:
        three_nodes.remove_node(small)


@pytest.mark.parametrize(("ahead", "comes"), [(3, True), (0, False)])
def test_finished_fragments_come_here_while_a_late_one_is_waited_for(three_nodes, ahead, comes):
    """The first of three actors stands still meanwhile; Ray alone would copy the other two once they are asked for."""
    settings = WorkerSettings(find_task("classic/cartpole"), 64, 128, "mlp", False, 1, True, 0, 0, workers=3)
    weights = flatten_parameters(make_network(settings.task, "mlp", 0)).numpy()
    here = ray.get_runtime_context().get_node_id()
    with contextlib.closing(RayFleet(settings, 3, ahead=ahead)) as fleet:
        assert len(set(fleet._actors.node_of.values())) == 3
        first = next(number for number, node in fleet._actors.node_of.items() if node != here)
        fleet._next_group = first
        process = ray.get(fleet._actors.working[first].__ray_call__.remote(lambda _: os.getpid()))
        os.kill(process, signal.SIGSTOP)
        fleet.request(weights, 0, 3)
        others = [request.fragment for request in list(fleet._requests)[1:]]
        ray.wait(others, num_returns=2, fetch_local=False)
        threading.Timer(3.0, os.kill, (process, signal.SIGCONT)).start()
        fleet.take()
        nodes_of = [found["node_ids"] for found in ray.experimental.get_object_locations(others).values()]
        away = [places for places in nodes_of if places != [here]]
        assert [here in places for places in away] == [comes] * len(away)
        assert away
    wait_until(lambda: ray.available_resources().get("CPU", 0) == 6)


def test_the_command_refuses_a_full_cluster_in_one_line(three_nodes, tmp_path):
    others, _ = occupy(5)
    try:
        done = run(
            tmp_path, *COMMAND, *SMALL, "--actors", "2", "--run", "mine", "--ray-address", three_nodes.address,
            PYTHONPATH=str(ROOT), RAY_AUTH_MODE=os.environ.get("RAY_AUTH_MODE", ""),
        )  # fmt: skip
    finally:
        leave(others)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("rlscale: --actors: the run needs 2 CPUs; of the 6 there 1 are free")
    assert not (tmp_path / "mine").exists()


def test_a_stop_reaches_the_process_that_learns(three_nodes, tmp_path):
    """Only the process that was started gets the signal, as from a container's or a job's supervisor."""
    words = [*SMALL, "--actors", "2", "--observations", "None", "--seconds", "300", "--run", "mine"]
    process = subprocess.Popen(
        [*COMMAND, *words, "--ray-address", three_nodes.address],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    rows = tmp_path / "mine" / "iterations.jsonl"
    wait_until(lambda: process.poll() is not None or (rows.exists() and rows.read_text()))
    process.send_signal(signal.SIGTERM)
    said, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert "go on with:  rlscale train classic/cartpole --resume mine" in said
    assert read_run(tmp_path / "mine").state == "stopped"


@pytest.mark.parametrize("dead", ["the whole node", "its control service"])
def test_a_head_that_dies_ends_the_run_in_one_line(tmp_path, dead):
    """With the node that the run's process is on; or, on another machine, from where only its silence is seen."""
    with nodes(free_port(), tmp_path) as cluster:
        cluster.start(2 if dead == "the whole node" else 0)
        if dead == "its control service":
            cluster.kill(b"raylet/raylet")  # so that the run's process joins the other node, as on another machine
            cluster.start(2)
        words = [*SMALL, "--actors", "2", "--observations", "None", "--seconds", "300", "--run", "mine"]
        process = subprocess.Popen(
            [*COMMAND, *words, "--ray-address", cluster.address],
            cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        rows = tmp_path / "mine" / "iterations.jsonl"
        wait_until(lambda: process.poll() is not None or (rows.exists() and len(rows.read_text().splitlines()) > 5))
        assert process.poll() is None, process.stderr.read()
        cluster.kill(b"" if dead == "the whole node" else b"gcs_server")
        _, error = process.communicate(timeout=180)
    assert process.returncode == 2
    assert "Traceback" not in error
    (line,) = [line for line in error.splitlines() if line.startswith("rlscale:")]
    assert (
        "the head of the Ray cluster does not answer any more" in line
        or "Ray has ended the run's process: its node or its head is gone" in line
    )
    assert "--resume mine" in line
    record = read_run(tmp_path / "mine")
    assert record.state == "failed"
    before = record.rows[-1]["iteration"]
    further = record.rows[-1]["observations"] + 1
    resumed = ["classic/cartpole", "--resume", "mine", "--ray-address", "None", "--actors", "0", "--observations", str(further)]
    done = run(tmp_path, *COMMAND, *resumed, "--seconds", "None", PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    after = read_run(tmp_path / "mine")
    first = after.manifest["segments"][-1]["first_iteration"]
    assert first > 0
    if "does not answer" in line:
        assert first == before + 1  # only what was under way is lost
    assert after.rows[-1]["iteration"] > before
