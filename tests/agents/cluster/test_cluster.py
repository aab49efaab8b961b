"""Reaching Ray: what does not answer is noticed within seconds, in one line."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module

import pytest
import ray

from rlscale.agents.cluster.connect import connect, connected
from rlscale.errors import UsageError

connecting = import_module("rlscale.agents.cluster.connect")  # the package has a function of that name

pytestmark = pytest.mark.usefixtures("own_ray")


def refused(address):
    started = time.monotonic()
    with pytest.raises(UsageError) as caught:
        connect(address, 1)
    assert caught.value.field == "--ray-address"
    return time.monotonic() - started, str(caught.value)


def test_nothing_listens():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    seconds, text = refused(f"127.0.0.1:{port}")
    assert seconds < 5
    assert "nothing answers" in text


def test_a_listener_that_never_speaks(monkeypatch):
    monkeypatch.setattr("rlscale.agents.cluster.head_node.PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        seconds, _ = refused(f"127.0.0.1:{server.getsockname()[1]}")
    assert seconds < 5


def test_a_listener_that_is_not_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        seconds, text = refused(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert "not a Ray head" in text
    assert seconds < 5


@pytest.mark.long
def test_an_existing_cluster_is_used_and_left_running(tmp_path):
    """Another process holds the cluster; the command samples on it by its address."""
    holder = (
        "import ray, sys\nc = ray.init('local', num_cpus=2, include_dashboard=False, log_to_driver=False)\n"
        "print(c.address_info['gcs_address'], flush=True)\nsys.stdin.read()\n"
        "assert ray.cluster_resources()['CPU'] == 2\nray.shutdown()"
    )
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    words = ["train", "classic/cartpole", "--actors", "2", "--observations", "1000", "--run", "mine"]
    with subprocess.Popen(
        [sys.executable, "-c", holder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as process:
        address = process.stdout.readline().strip()
        done = subprocess.run(
            [sys.executable, "-m", "rlscale", *words, "--ray-address", address],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=120,
        )
        process.stdin.close()
        assert process.wait(60) == 0
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout


@pytest.mark.parametrize(
    "address",
    ["nonsense", "127.0.0.1", "127.0.0.1:port", "x..y:6379", f"{'x' * 70}:6379", *(f"127.0.0.1:{'9' * n}" for n in (30, 5000))],
)
def test_not_an_address(address):
    assert "host:port" in refused(address)[1]


def test_too_few_cpus(monkeypatch):
    """Whoever asked, by --actors, by --actor-cpus or by --cpus, reads nothing of an option that the command does not have."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 1.0})
    left = []
    monkeypatch.setattr(connecting, "disconnect", lambda: left.append(True))
    said = r"^--ray-address: the actors need 3 CPUs, the cluster has 1\. Use fewer actors or fewer CPUs"
    with pytest.raises(UsageError, match=said):
        connect(None, 3)
    assert left == [True]


def test_a_local_ray_that_does_not_start_is_one_line(monkeypatch):
    """What Ray raises when its node is not there in time is a bare `Exception` of several lines."""

    def late(**options):
        raise Exception("The current node timed out during startup.\nThis could happen because")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(UsageError) as caught:
        connect(None, 1)
    assert caught.value.field == "Ray"
    assert caught.value.problem == "it did not start on this machine: The current node timed out during startup"


def test_an_environment_in_a_folder_with_a_space_cannot_have_actors(monkeypatch):
    """Ray hands Python's path to a shell unquoted; every actor would be waited for, and then the cluster be called busy."""
    monkeypatch.setattr(sys, "executable", "/home/me/My Projects/.venv/bin/python")
    with pytest.raises(UsageError, match="whose path has a space"):
        connect(None, 1)


@pytest.mark.long
def test_sigterm_while_connected_is_an_interrupt(capfd):
    assert threading.current_thread() is threading.main_thread(), "elsewhere the signal would end the tests"
    with pytest.raises(KeyboardInterrupt), connected(None, 1):
        signal.raise_signal(signal.SIGTERM)
    assert not ray.is_initialized()
    assert "SIGTERM received" not in capfd.readouterr().err
