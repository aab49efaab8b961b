"""A run acts within two seconds on Ctrl-C, SIGTERM and the end of its time, whatever it waits for, and its record says so."""

import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import ray
import torch
from commands import COMMAND, rows_of, wait_for
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rlscale.agents import stopping
from rlscale.agents import train as train_module
from rlscale.agents.cluster import LostWorkerError
from rlscale.agents.config import default_config
from rlscale.agents.stopping import StopRequests
from rlscale.agents.train import train
from rlscale.envs import find_task
from rlscale.envs.custom import make_env
from rlscale.envs.vector import task_of_spaces
from rlscale.records import Run, files
from rlscale.records.run import read_checkpoint, read_run


class Slow(VectorEnv):
    """Ten steps a second; catches what is raised within a step, as careless environments do."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  (as Gymnasium's own)

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Box(0, 1, (3,), np.float32), Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions):
        with contextlib.suppress(Exception):
            time.sleep(0.1)
        nothing = np.zeros(self.num_envs, dtype=bool)
        return np.zeros((self.num_envs, 3), np.float32), np.ones(self.num_envs), nothing, nothing, {}


@pytest.fixture
def slow(monkeypatch):
    """Settings of a run whose rollouts take half a minute."""
    task = task_of_spaces("slow", Box(0, 1, (3,), np.float32), Discrete(2), make_env=make_env, user_make=Slow)
    monkeypatch.setattr(train_module, "find_task", lambda name: task)
    config = default_config(task)
    return replace(config, rollout=replace(config.rollout, environments=8, rollout_length=256))


@pytest.fixture
def impatient(monkeypatch):
    """A stop that waits 0.3 s for the iteration under way, and not a second."""
    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 0.3)


@pytest.fixture
def after():
    """Sends this process a signal so many seconds after something is the case; when it was sent is in the list."""
    ended = threading.Event()

    def arrange(seconds, number, is_so):
        sent = []

        def send():
            while not is_so():
                if ended.wait(0.05):
                    return
            if not ended.wait(seconds):
                sent.append(time.monotonic())
                os.kill(os.getpid(), number)

        threading.Thread(target=send).start()
        return sent

    yield arrange
    ended.set()


def begun(folder):
    """Whether the last session of the run has begun."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        return False
    return manifest["state"] == "running" and bool(manifest["segments"])


class SlowToMake(Slow):
    """Asks for a stop while it is being made, which takes half a minute; `made` holds those that were."""

    made = []  # noqa: RUF012

    def __init__(self, num_envs):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)
        super().__init__(num_envs)
        self.made.append(self)


@pytest.mark.timed
def test_a_signal_while_environments_are_made(slow, impatient, tmp_path, monkeypatch, capfd):
    """Nothing has begun: a new run leaves no folder, and a resumed one its record as it was."""
    config = replace(slow, rollout=replace(slow.rollout, rollout_length=1), budget=replace(slow.budget, observations=8))
    config = replace(config, update=replace(config.update, mini_batch=8))
    train(config, tmp_path / "begun", command=[])
    before = {path.name: path.read_bytes() for path in (tmp_path / "begun").iterdir()}
    task = task_of_spaces("slow", Box(0, 1, (3,), np.float32), Discrete(2), make_env=make_env, user_make=SlowToMake)
    monkeypatch.setattr(train_module, "find_task", lambda name: task)
    for settings in (slow, replace(config, resume=str(tmp_path / "begun"))):
        with pytest.raises(KeyboardInterrupt):
            train(settings, tmp_path / "new", command=[])
        assert SlowToMake.made == []
        *resuming, last = capfd.readouterr().err.splitlines()
        assert last == "rlscale: stopping"
        assert resuming == (settings is not slow) * [
            "rlscale: the environments begin afresh: the checkpoint holds no state of them"
        ]
    assert not (tmp_path / "new").exists()
    assert {path.name: path.read_bytes() for path in (tmp_path / "begun").iterdir()} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_environments_are_made(slow, tmp_path, monkeypatch, number):
    """For example while Ray starts: SIGTERM as well leaves no folder of a new run."""

    def events(config, run):
        os.kill(os.getpid(), number)
        return []

    monkeypatch.setattr(train_module, "_events", events)
    ignored = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    was = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            train(slow, tmp_path / "new", command=[])
        assert not (tmp_path / "new").exists()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, ignored)
        signal.signal(signal.SIGINT, was)


@pytest.mark.timed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_long_rollout(slow, tmp_path, monkeypatch, capfd, number, after):
    running = partial(begun, tmp_path / "run")
    sent = after(0.2, number, running)
    outcome = train(slow, tmp_path / "run", command=[])
    assert time.monotonic() - sent[0] < 2
    assert (outcome.state, outcome.observations) == ("stopped", 0)
    assert capfd.readouterr().err == "rlscale: stopping\n"
    record = read_run(tmp_path / "run")
    assert (record.state, record.manifest["reason"]) == ("stopped", "stopped by the user within an iteration")
    # What was saved can be gone on from.
    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 0.3)
    after(0.2, number, running)
    assert train(replace(slow, resume=str(tmp_path / "run")), tmp_path, command=[]).state == "stopped"


@pytest.mark.timed
def test_a_second_signal_before_the_first_iteration_has_ended(slow, tmp_path, monkeypatch, after):
    """The run has learned nothing yet, and can be gone on from all the same, as the command says."""
    running = partial(begun, tmp_path / "run")
    sent = after(0.2, signal.SIGINT, running), after(0.6, signal.SIGINT, running)
    assert train(slow, tmp_path / "run", command=[]).state == "stopped"
    assert time.monotonic() - sent[1][0] < 1
    assert read_run(tmp_path / "run").manifest["reason"] == "interrupted within an iteration"
    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 0.3)
    after(0.2, signal.SIGINT, running)
    assert train(replace(slow, resume=str(tmp_path / "run")), tmp_path, command=[]).state == "stopped"
    assert [s["environments"] for s in read_run(tmp_path / "run").manifest["segments"]] == ["new", "seeded afresh"]


@pytest.mark.timed
def test_a_signal_while_ray_actors_sample(slow, impatient, tmp_path, ray_of_four, after):
    config = replace(slow, rollout=replace(slow.rollout, actors=2))
    sent = after(0.2, signal.SIGTERM, partial(begun, tmp_path / "run"))
    outcome = train(config, tmp_path / "run", command=[])
    assert time.monotonic() - sent[0] < 4  # two seconds, and the actors' end
    assert outcome.state == "stopped"


@pytest.mark.timed
def test_the_seconds_are_over_within_a_long_rollout(slow, impatient, tmp_path, capfd):
    begun = time.monotonic()
    outcome = train(replace(slow, budget=replace(slow.budget, seconds=1.0)), tmp_path / "run", command=[])
    assert 1.0 < time.monotonic() - begun < 4
    assert outcome.state == "finished"
    assert read_run(tmp_path / "run").manifest["reason"] == "the time was over within an iteration"
    assert capfd.readouterr().err == ""


def test_seconds_beyond_what_a_timer_takes_are_never_over():
    with StopRequests() as stop:
        stop.end_after(1e300)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 9e8
        assert not stop.due
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


@pytest.fixture
def on_a_full_disk(monkeypatch):
    """The disk takes no row; the list is empty until the run has said that it waits."""
    append, tell, said = Run.append, files.tell, []

    def appended(run, row):
        run._rows.close()
        run._rows = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
        append(run, row)

    monkeypatch.setattr(Run, "append", appended)
    monkeypatch.setattr(files, "tell", lambda line: tell(line) or said.append(line))
    return said


@pytest.mark.timed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_full_disk_is_waited_for(on_a_full_disk, tmp_path, capfd, number, after):
    """The run has said that it waits, and waits no longer."""
    config = default_config(find_task("classic/cartpole"))
    sent = after(0.0, number, lambda: on_a_full_disk)
    with pytest.raises(OSError, match="No space left") as raised:
        train(config, tmp_path / "run", command=[])
    assert time.monotonic() - sent[0] < 2
    assert raised.value.errno == errno.ENOSPC
    said = capfd.readouterr().err
    assert "Waiting 10 minutes" in said
    assert "rlscale: stopping" in said


@pytest.mark.timed
def test_the_seconds_are_over_while_a_full_disk_is_waited_for(on_a_full_disk, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(files, "ROOM_SECONDS", 10)  # not ten minutes, should it wait on
    config = default_config(find_task("classic/cartpole"))
    begun = time.monotonic()
    with pytest.raises(OSError, match="No space left"):
        train(replace(config, budget=replace(config.budget, seconds=1.0)), tmp_path / "run", command=[])
    assert 1.0 < time.monotonic() - begun < 4
    assert "Waiting" in capfd.readouterr().err


def test_ctrl_c_while_no_learner_gives_its_state_leaves_the_checkpoint_and_says_what_was_lost(slow, tmp_path, monkeypatch):
    def lost(session, *_):
        monkeypatch.setattr(type(session), "get_state", interrupted)
        raise LostWorkerError("learner 1 ran out of memory in iteration 0")

    def interrupted(session):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "_loop", lost)
    with pytest.raises(LostWorkerError, match="learner 1 ran out of memory"):
        train(slow, tmp_path / "run", command=[])
    assert read_run(tmp_path / "run").state == "failed"
    assert torch.load(io.BytesIO(read_checkpoint(tmp_path / "run")), weights_only=False)["progress"]["iteration"] == 0


@pytest.mark.parametrize("error", [ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError])
def test_a_run_that_finds_no_room_in_the_object_store_ends_in_one_line_and_is_saved(slow, tmp_path, monkeypatch, error):
    """As where it sends its parameters to the actors: Ray raises that in the run's own process, of no actor."""

    def full(session, *_):
        session.progress.iteration = 7
        raise error("12 bytes too many\nand some advice of Ray's")

    monkeypatch.setattr(train_module, "_loop", full)
    with pytest.raises(LostWorkerError) as raised:
        train(slow, tmp_path / "run", command=[])
    assert str(raised.value).startswith("the run found no room in the object store: ")
    assert "\n" not in str(raised.value)
    assert read_run(tmp_path / "run").state == "failed"
    assert torch.load(io.BytesIO(read_checkpoint(tmp_path / "run")), weights_only=False)["progress"]["iteration"] == 7


def test_a_stop_is_heard_where_nothing_can_be_said(monkeypatch):
    """Ctrl-C ends the `tee` that reads standard error as well, and often before the run."""

    def broken(*_):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    stop = StopRequests()
    with stop:
        monkeypatch.setattr(os, "write", broken)
        signal.raise_signal(signal.SIGINT)
        monkeypatch.undo()
    assert stop.asked


def test_a_full_disk_is_waited_for_where_the_log_lies_on_it(monkeypatch, tmp_path):
    left = [errno.ENOSPC, errno.ENOSPC]

    def write():
        if left:
            raise OSError(left.pop(), "No space left on device")

    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        files.when_there_is_room(write, tmp_path / "checkpoint.pt", lambda: False)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
    assert left == []


def test_a_run_that_is_stopped_within_an_iteration_says_how_many_actors_it_has_lost(slow, tmp_path, monkeypatch):
    def loop(session, *_):
        session._lost_actors = 2
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "_loop", loop)
    outcome = train(slow, tmp_path / "run", command=[])
    assert (outcome.state, outcome.lost_actors) == ("stopped", 2)


FORKED = """
import time, numpy as np, gymnasium as gym
from gymnasium.vector import AsyncVectorEnv

class Slow(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1, (3,), np.float32), gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None): return np.zeros(3, np.float32), {}
    def step(self, action): time.sleep(0.02); return np.zeros(3, np.float32), 1.0, False, False, {}

def make(num_envs): return AsyncVectorEnv([Slow] * num_envs)
"""


@pytest.mark.timed
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_environments_in_processes_of_their_own_are_ended_by_the_run_alone(tmp_path, number):
    """They are forked from the run and get the signal of the whole group too, as by Ctrl-C in a terminal."""
    (tmp_path / "forked.py").write_text(FORKED)
    size = ["--environments", "2", "--rollout-length", "64", "--epochs", "1", "--mini-batch", "None", "--threads", "1"]
    words = [*COMMAND, "train", "forked:make", *size, "--observations", "100000000", "--run", "run"]
    process = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        wait_for(lambda: rows_of(tmp_path / "run") >= 1, process)
        time.sleep(0.1)  # the next iteration has begun, and takes more than a second
        os.killpg(process.pid, number)
        said, errors = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    assert errors.startswith("rlscale: stopping\n")
    assert errors.count("stopping") == 1
    assert "Traceback" not in errors  # Gymnasium warns that it is closed within a step
    assert "--resume run" in said
    record = read_run(tmp_path / "run")
    assert (record.state, record.manifest["reason"]) == ("stopped", "stopped by the user within an iteration")
    saved = torch.load(io.BytesIO(read_checkpoint(tmp_path / "run")), weights_only=False)
    assert saved["progress"]["observations"] == record.rows[-1]["observations"] > 0
