"""Reaching Ray: what does not answer is noticed within seconds, in one line."""

import socket
import threading
import time

import pytest
import ray

from agents.cluster import connect
from rlscale.errors import UsageError


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


def test_a_listener_that_never_speaks():
    with socket.create_server(("127.0.0.1", 0)) as server:
        seconds, _ = refused(f"127.0.0.1:{server.getsockname()[1]}")
    assert seconds < 5


def test_a_listener_that_is_not_ray():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        _, text = refused(f"127.0.0.1:{server.getsockname()[1]}")
    assert "not a Ray head" in text


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:port"])
def test_not_an_address(address):
    assert "host:port" in refused(address)[1]


def test_too_few_cpus():
    ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        with pytest.raises(UsageError, match="3 CPUs") as caught:
            connect(None, 3)
        assert caught.value.field == "--actors"
    finally:
        ray.shutdown()
