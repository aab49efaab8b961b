"""A running `rlscale train` whose actor has no memory left, whose cluster's object store is full, whose disk is full."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from commands import COMMAND, SMALL, goes_on, losses_of, rows_of, start, wait_for
from making import free_port
from nodes import nodes

from rlscale.records.run import read_run

GREEDY = '''
import resource
import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv


class Greedy(CartPoleVectorEnv):
    """After 200 steps its process may have no more memory than it has."""

    taken = 0

    def step(self, action):
        self.taken += 1
        if self.taken == 200:
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
        if self.taken >= 200:
            self.hoard = getattr(self, "hoard", []) + [bytearray(8 << 20)]
        return super().step(action)


def make(n):
    return Greedy(n)
'''


@pytest.mark.long
def test_an_actor_out_of_memory(tmp_path):
    """An environment that takes more and more: its actor is replaced, and the next one can go on for a while."""
    (tmp_path / "greedy.py").write_text(GREEDY)
    with start(tmp_path, "greedy:make", *SMALL, "--actors", "1", "--observations", "4000", "--run", "mine") as process:
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "Traceback" not in error
    record = read_run(tmp_path / "mine")
    assert record.rows[-1]["observations"] >= 4000
    hit = [row["iteration"] for row in record.rows if row["losses"]]
    assert 5 <= hit[0] <= 30  # 200 steps are 12 iterations of 16; the allocator may have a little to spare
    assert {loss["what"] for loss in losses_of(tmp_path / "mine")} <= {"out of memory", "died"}


@pytest.mark.long
def test_a_full_object_store_is_said_and_survived(tmp_path):
    """Someone else fills the store of a running cluster for good: fragments go to disk, and the rows say so."""
    script = tmp_path / "fill.py"
    script.write_text(
        "import sys, time, numpy as np, ray\n"
        "ray.init(address=sys.argv[1], logging_level='ERROR')\n"
        "held = [ray.put(np.ones(10 << 20, dtype=np.uint8)) for _ in range(12)]\n"
        "views = [ray.get(r) for r in held[-8:]]\n"
        "print('full', flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    words = ["atari/pong@42", "--environments", "32", "--rollout-length", "64", "--mini-batch", "1024", "--epochs", "1"]
    words += ["--network", "small_cnn", "--actors", "2", "--run", "mine", "--observations", "100000000"]
    folder = tmp_path / "mine"
    with nodes(free_port(), tmp_path) as cluster:
        cluster.start(2)  # with a store of 100 MiB
        place = ["--ray-address", cluster.address]
        with start(tmp_path, *words, *place, RAY_AUTH_MODE="disabled") as process:
            wait_for(lambda: rows_of(folder) > 1, process)
            fill = [sys.executable, str(script), cluster.address]
            with subprocess.Popen(fill, stdout=subprocess.PIPE, text=True, env=environment) as filler:
                try:
                    assert filler.stdout.readline().strip() == "full"
                    wait_for(lambda: sum(row["spilled_bytes"] for row in read_run(folder).rows) > 10 << 20, process, 240)
                finally:
                    process.send_signal(signal.SIGTERM)
                    filler.terminate()
            _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        too_large = ["atari/pong@42", "--environments", "512", "--rollout-length", "128", "--mini-batch", "1024"]
        refused = subprocess.run(
            [*COMMAND, "train", *too_large, "--actors", "2", *place],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    assert refused.returncode == 2
    assert "an iteration batch of 65,536 observations takes" in refused.stderr
    assert "The largest that can is" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.long
def test_a_full_disk_is_waited_for(tmp_path):
    """A disk of 1.5 MB fills up; nothing is lost, one line says so, and the run goes on when there is room again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk)], capture_output=True, check=False
    ).returncode
    if mounted:
        pytest.skip("a small disk can only be mounted by root")
    try:
        words = ["classic/cartpole", *SMALL, "--run", "disk/mine", "--checkpoint-seconds", "0.3", "--observations", "30000"]
        with start(tmp_path, *words) as process:
            wait_for(lambda: rows_of(disk / "mine") > 3, process)
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
            time.sleep(4)
            held = rows_of(disk / "mine")
            assert process.poll() is None
            time.sleep(1)
            assert rows_of(disk / "mine") == held  # it waits
            ballast.unlink()
            wait_for(lambda: rows_of(disk / "mine") > held, process)
            subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
            _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        lines = error.splitlines()
        assert lines
        assert all("no room to write" in line and "No space left on device. Waiting" in line for line in lines)
        rows = [json.loads(line) for line in (disk / "mine" / "iterations.jsonl").read_text().splitlines()]
        assert [row["iteration"] for row in rows] == list(range(len(rows)))
        assert rows[-1]["observations"] >= 30_000
        assert not list((disk / "mine").glob("*.new"))
        shutil.copytree(disk / "mine", tmp_path / "mine")
    finally:
        subprocess.run(["umount", str(disk)], check=False)
    goes_on(tmp_path, "classic/cartpole", lost=0)
