"""Real faults of a running `rlscale train`: processes killed and stopped, memory, store and disk full. Little is lost, and on."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from making import free_port

from rlscale.benchmarks.measurements.chaos import processes_below
from rlscale.records.run import read_run

COMMAND = [sys.executable, "-m", "rlscale"]
SEEN = os.pathsep.join(
    [str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH", "")]
)  # the tests' own environments
SMALL = ["--environments", "8", "--rollout-length", "16", "--epochs", "2", "--mini-batch", "64", "--threads", "1"]


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen:
    """What it shows goes to a file `shown`."""
    with (folder / "shown").open("w") as shown:
        return subprocess.Popen(
            [*COMMAND, "train", *words],
            cwd=folder,
            stdout=shown,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def rows_of(run: Path) -> int:
    try:
        return len((run / "iterations.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def goes_on(folder: Path, task: str, lost: int) -> None:
    """Resumed, the run loses at most the iteration that was under way."""
    record = read_run(folder / "mine")
    before = record.rows[-1]["iteration"]
    done = subprocess.run(
        [*COMMAND, "train", task, "--resume", "mine", "--observations", "100000000", "--seconds", "1"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": SEEN},
    )
    assert done.returncode == 0, done.stderr
    after = read_run(folder / "mine")
    first = after.manifest["segments"][-1]["first_iteration"]
    assert before + 1 - first <= lost
    assert after.rows[-1]["iteration"] > before
    steps = [row["optimizer_steps"] for row in after.rows]
    assert steps == sorted(set(steps))


def test_a_killed_learner_loses_the_present_iteration_only(tmp_path):
    """kill -9 of one of two learners, long after the last regular checkpoint."""
    with start(tmp_path, "classic/cartpole", *SMALL, "--learners", "2", "--actors", "2", "--run", "mine") as process:
        wait_for(lambda: rows_of(tmp_path / "mine") > 5, process)
        victims = processes_below(process.pid, b"LearnerActor")
        assert len(victims) == 2
        os.kill(victims[1], signal.SIGKILL)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    lines = [line for line in error.splitlines() if line.startswith("rlscale:")]
    assert len(lines) == 1
    assert re.search(r"learner [01] died", lines[0])
    assert "--resume mine" in lines[0]
    assert "Traceback" not in error
    assert read_run(tmp_path / "mine").state == "failed"
    goes_on(tmp_path, "classic/cartpole", lost=0)


def fragments_of(rows) -> list[tuple[int, int, int]]:
    """(group, generation, index) of every fragment that entered an update."""
    return [
        (group, generation, index)
        for row in rows
        for first, last, generation, start, end in row["fragment_ids"]
        for group in range(first, last + 1)
        for index in range(start, end + 1)
    ]


MODES = {
    "held, as many actors as there is room for": ["--batch-size", "512", "--fragment-environments", "2", "--actors", "auto"],
    "lag": ["--lag", "1", "--fragment-environments", "2", "--actors", "2"],
    "streamed, two learners": ["--stream", "--advantage-scale", "running", "--learners", "2", "--actors", "2"],
}


@pytest.mark.parametrize("mode", MODES)
def test_killed_and_stopped_actors_are_replaced_and_the_batch_keeps_its_size(tmp_path, mode):
    """kill -9 of one actor, later SIGSTOP of another: the run goes on by itself, and its record tells both."""
    words = ["--environments", "8", "--rollout-length", "32", "--threads", "1", "--straggler-seconds", "3", "--run", "mine"]
    if "lag" not in mode:
        words += ["--epochs", "1", "--mini-batch", "None"]
    words += MODES[mode]
    with start(tmp_path, "bandits:Bandit", *words, "--observations", "100000000", PYTHONPATH=SEEN) as process:
        folder = tmp_path / "mine"
        for signal_number in (signal.SIGKILL, signal.SIGSTOP):
            before = rows_of(folder)
            wait_for(lambda before=before: rows_of(folder) > before + 5, process)
            os.kill(min(processes_below(process.pid, b"RolloutActor")), signal_number)
            wait_for(lambda k=signal_number: len(losses_of(folder)) > (k == signal.SIGSTOP), process)
        before = rows_of(folder)
        wait_for(lambda: rows_of(folder) > before + 5, process)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "rlscale:" not in error
    shown = (tmp_path / "shown").read_text()
    assert "2 rollout workers were lost and replaced; the record's rows say which" in shown
    assert "raylet" not in shown
    record = read_run(folder)
    assert record.state == "stopped"
    assert len({row["batch_observations"] for row in record.rows}) == 1  # every second step of a bandit is masked
    assert {row["fragments"] for row in record.rows} == {len(fragments_of(record.rows[:1]))}
    entered = fragments_of(record.rows)
    assert len(entered) == len(set(entered)) == sum(row["fragments"] for row in record.rows)
    losses = losses_of(folder)
    assert [loss["what"] for loss in losses] == ["died", "hung"]
    assert all(loss["fragments"] and loss["groups"] and loss["recovery_seconds"] > 0 for loss in losses)
    assert losses[0]["actor"] != losses[1]["actor"]
    lost = {group for loss in losses for group in loss["groups"]}
    assert {group for group, generation, _ in entered if generation > 0} == lost
    goes_on(tmp_path, "bandits:Bandit", lost=0)
    assert len(set(fragments_of(read_run(folder).rows))) == sum(row["fragments"] for row in read_run(folder).rows)


def losses_of(run: Path) -> list[dict]:
    """All that the record tells so far."""
    return [loss for row in read_run(run).rows for loss in row["losses"]]


DEADLY = '''
import os
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv


class Deadly(CartPoleVectorEnv):
    """Kills its process while there is a file of that name."""

    def step(self, action):
        if os.path.exists("deadly"):
            os._exit(1)
        return super().step(action)


def make(n):
    return Deadly(n)
'''


def test_an_environment_that_kills_every_actor_at_once_ends_the_run(tmp_path):
    (tmp_path / "deadly_env.py").write_text(DEADLY)
    with start(tmp_path, "deadly_env:make", *SMALL, "--actors", "1", "--run", "mine") as process:
        wait_for(lambda: rows_of(tmp_path / "mine") > 5, process)
        (tmp_path / "deadly").touch()
        _, error = process.communicate(timeout=120)
    assert process.returncode == 1, error
    (line,) = [line for line in error.splitlines() if line.startswith("rlscale:")]
    assert "a rollout worker died" in line
    assert "3 in a row were lost over the same fragment" in line
    assert "--resume mine" in line
    assert "Traceback" not in error
    assert read_run(tmp_path / "mine").state == "failed"
    (tmp_path / "deadly").unlink()
    goes_on(tmp_path, "deadly_env:make", lost=0)
    generations = {generation for _, generation, _ in fragments_of(read_run(tmp_path / "mine").rows)}
    assert min(generations - {0}) > 2  # a stream that was begun and lost is not used again either


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
    port = free_port()
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}", "--num-cpus=2"]
    command += [f"--object-store-memory={100 << 20}", "--include-dashboard=false", "--disable-usage-stats"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    sockets = tempfile.mkdtemp()  # their paths must be short
    head = subprocess.Popen([*command, f"--temp-dir={sockets}"], env=environment, **quiet)
    filler = None
    address = f"127.0.0.1:{port}"
    words = ["atari/pong@42", "--environments", "32", "--rollout-length", "64", "--mini-batch", "1024", "--epochs", "1"]
    words += ["--network", "small_cnn", "--actors", "2", "--ray-address", address, "--run", "mine"]
    try:
        wait_for(lambda: listens(port), head)
        with start(tmp_path, *words, "--observations", "40000", RAY_AUTH_MODE="disabled") as process:
            wait_for(lambda: rows_of(tmp_path / "mine") > 1, process)
            filler = subprocess.Popen([sys.executable, str(script), address], stdout=subprocess.PIPE, text=True, env=environment)
            assert filler.stdout.readline().strip() == "full"
            _, error = process.communicate(timeout=240)
        assert process.returncode == 0, error
        rows = read_run(tmp_path / "mine").rows
        assert sum(row["spilled_bytes"] for row in rows) > 10 << 20
        too_large = ["atari/pong@42", "--environments", "512", "--rollout-length", "128", "--mini-batch", "1024"]
        too_large += ["--actors", "2", "--ray-address", address]
        refused = subprocess.run(
            [*COMMAND, "train", *too_large], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
        )
        assert refused.returncode == 2
        assert "an iteration batch of 65,536 observations takes" in refused.stderr
        assert "The largest that can is" in refused.stderr
        assert "Traceback" not in refused.stderr
    finally:
        for process in (filler, head):
            if process is not None:
                process.terminate()
                process.wait(timeout=60)
                if process.stdout is not None:
                    process.stdout.close()
        shutil.rmtree(sockets, ignore_errors=True)


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
        words = ["classic/cartpole", *SMALL, "--run", "disk/mine", "--checkpoint-seconds", "0.3", "--observations", "60000"]
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
        assert rows[-1]["observations"] >= 60_000
        assert not list((disk / "mine").glob("*.new"))
        shutil.copytree(disk / "mine", tmp_path / "mine")
    finally:
        subprocess.run(["umount", str(disk)], check=False)
    goes_on(tmp_path, "classic/cartpole", lost=0)
