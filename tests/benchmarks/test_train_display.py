"""What a person sees of a run: the panel of a terminal, the lines of a pipe, and the time left."""

import errno
import io
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from rlscale.agents.config import Budget
from rlscale.agents.learning import NoiseRecord
from rlscale.analysis.summary import recent_return
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.commands import train_display
from rlscale.benchmarks.commands.train_display import TrainingDisplay
from rlscale.benchmarks.console import plain_console
from rlscale.noise import BlockStatistics, pool
from rlscale.records import read_run
from rlscale.returns import EPISODES

STATISTICS = BlockStatistics([16] * 8, np.linspace(2.0, 3.0, 8), np.linspace(1.0, 1.2, 8))
LOSS = {"actor": 0, "what": "died"}


def row(number, **changes):
    usual = {
        "iteration": number,
        "observations": 1_000 * (number + 1),
        "seconds": 30.0 * number,
        "optimizer_steps": 3 * (number + 1),
        "observations_per_second": 512.3,
        "sampling_observations_per_second": 2048.0,
        "episodes": 0,
        "return_mean": None,
        "spilled_bytes": 0,
        "losses": [],
        "actors": 2,
        "entropy": 1.25,
        "approx_kl": 0.004,
    }
    return usual | changes


def shown(rows, *, terminal, noise=(), budget=None, before=()):
    """What is on the screen when the run ends."""
    console = Console(file=io.StringIO(), force_terminal=terminal, width=110, emoji=False, no_color=True)
    with TrainingDisplay("atari/pong", budget or Budget(observations=10_000), console, before) as display:
        for one in rows:
            display.update(one, list(noise))
    return console.file.getvalue()


def last_panel(text):
    """The panel as it was drawn last, one space between words."""
    return " ".join(text[text.rindex("atari/pong") :].split())


def test_a_panel_before_the_first_iteration_says_what_is_under_way():
    assert "starting making environments and the first rollout" in last_panel(shown([], terminal=True))


@pytest.mark.parametrize("terminal", [True, False])
def test_a_trial_of_actors_is_a_line_of_its_own(terminal):
    trials = [
        {"actors": 1, "observations_per_second": 1234.4, "next": 2, "settled": False},
        {"actors": 2, "observations_per_second": 1300.0, "next": 1, "settled": True},
    ]
    text = shown([row(0, actor_trial=trials[0]), row(1), row(2, actor_trial=trials[1])], terminal=terminal)
    assert text.count("1 actor: 1,234 observations/s; next 2") == 1
    assert text.count("2 actors: 1,300 observations/s; the run keeps 1") == 1


def test_the_panel_has_counts_rates_return_and_noise():
    noise = [NoiseRecord("policy", "rollout", 0, STATISTICS), NoiseRecord("joint", "mini-batch", 0, STATISTICS)]
    text = last_panel(shown([row(0), row(1, episodes=4, return_mean=-20.5)], terminal=True, noise=noise))
    assert "observations 2,000 in 6 optimizer steps" in text
    assert "512 observations/s, sampling alone 2,048/s" in text
    assert "-20.5, mean of the last 4 episodes" in text
    assert f"noise scale of late, policy {pool([STATISTICS]).noise_scale}" in text
    assert f"noise scale of late, joint {pool([STATISTICS]).noise_scale} (mini-batch noise)" in text
    assert "entropy, KL 1.25, 0.00400" in text
    assert "faults" not in text
    assert "object store" not in text


def test_a_measurement_of_one_block_is_passed_over():
    lone = replace(STATISTICS, size=np.where(np.arange(len(STATISTICS.size)) == 0, STATISTICS.size, 0.0))
    text = last_panel(shown([row(0)], terminal=True, noise=[NoiseRecord("policy", "rollout", 0, lone)]))
    assert "noise scale" not in text


def test_a_measurement_of_two_blocks_hides_none_of_more():
    """An interval needs three of every update: one of two among twenty would leave the noise scale unresolved."""
    gradients = np.random.default_rng(0).normal(size=(8, 40)) + 1.0
    whole = BlockStatistics([16] * 8, (gradients**2).sum(1), gradients @ gradients.mean(0))
    two = replace(whole, size=np.where(np.arange(8) < 2, whole.size, 0.0))
    noise = [NoiseRecord("policy", "rollout", 0, s) for s in (*[whole] * 19, two)]
    text = last_panel(shown([row(0)], terminal=True, noise=noise))
    assert f"noise scale of late, policy {pool([whole] * 19).noise_scale}" in text
    assert pool([whole]).b_simple is not None


def test_the_return_of_a_resumed_run_goes_on_from_its_record():
    """Rows from the checkpoint on are made again."""
    before = [row(i, episodes=10, return_mean=float(i)) for i in range(4)]
    text = last_panel(shown([row(3, episodes=10, return_mean=9.0)], terminal=True, before=before))
    assert "return 3, mean of the last 40 episodes" in text


def test_a_resumed_run_says_the_return_that_its_record_has(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    size = ["--environments", "8", "--rollout-length", "32", "--mini-batch", "256", "--threads", "1"]
    for words in (["--observations", "1000", "--run", "mine"], ["--observations", "1600", "--resume", "mine"]):
        assert main(["train", "classic/cartpole", *size, *words]) == 0
    run = read_run(tmp_path / "mine")
    episodes = sum(one["episodes"] for one in run.rows)
    assert 0 < episodes < EPISODES
    assert f"return {recent_return(run):.4g} ({episodes})" in capsys.readouterr().out.splitlines()[-3]


def test_without_a_finished_episode_the_panel_says_so_and_counts_none():
    text = last_panel(shown([row(0)], terminal=True))
    assert "no episode yet" in text
    assert "mean of the last" not in text


def test_lost_workers_and_a_full_object_store_are_said_in_both_ways():
    rows = [row(0, losses=[LOSS]), row(1, losses=[LOSS, LOSS], spilled_bytes=3 * 2**20)]
    panel = last_panel(shown(rows, terminal=True))
    assert "3 rollout workers were lost; 2 work now" in panel
    assert "full: 3 MiB of this iteration went to disk" in panel
    lines = shown(rows, terminal=False).splitlines()
    assert "1 rollout worker was lost" in lines[0]
    assert "object store full, 3 MiB went to disk" in lines[-1]


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        (Budget(observations=10_000), "4:00 left"),  # 8,000 of 1,000 every 30 s
        (Budget(optimizer_steps=9), "0:30 left"),  # 3 of 3 every 30 s
        (Budget(observations=10_000, seconds=70.0), "0:40 left"),
        (Budget(observations=None), ""),
    ],
)
def test_the_time_left_is_that_of_the_budget_which_ends_first(monkeypatch, budget, left):
    clock = iter([0.0, *[0.0] * 4, *[30.0] * 50])
    monkeypatch.setattr(train_display.time, "monotonic", lambda: next(clock))
    line = shown([row(0), row(1)], terminal=False, budget=budget).splitlines()[-1]
    assert line.endswith(left)
    assert ("left" in line) == bool(left)


def test_the_time_left_counts_from_the_run_s_own_start(monkeypatch):
    """Ray and the environments took a minute before it; a session before took 100 of the 120 seconds of the record."""
    clock = iter([0.0, *[80.0] * 100])
    monkeypatch.setattr(train_display.time, "monotonic", lambda: next(clock))
    before = [row(0, seconds=100.0), row(1, seconds=150.0)]
    said = shown([row(1, seconds=120.0)], terminal=False, budget=Budget(observations=None, seconds=70.0), before=before)
    assert said.splitlines()[-1].endswith("0:50 left")


def test_a_log_on_a_full_disk_ends_nothing(monkeypatch):
    """What is said is lost for the time being; another error of the log is none to be silent about."""

    class Log(io.StringIO):
        error = errno.ENOSPC

        def write(self, text):
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            return super().write(text)

    log = Log()
    monkeypatch.setattr(sys, "stdout", log)
    console = plain_console()
    console.print("nobody reads this")
    log.error = None
    console.print("there is room again")
    assert log.getvalue().endswith("there is room again\n")
    log.error = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        console.print("or this")
