"""What is shipped for clusters, checked as far as can be without one: Ray's own schema, our own parser."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import ray
import yaml
from ray.autoscaler._private.local.config import LOCAL_CLUSTER_NODE_TYPE
from ray.autoscaler._private.util import prepare_config, validate_config

from rlscale.agents.checks import check_config
from rlscale.benchmarks.options import parse_train

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"


def test_the_cluster_launcher_file_is_what_ray_wants():
    config = yaml.safe_load((DEPLOY / "on-premise.yaml").read_text())
    prepared = prepare_config(config)
    validate_config(prepared)
    workers = prepared["available_node_types"][LOCAL_CLUSTER_NODE_TYPE]
    assert workers["min_workers"] == workers["max_workers"] == len(config["provider"]["worker_ips"])
    assert "cluster" in re.search(r"rlscale'\[(\w+)\]'", "".join(config["setup_commands"])).group(1)
    for side in ("head", "worker"):
        commands = prepared[f"{side}_start_ray_commands"]
        assert ["ray stop" in commands[0], len(commands)] == [True, 2]
        assert "RAY_worker_niceness=0" in commands[1]
        assert "RAY_AUTH_MODE=token" in commands[1], "a node without the mode sends no token"
        for command in [*commands, *config["setup_commands"]]:
            subprocess.run(["sh", "-n", "-c", command], check=True)
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    with pytest.raises(Exception, match="unexpected"):
        validate_config({**prepared, "worker_node": {}})


def pods(job):
    """Pod templates of the job's cluster, the head's first."""
    cluster = job["spec"]["rayClusterSpec"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def cpus(pod):
    return int(pod["containers"][0]["resources"]["requests"]["cpu"])


def test_the_rayjob_is_whole_and_its_command_is_ours():
    job = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) == {
        "entrypoint",
        "shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished",
        "backoffLimit",
        "rayClusterSpec",
    }
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    assert all(
        isinstance(value, str) for group in (cluster["headGroupSpec"], workers) for value in group["rayStartParams"].values()
    )

    command, verb, *words = shlex.split(job["spec"]["entrypoint"])
    assert (command, verb) == ("rlscale", "train")
    config = parse_train(words)
    check_config(config)
    assert config.rollout.ray_address == "auto"
    head, worker = pods(job)
    room = workers["replicas"] * (cpus(worker) // config.rollout.actor_cpus)
    assert config.rollout.actors <= room, "the actors find no room"
    assert config.update.threads <= cpus(head)
    assert config.recording.run.startswith(head["containers"][0]["volumeMounts"][0]["mountPath"])
    for pod in (head, worker):
        (container,) = pod["containers"]
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_every_file_names_the_ray_that_is_installed():
    job = yaml.safe_load((DEPLOY / "rayjob.yaml").read_text())
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == ray.__version__
    assert f"rayproject/ray:{ray.__version__}-" in (DEPLOY / "Dockerfile").read_text()
    assert f"\nray=={ray.__version__}\n" in (ROOT / "constraints.txt").read_text()
