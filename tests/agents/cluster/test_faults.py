"""Processes of a running `rlscale train` killed and stopped: little is lost, and the run goes on or says how to."""

import os
import re
import signal

import pytest
from commands import SEEN, SMALL, fragments_of, goes_on, losses_of, rows_of, start, wait_for

from rlscale.benchmarks.measurements.endurance import science_of
from rlscale.benchmarks.measurements.measuring import processes_below
from rlscale.records.run import read_run

pytestmark = [pytest.mark.timed, pytest.mark.long]


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
    assert "rlscale:" not in error.replace("rlscale: stopping\n", "")
    shown = (tmp_path / "shown").read_text()
    assert "2 rollout workers were lost; the record's rows say which" in shown
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


@pytest.mark.parametrize(
    "mode", [["--lag", "1"], ["--stream", "--advantage-scale", "running", "--learners", "2"]], ids=["lag", "learners"]
)
def test_a_run_that_lost_what_it_had_learns_what_it_would_have_learned(tmp_path, mode):
    """Actors are killed and stopped, and with several learners one of these too, after which the run is resumed."""
    words = [
        "minatar/breakout",
        "--environments",
        "16",
        "--rollout-length",
        "16",
        "--fragment-environments",
        "4",
        "--threads",
        "1",
    ]
    words += ["--epochs", "1", "--mini-batch", "None", "--actors", "2", "--straggler-seconds", "4", "--seed", "3", *mode]
    with start(tmp_path, *words, "--observations", "30000", "--run", "undisturbed") as process:
        _, error = process.communicate(timeout=200)
    assert process.returncode == 0, error
    expected = [science_of(row) for row in read_run(tmp_path / "undisturbed").rows]
    folder, ended = tmp_path / "mine", 0
    for number, process_name in (
        (signal.SIGKILL, b"RolloutActor"),
        (signal.SIGKILL, b"LearnerActor"),
        (signal.SIGSTOP, b"RolloutActor"),
    ):
        new = not folder.exists()
        if process_name == b"LearnerActor" and "--learners" not in mode:
            continue
        before = rows_of(folder)
        begin = [*words, "--observations", "100000000", "--run", "mine"] if new else ["minatar/breakout", "--resume", "mine"]
        with start(tmp_path, *begin) as process:
            wait_for(lambda before=before: rows_of(folder) > before + 5, process)
            os.kill(min(processes_below(process.pid, process_name)), number)
            if process_name == b"LearnerActor":
                process.communicate(timeout=120)
                ended += 1
                continue
            lost = len(losses_of(folder))
            wait_for(lambda lost=lost: len(losses_of(folder)) > lost, process)
            before = rows_of(folder)
            wait_for(lambda before=before: rows_of(folder) > before + 5, process)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    record = read_run(folder)
    assert [loss["afresh"] for loss in losses_of(folder)] == [[], []]
    assert {segment["environments"] for segment in record.manifest["segments"][1:]} == {"as they were"}
    rows = [science_of(row) for row in record.rows]
    assert len(rows) > 20
    common = min(len(rows), len(expected))
    assert rows[:common] == expected[:common]


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
    assert "6 in a row were lost over the same fragment" in line
    assert "--resume mine" in line
    assert "Traceback" not in error
    assert read_run(tmp_path / "mine").state == "failed"
    (tmp_path / "deadly").unlink()
    goes_on(tmp_path, "deadly_env:make", lost=0)
    generations = {generation for _, generation, _ in fragments_of(read_run(tmp_path / "mine").rows)}
    assert min(generations - {0}) > 5  # a stream that was begun and lost is not used again either
