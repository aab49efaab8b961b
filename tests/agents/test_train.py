"""Whole runs: they learn, they stop and resume, they survive being killed, and their records say what happened."""

import errno
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlscale.agents.cluster import LostWorkerError
from rlscale.agents.config import Budget, NoiseSettings, Recording, TrainConfig, config_from_dict, default_config
from rlscale.agents.learning import Learner, NoiseRecord, NoiseWindow, scaled_rate, step_kind
from rlscale.agents.learning.schedule import adaptive_batch
from rlscale.agents.rollout.worker import _Group
from rlscale.agents.session import Session
from rlscale.agents.setup import RunSetup
from rlscale.agents.train import train
from rlscale.analysis.summary import recent_return, returns
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.measurements.endurance import science_of
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.noise import unpack_statistics
from rlscale.records.run import Run, read_checkpoint, read_run


def small(task_id="classic/cartpole", *, observations=3000, recording=None, **update) -> TrainConfig:
    task = find_task(task_id)
    config = default_config(task)
    rollout = replace(config.rollout, environments=8, rollout_length=16)
    network = "small_cnn" if task.network == "nature_cnn" else "mlp"
    return replace(
        config,
        budget=Budget(observations=observations),
        rollout=rollout,
        update=replace(
            config.update, **{"epochs": 2, "mini_batch": 64, "network": network, "precision": "float32", "threads": 1, **update}
        ),
        recording=recording or Recording(),
    )


def science(rows):
    """Rows without what the clock decides."""
    return [{k: v for k, v in row.items() if not k.endswith("second") and not k.endswith("seconds")} for row in rows]


def test_the_same_seed_gives_the_same_run(tmp_path):
    for name in ("a", "b"):
        train(small(), tmp_path / name, command=[])
    train(replace(small(observations=500), seed=1), str(tmp_path / "c"), command=[])
    a, b, c = (science(read_run(tmp_path / name).rows) for name in "abc")
    assert a == b
    assert all(one != other for one, other in zip(a, c, strict=False))


@pytest.mark.parametrize("task_id", ["classic/cartpole", "classic/pendulum"])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_a_stopped_run_resumes_exactly(tmp_path, task_id, algorithm):
    config = small(task_id)
    if algorithm == "a2c":
        config = replace(small(task_id), update=replace(default_config(find_task(task_id), "a2c").update, threads=1))
    config = replace(config, update=replace(config.update, anneal=True, advantage_scale="running"))
    whole = train(config, tmp_path / "whole", command=[])
    iterations = 0

    def stop_in_the_middle(row, noise):
        nonlocal iterations
        iterations += 1
        if iterations in (5, 9):
            os.kill(os.getpid(), signal.SIGINT)

    parts = train(config, tmp_path / "parts", command=[], on_iteration=stop_in_the_middle)
    assert parts.state == "stopped"
    assert read_run(tmp_path / "parts").state == "stopped"
    resumed = replace(config, resume=str(tmp_path / "parts"))
    assert train(resumed, tmp_path, command=[], on_iteration=stop_in_the_middle).state == "stopped"
    assert train(resumed, tmp_path, command=[]).state == "finished"
    one, other = read_run(tmp_path / "whole"), read_run(tmp_path / "parts")
    assert science(one.rows) == science(other.rows)
    assert whole.observations == other.rows[-1]["observations"]
    assert len(other.manifest["segments"]) == 3
    assert [s["environments"] for s in other.manifest["segments"]] == ["new", "as they were", "as they were"]


LAGGED = {"lag": 1}
STREAMED = {"batch_size": 8 * 16 * 4, "fragment_environments": 2}
ADAPTIVE = {"batch_size": "adaptive", "fragment_environments": 4}
ONE_STEP = {"epochs": 1, "mini_batch": None, "advantage_scale": "running"}


@pytest.mark.parametrize(
    ("rollout", "update"),
    [
        pytest.param(LAGGED, {}, id="lag"),
        pytest.param({**LAGGED, **STREAMED}, {**ONE_STEP, "stream": True}, id="lag, rounds, streamed"),
        pytest.param({}, {"proximal_average": 3.0, "tuned_batch": 256}, id="averaged policy, another batch size"),
        pytest.param(ADAPTIVE, {**ONE_STEP, "lr_rule": "noise", "warm_up": 5}, id="adaptive"),
    ],
)
def test_overlap_streams_and_adaptive_batches_are_reproducible_and_resume_exactly(tmp_path, rollout, update):
    """The run in parts begins anew with the same seed, so its first part is the whole one's only if that is reproducible."""
    config = small(**update)
    config = replace(config, rollout=replace(config.rollout, **rollout))
    train(config, tmp_path / "whole", command=[])
    whole = science(read_run(tmp_path / "whole").rows)
    lag = config.rollout.lag
    assert [row["fragment_lags"] for row in whole] == [[[min(lag, k), row["fragments"]]] for k, row in enumerate(whole)]
    assert [row["policy_lag"] for row in whole] == [min(lag, k) for k in range(len(whole))]

    def stop_in_the_middle(row, noise):
        if row["iteration"] == len(whole) // 2:
            os.kill(os.getpid(), signal.SIGINT)

    assert train(config, tmp_path / "parts", command=[], on_iteration=stop_in_the_middle).state == "stopped"
    assert train(replace(config, resume=str(tmp_path / "parts")), tmp_path, command=[]).state == "finished"
    assert science(read_run(tmp_path / "parts").rows) == whole


def test_a_lagged_batch_is_weighed_by_the_policy_that_acted(tmp_path):
    """At a huge step size the policy that acted and the one that learns differ at once: the first step's ratios are not 1."""
    config = small(**ONE_STEP, learning_rate=0.05)
    for lag in (0, 1):
        train(replace(config, rollout=replace(config.rollout, lag=lag)), tmp_path / str(lag), command=[])
    plain, lagged = (read_run(tmp_path / str(lag)).column("approx_kl") for lag in (0, 1))
    assert np.abs(plain).max() < 1e-6
    assert np.median(lagged[1:]) > 1e-3
    assert lagged[0] < 1e-6


@pytest.mark.parametrize("followed", ["policy_last_layer", "joint", "joint_adam"])
def test_a_run_follows_the_noise_that_was_asked_for(tmp_path, followed):
    """The rate of every step, ε / (1 + 𝓑/B), again from the rows before it; also after the run was resumed."""
    config = small(observations=2000, **ONE_STEP, lr_rule="noise", learning_rate=0.05)
    config = replace(config, noise=replace(config.noise, followed_noise=followed))
    train(config, tmp_path / "run", command=[])
    train(replace(config, resume=str(tmp_path / "run"), budget=Budget(observations=4000)), tmp_path, command=[])
    rates = followed_rates(config, read_run(tmp_path / "run").rows)
    assert len(rates) > 30
    assert len(set(rates)) > 20


def followed_rates(config, rows):
    """The rates of the rows' steps, which must be those that the noise of the rows before gives."""
    window, rates = NoiseWindow(config.noise.followed_noise, step_kind(config)), []
    for row in rows:
        rates.append(scaled_rate(config.update, row["batch_observations"], window.scale()))
        assert row["learning_rate"] == pytest.approx(rates[-1], rel=1e-6)
        entries = [(e, unpack_statistics(e), unpack_statistics(e, "adam") if "adam_dot" in e else None) for e in row["noise"]]
        window.add([NoiseRecord(e["head"], e["kind"], e["optimizer_step"], plain, adam) for e, plain, adam in entries])
    return rates


def test_a_resumed_adaptive_run_follows_no_noise_between_transitions(tmp_path):
    adaptive = small(observations=1000, **ONE_STEP, lr_rule="constant")
    adaptive = replace(adaptive, rollout=replace(adaptive.rollout, batch_size="adaptive"))
    train(adaptive, tmp_path / "run", command=[])
    shuffled = replace(adaptive, update=replace(adaptive.update, shuffle="transitions"), budget=Budget(observations=2000))
    with pytest.raises(UsageError, match="--batch-size: an adaptive batch follows the noise between environments"):
        train(replace(shuffled, resume=str(tmp_path / "run")), tmp_path, command=[])
    assert read_run(tmp_path / "run").state == "finished"


def test_a_resumed_run_that_follows_other_noise_begins_to_measure_it(tmp_path):
    """What was measured of the other loss is no noise of this one, also where a first attempt has failed before it saved."""
    config = small(observations=2000, **ONE_STEP, lr_rule="noise", learning_rate=0.05)
    train(config, tmp_path / "run", command=[])
    config = replace(config, noise=replace(config.noise, followed_noise="joint"), resume=str(tmp_path / "run"))
    config = replace(config, budget=Budget(observations=4000))

    def fail(row, noise):
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        train(config, tmp_path, command=[], on_iteration=fail)
    train(config, tmp_path, command=[])
    record = read_run(tmp_path / "run")
    (begun,) = {segment["first_iteration"] for segment in record.manifest["segments"][1:]}
    assert len(set(followed_rates(config, record.rows[begun:]))) > 10


def test_a_run_resumed_with_other_blocks_begins_to_measure_their_noise(tmp_path):
    """The noise of shuffled transitions is another one than that of whole environments."""
    config = small(observations=2000, **ONE_STEP, lr_rule="noise", learning_rate=0.05)
    train(config, tmp_path / "run", command=[])
    shuffled = replace(config, update=replace(config.update, shuffle="transitions"), budget=Budget(observations=3000))
    train(replace(shuffled, resume=str(tmp_path / "run")), tmp_path, command=[])
    record = read_run(tmp_path / "run")
    begun = record.manifest["segments"][1]["first_iteration"]
    first, second, *_ = followed_rates(shuffled, record.rows[begun:])
    assert first == 0.025 != second  # half the rate where nothing is known


def test_an_option_that_does_nothing_is_refused_of_a_new_run_alone(tmp_path):
    """An earlier version took it, and its runs go on."""
    config = small(observations=500, **ONE_STEP, optimizer="rmsprop")
    train(config, tmp_path / "run", command=[])
    idle = replace(config, update=replace(config.update, beta2=0.5), budget=Budget(observations=1000))
    with pytest.raises(UsageError, match="--beta2"):
        train(idle, tmp_path / "new", command=[])
    assert not (tmp_path / "new").exists()
    train(replace(idle, resume=str(tmp_path / "run")), tmp_path, command=[])
    assert read_run(tmp_path / "run").rows[-1]["observations"] >= 1000


def test_an_adaptive_run_moves_its_batch(tmp_path):
    """B = sqrt(r 𝓑) with a huge r grows to what there is, with a tiny one it stays at one fragment."""
    for name, exchange, expected in (("large", 1e9, 16), ("small", 1e-6, 1)):
        config = small(observations=6000 if expected > 1 else 1500, **ONE_STEP)
        rollout = replace(config.rollout, environments=64, exchange_rate=exchange, memory="80kB", **ADAPTIVE)
        train(replace(config, rollout=rollout), tmp_path / name, command=[])
        fragments = read_run(tmp_path / name).column("fragments")
        assert fragments[0] == 1
        assert fragments[-1] == expected
        ratio = fragments[1:] / fragments[:-1]
        assert ratio.max() <= 2


def test_an_adaptive_batch_counts_observations_as_the_noise_scale_does(tmp_path, monkeypatch):
    """Every second step of a bandit only resets, and teaches nothing."""
    asked = []

    def watch(*arguments, **words):
        asked.append(words["fragment"])
        return adaptive_batch(*arguments, **words)

    monkeypatch.setattr("rlscale.agents.session.adaptive_batch", watch)
    config = replace(small(observations=2000, **ONE_STEP), task="bandits:Bandit")
    rollout = replace(config.rollout, environments=64, exchange_rate=1e9, memory="80kB", **ADAPTIVE)
    train(replace(config, rollout=rollout), tmp_path / "run", command=[])
    nominal = 4 * config.rollout.rollout_length
    assert asked[0] == nominal, "before the first batch nobody knows"
    assert set(asked[1:]) == {nominal / 2}


@pytest.mark.parametrize(("first", "cut"), [(4, 16), (16, 4)])
def test_an_adaptive_batch_grows_no_faster_where_it_is_cut_otherwise(tmp_path, first, cut):
    """A resumed run may have other fragments; its first batch is at most twice and at least half the one before."""
    config = small(observations=2000, **ONE_STEP)
    rollout = {"environments": 64, "exchange_rate": 1e9, "memory": "400kB", **ADAPTIVE, "fragment_environments": first}
    config = replace(config, rollout=replace(config.rollout, **rollout))
    train(config, tmp_path / "run", command=[])
    again = replace(config, rollout=replace(config.rollout, fragment_environments=cut), budget=Budget(observations=12_000))
    train(replace(again, resume=str(tmp_path / "run")), tmp_path, command=[])
    batches = read_run(tmp_path / "run").column("batch_observations")
    assert batches[-1] > 4 * batches[0]
    ratio = batches[1:] / batches[:-1]
    assert ratio.min() > 0.45, "resets are no observations"
    assert ratio.max() < 2.2


@pytest.mark.long
def test_killed_at_any_moment_a_run_loses_no_more_than_since_its_checkpoint(tmp_path):
    """kill -9 of the real command, three times; the finished record equals that of an undisturbed run."""
    config = small(observations=20_000, recording=Recording(checkpoint_seconds=0.2))
    train(config, tmp_path / "whole", command=[])
    folder = tmp_path / "killed"
    flags = ["--observations", "20000", "--environments", "8", "--rollout-length", "16", "--epochs", "2", "--mini-batch", "64"]
    flags += ["--precision", "float32", "--threads", "1", "--checkpoint-seconds", "0.2"]
    words = ["train", "classic/cartpole", *flags, "--run", str(folder)]
    command = [sys.executable, "-m", "rlscale"]
    for attempt in range(3):
        process = subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL)
        goal = 15 * (attempt + 1)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if (
                (folder / "checkpoint.pt").exists()
                and read_run(folder).rows[-1:]
                and read_run(folder).rows[-1]["iteration"] >= goal
            ):
                break
            time.sleep(0.02)
        assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert read_run(folder).state == "interrupted"
        words = ["train", "classic/cartpole", "--resume", str(folder)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one, other = read_run(tmp_path / "whole"), read_run(folder)
    assert science(one.rows) == science(other.rows)
    assert other.state == "finished"


def test_atari_resumes_with_fresh_environments_and_says_so(tmp_path):
    config = small("atari/breakout@42", observations=300, advantage_scale="batch")
    train(config, tmp_path / "run", command=[])
    longer = replace(config, budget=Budget(observations=600), resume=str(tmp_path / "run"))
    outcome = train(longer, tmp_path, command=[])
    record = read_run(tmp_path / "run")
    assert outcome.observations == record.rows[-1]["observations"] >= 600
    assert [r["iteration"] for r in record.rows] == list(range(len(record.rows)))
    assert record.manifest["segments"][0]["environments"] == "new"
    assert "afresh" in record.manifest["segments"][1]["environments"]


@pytest.mark.parametrize(
    ("change", "environments"),
    [
        ({"fragment_environments": 4}, "seeded afresh"),
        ({"clones": 2}, "seeded afresh"),
        ({"lag": 1}, "as they were"),
        ({"batch_size": 256}, "as they were"),
    ],
)
def test_a_resumed_run_keeps_environments_unless_they_are_grouped_otherwise(tmp_path, change, environments):
    config = small(observations=600, epochs=1, mini_batch=None)
    train(config, tmp_path / "run", command=[])
    changed = replace(
        config, rollout=replace(config.rollout, **change), budget=Budget(observations=1500), resume=str(tmp_path / "run")
    )
    outcome = train(changed, tmp_path, command=[])
    record = read_run(tmp_path / "run")
    assert outcome.observations == record.rows[-1]["observations"] >= 1500
    assert [segment["environments"] for segment in record.manifest["segments"]] == ["new", environments]


@pytest.mark.long
def test_environments_stay_when_other_processes_step_them(tmp_path, ray_of_four):
    """By two actors, then in this process, then by one actor: the run is the one that was never resumed."""
    config = small(observations=1800)
    train(replace(config, rollout=replace(config.rollout, fragment_environments=4)), tmp_path / "whole", command=[])
    for actors, observations in ((2, 600), (0, 1200), (1, 1800)):
        rollout = replace(config.rollout, actors=actors)
        resume = str(tmp_path / "run") if observations > 600 else None
        part = replace(config, rollout=rollout, budget=Budget(observations=observations), resume=resume)
        train(part, tmp_path / "run", command=[])
    record = read_run(tmp_path / "run")
    assert [segment["environments"] for segment in record.manifest["segments"]] == ["new", "as they were", "as they were"]
    assert list(map(science_of, record.rows)) == list(map(science_of, read_run(tmp_path / "whole").rows))


@pytest.mark.parametrize("batch_size", [256, 128])
def test_a_lagged_run_of_another_batch_size_learns_from_no_batch_of_the_old_one(tmp_path, batch_size):
    """With --lag 1 the checkpoint holds a batch that was requested already, of the size of then."""
    config = small(observations=800, epochs=1, mini_batch=None)
    config = replace(config, rollout=replace(config.rollout, lag=1, batch_size=384 - batch_size))
    train(config, tmp_path / "run", command=[])
    before = len(read_run(tmp_path / "run").rows)
    resumed = replace(config, budget=Budget(observations=1500), resume=str(tmp_path / "run"))
    train(replace(resumed, rollout=replace(config.rollout, batch_size=batch_size)), tmp_path, command=[])
    record = read_run(tmp_path / "run")
    assert all(0.8 * batch_size < row["batch_observations"] <= batch_size for row in record.rows[before:])
    assert [segment["environments"] for segment in record.manifest["segments"]] == ["new", "seeded afresh"]


@pytest.mark.parametrize(
    ("rollout", "update", "threads"),
    [
        ({}, {}, 8),
        ({"actors": 4}, {}, 8),
        ({"actors": 4, "lag": 1}, {}, 4),
        ({"actors": 2, "actor_cpus": 2, "lag": 1}, {"learners": 2}, 2),
        ({"actors": 4, "ray_address": "far:1"}, {"stream": True}, 8),
        ({"actors": 16, "lag": 1}, {}, 1),
        ({"lag": 1}, {}, 8),
    ],
)
def test_the_learner_leaves_cores_to_actors_that_work_meanwhile(rollout, update, threads):
    from rlscale.agents.compute import learner_threads

    config = default_config(find_task("classic/cartpole"))
    config = replace(config, rollout=replace(config.rollout, **rollout), update=replace(config.update, **update))
    assert learner_threads(config, cores=8) == threads


def test_observations_and_steps_add_up(tmp_path):
    """With one epoch and one step per iteration E = S·B, masked steps apart; with more, S counts every optimizer step."""
    train(small(), tmp_path / "many", command=[])
    one = replace(small(), update=replace(small().update, epochs=1, mini_batch=None))
    train(one, tmp_path / "one", command=[])
    for name, steps in (("many", 4), ("one", 1)):
        rows = read_run(tmp_path / name).rows
        assert [r["optimizer_steps"] for r in rows] == [steps * (i + 1) for i in range(len(rows))]
        assert [r["observations"] for r in rows] == np.cumsum([r["batch_observations"] for r in rows]).tolist()
        assert all(100 < r["batch_observations"] <= 128 for r in rows)
        assert all(r["policy_lag"] == 0 for r in rows)
        assert all(r["episodes"] > 0 or r["return_mean"] is None for r in rows)
    for row in rows:  # every observation of the batch is in the joint statistic
        assert sum(next(n for n in row["noise"] if n["head"] == "joint")["size"]) == row["batch_observations"]


def test_the_manifest_says_how_it_was_made(tmp_path):
    config = small(observations=200)
    train(config, tmp_path / "run", command=["rlscale", "train", "x"])
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["command"] == ["rlscale", "train", "x"]
    assert config_from_dict(manifest["config"]) == config
    assert config_from_dict(json.loads(json.dumps(asdict(config)))) == config
    assert manifest["seed"] == 0
    assert manifest["machine"]["cores"] >= 1
    assert manifest["versions"]["torch"]
    assert manifest["state"] == "finished"


def test_a_failing_run_says_why(tmp_path):
    def fail(row, noise):
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        train(small(), tmp_path / "run", command=[], on_iteration=fail)
    record = read_run(tmp_path / "run")
    assert (record.state, record.manifest["reason"]) == ("failed", "RuntimeError: disk on fire")
    assert len(record.rows) == 1


@pytest.mark.parametrize("measures_noise", [True, False])
def test_a_run_that_diverges_ends_in_one_line_and_keeps_its_last_good_checkpoint(tmp_path, capsys, measures_noise):
    words = "classic/pendulum --environments 8 --rollout-length 64 --threads 1 --checkpoint-seconds 1e-9 --learning-rate 30"
    if not measures_noise:
        words += "".join(f" --{head}-noise-period 0" for head in ("joint", "policy", "value", "entropy", "iteration"))
    assert main(["train", *words.split(), "--observations", "9000", "--run", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.splitlines()
    record = read_run(tmp_path / "run")
    diverged = f"--learning-rate: the run diverged in iteration {len(record.rows)}: "
    assert [diverged in line for line in said] == [True]
    assert record.state == "failed"
    assert diverged in record.manifest["reason"]
    assert all(np.isfinite(row["gradient_norm"]) for row in record.rows)
    checkpoint = torch.load(io.BytesIO(read_checkpoint(tmp_path / "run")), weights_only=False)
    assert checkpoint["progress"]["iteration"] == len(record.rows) > 0
    assert checkpoint["learner"]["parameters"].isfinite().all()


def test_an_accelerator_without_memory_ends_a_run_in_one_line_that_names_the_mend(tmp_path, capsys, monkeypatch):
    """What torch raises on one; the second update does not fit."""
    learn = Learner.finish

    def too_large(self, learning_rate):
        if self.optimizer_steps:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation")
        return learn(self, learning_rate)

    monkeypatch.setattr(Learner, "finish", too_large)
    words = "classic/cartpole --environments 8 --rollout-length 64 --threads 1 --checkpoint-seconds 1e-9 --observations 9000"
    assert main(["train", *words.split(), "--run", str(tmp_path / "run")]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if "--chunk" in line]
    problem = "the accelerator ran out of memory in iteration 1 (CUDA out of memory. Tried to allocate 2.00 GiB.)"
    mend = "Use a smaller one, fewer --blocks, or --stream; --resume goes on from the last checkpoint"
    assert [line.endswith(f"--chunk: {problem}. {mend}") for line in said] == [True]
    assert read_run(tmp_path / "run").state == "failed"
    checkpoint = torch.load(io.BytesIO(read_checkpoint(tmp_path / "run")), weights_only=False)
    assert checkpoint["progress"]["iteration"] == 1


def test_snapshots_lie_on_a_geometric_grid(tmp_path):
    config = small(observations=4000, recording=Recording(snapshot_growth=1.5))
    config = replace(config, update=replace(config.update, epochs=1, mini_batch=None))
    train(config, tmp_path / "run", command=[])
    steps = sorted(int(path.stem) for path in (tmp_path / "run" / "snapshots").iterdir())
    assert steps[:5] == [1, 2, 3, 4, 6]
    assert all(b <= max(a + 1, int(1.5 * a)) for a, b in itertools.pairwise(steps))
    assert np.load(tmp_path / "run" / "snapshots" / "0000000002.npy").dtype == np.float32


def test_snapshots_of_a_resumed_run_stay_on_their_grid(tmp_path):
    config = small(observations=4000, recording=Recording(snapshot_growth=1.5))
    config = replace(config, update=replace(config.update, epochs=1, mini_batch=None))
    train(config, tmp_path / "whole", command=[])
    train(replace(config, budget=Budget(observations=1000)), tmp_path / "parts", command=[])
    train(replace(config, resume=str(tmp_path / "parts")), tmp_path, command=[])
    one, other = (sorted(path.name for path in (tmp_path / name / "snapshots").iterdir()) for name in ("whole", "parts"))
    assert one == other


def test_one_step_fragments_of_nothing_but_resets_are_passed_over(tmp_path):
    """Pendulums are all cut short at step 200: the next fragment of one step observes nothing."""
    config = small("classic/pendulum", observations=8 * 210)
    config = replace(
        config, rollout=replace(config.rollout, rollout_length=1), update=replace(config.update, epochs=1, mini_batch=None)
    )
    train(config, tmp_path / "run", command=[])
    rows = read_run(tmp_path / "run").rows
    assert [row["batch_observations"] for row in rows] == [8] * 210
    assert [row["episodes"] for row in rows if row["episodes"]] == [8]
    assert all(np.isfinite(row["joint_loss"]) for row in rows)


def test_one_step_fragments_record_every_episode(tmp_path, monkeypatch):
    """Each episode of toy/digits has one step, so its return is told by a fragment of nothing but resets.

    A run that stops right after such a fragment has the returns in its checkpoint.
    """
    config = replace(small("toy/digits", observations=8 * 20), update=replace(small("toy/digits").update, **ONE_STEP))
    config = replace(config, rollout=replace(config.rollout, rollout_length=1))
    train(config, tmp_path / "whole", command=[])
    whole = read_run(tmp_path / "whole").rows
    assert [row["episodes"] for row in whole] == [0] + [8] * 19
    iterate = Session.iterate

    def stop_after_resets(session):
        if (iterated := iterate(session)) is None and session.progress.iteration == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return iterated

    with monkeypatch.context() as stopping:
        stopping.setattr(Session, "iterate", stop_after_resets)
        assert train(config, tmp_path / "parts", command=[]).state == "stopped"
    train(replace(config, resume=str(tmp_path / "parts")), tmp_path, command=[])
    assert science(read_run(tmp_path / "parts").rows) == science(whole)


def test_tensorboard_events(tmp_path):
    config = replace(small(observations=500), recording=Recording(tensorboard=True))
    train(config, tmp_path / "run", command=[])
    names, shown = tensorboard_of(tmp_path / "run")
    assert {"charts/episodic_return", "losses/value_loss", "charts/SPS", "noise/policy/trace_cov"} <= names
    # The mean return is the same everywhere: that of the last hundred episodes, those before the run was resumed included.
    for observations in (500, 1000):
        train(replace(config, budget=Budget(observations=observations), resume=str(tmp_path / "run")), tmp_path, command=[])
        record = read_run(tmp_path / "run")
        shown = tensorboard_of(tmp_path / "run")[1]
        assert sum(row["episodes"] > 0 for row in record.rows) > 1
        assert shown[record.rows[-1]["observations"]] == pytest.approx(recent_return(record))


def tensorboard_of(run):
    """The names in the run's TensorBoard events, and the mean return by the number of observations."""
    from tensorboardX.proto import event_pb2

    names, shown = set(), {}
    for path in (run / "tensorboard").iterdir():
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            for value in event.summary.value:
                names.add(value.tag)
                if value.tag == "charts/episodic_return":
                    shown[event.step] = value.simple_value
            data = data[12 + length + 4 :]
    return names, shown


@pytest.mark.parametrize(("goal", "observations"), [(195, 100_000), pytest.param(400, 300_000, marks=pytest.mark.long)])
def test_cartpole_is_learned(tmp_path, goal, observations):
    """The mean return over 100 episodes, after some 30,000 and 70,000 observations; results/ holds three seeds."""
    config = default_config(find_task("classic/cartpole"))
    noise = NoiseSettings(0, policy_noise_period=0, value_noise_period=0, entropy_noise_period=0, iteration_noise_period=0)
    config = replace(config, budget=Budget(observations=observations), noise=noise)
    best = 0.0

    def watch(row, noise):
        nonlocal best
        recent.extend([row["return_mean"]] * row["episodes"])
        best = max(best, float(np.mean(recent[-100:]))) if len(recent) >= 100 else best
        if best >= goal:
            os.kill(os.getpid(), signal.SIGINT)

    recent: list[float] = []
    train(config, tmp_path / "run", command=[], on_iteration=watch)
    assert best >= goal


@pytest.mark.long
def test_pendulum_is_learned(tmp_path):
    """Continuous actions: the mean return of 100 episodes rises from some -1,200 above -300 within 400,000 observations."""
    config = default_config(find_task("classic/pendulum"))
    noise = NoiseSettings(0, policy_noise_period=0, value_noise_period=0, entropy_noise_period=0, iteration_noise_period=0)
    config = replace(config, budget=Budget(observations=400_000, goal=-300.0), noise=noise)
    train(config, tmp_path / "run", command=[])
    record = read_run(tmp_path / "run")
    first = next(row["return_mean"] for row in record.rows if row["episodes"])
    assert first < -900, "what a policy gets that knows nothing"
    assert recent_return(record) >= -300


# --- what a run refuses to go on with ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    train(small(observations=300), folder, command=[])
    return folder


def test_another_task(finished, tmp_path):
    shutil.copytree(finished, mine := tmp_path / "my run")
    said = f"of task classic/cartpole, not classic/acrobot. Use: rlscale train classic/cartpole --resume '{mine}'"
    with pytest.raises(UsageError, match=re.escape(said)):
        train(replace(small("classic/acrobot"), resume=str(mine)), mine, command=[])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environments": 16}, "--environments: a resumed run keeps 8, not 16. Leave it out, or start a new run"),
        ({"environments": 30, "actors": 4}, "--environments: a resumed run keeps 8, not 30. Leave it out, or start a new run"),
        ({"actors": 3}, "--actors: 8 environments do not divide over 3 actors. Use for example 4"),
        ({"random_first_steps": 300}, "--random-first-steps: a resumed run keeps 0, not 300. Leave it out, or start a new run"),
    ],
)
def test_a_changed_rollout(finished, change, said):
    config = small(observations=600)
    changed = replace(config, rollout=replace(config.rollout, **change), resume=str(finished))
    with pytest.raises(UsageError) as refusal:
        train(changed, finished, command=[])
    assert str(refusal.value) == said


def test_a_changed_width(finished):
    config = small(observations=600, width=128)
    with pytest.raises(UsageError, match="--width: a resumed run keeps None, not 128"):
        train(replace(config, resume=str(finished)), finished, command=[])


def test_an_attempt_that_saved_nothing_does_not_decide_what_the_checkpoint_holds(finished, tmp_path):
    """Its manifest names the other groups of environments already; the checkpoint still has those of before."""
    shutil.copytree(finished, tmp_path / "run")
    config = small(observations=600)
    changed = replace(config, rollout=replace(config.rollout, fragment_environments=4), resume=str(tmp_path / "run"))

    def fail(row, noise):
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError, match="disk on fire"):
        train(changed, tmp_path, command=[], on_iteration=fail)
    assert train(changed, tmp_path, command=[]).state == "finished"
    segments = read_run(tmp_path / "run").manifest["segments"]
    assert [segment["environments"] for segment in segments] == ["new", "seeded afresh", "seeded afresh"]


def test_a_run_that_is_refused_at_its_start_leaves_no_folder_and_a_resumed_one_its_record(finished, tmp_path, monkeypatch):
    """Else its name would be taken, and there would be no checkpoint to go on from."""
    config = replace(small(observations=600), recording=Recording(tensorboard=True))
    shutil.copytree(finished, tmp_path / "begun")

    def refuse(*_):
        raise UsageError("--actors", "2 of 2 did not start within 120 s", "Use fewer actors")

    with monkeypatch.context() as refusing:
        refusing.setattr(RunSetup, "start_fleet", refuse)
        for settings in (config, replace(config, resume=str(tmp_path / "begun"))):
            with pytest.raises(UsageError, match="--actors: 2 of 2 did not start"):
                train(settings, tmp_path / "new", command=[])
    assert not (tmp_path / "new").exists()
    for name in ("manifest.json", "iterations.jsonl", "checkpoint.pt"):
        assert (tmp_path / "begun" / name).read_bytes() == (finished / name).read_bytes()
    assert train(config, tmp_path / "new", command=[]).state == "finished"


def test_a_worker_lost_at_the_start_leaves_nothing_of_a_new_run_to_go_on_from(finished, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished, tmp_path / "begun")

    def lose(*_):
        raise LostWorkerError("a rollout worker died at its start: gone")

    monkeypatch.setattr(RunSetup, "start_fleet", lose)
    assert main(["train", "classic/cartpole", "--run", str(tmp_path / "new")]) == 1
    assert capsys.readouterr().err == "rlscale: a rollout worker died at its start: gone\n"
    assert not (tmp_path / "new").exists()
    assert main(["train", "classic/cartpole", "--resume", str(tmp_path / "begun")]) == 1
    assert f"go on from its last checkpoint with: rlscale train classic/cartpole --resume {tmp_path}" in capsys.readouterr().err
    assert read_run(tmp_path / "begun").state == "failed"


def test_a_learner_lost_while_it_takes_a_run_over_leaves_the_checkpoint_as_it_was(finished, tmp_path, monkeypatch):
    """Another learner may have the parameters already, while the session counts from zero: together no state of the run."""
    shutil.copytree(finished, tmp_path / "run")
    before, rows = (tmp_path / "run" / "checkpoint.pt").read_bytes(), read_run(tmp_path / "run").rows
    take_over = Learner.set_state

    def dies(self, state):
        take_over(self, state)
        raise LostWorkerError("learner 1 died at its start: gone")

    monkeypatch.setattr(Learner, "set_state", dies)
    assert main(["train", "classic/cartpole", "--resume", str(tmp_path / "run"), "--observations", "1000000"]) == 1
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == before
    assert read_run(tmp_path / "run").rows == rows


def test_the_folder_of_a_run_that_never_began_is_closed_before_it_is_removed(tmp_path, monkeypatch):
    """Over NFS an open file of a folder is renamed instead of removed, and the folder stays."""
    remove, still_open = shutil.rmtree, []

    def watched(folder, *words, **options):
        held = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists()]
        still_open.extend(path for path in held if path.startswith(str(folder)))
        remove(folder, *words, **options)

    run = Run.create(tmp_path / "run", {})
    monkeypatch.setattr(shutil, "rmtree", watched)
    run.discard()
    run.close()
    assert still_open == []
    assert not (tmp_path / "run").exists()


def test_where_the_disk_had_no_room_for_a_checkpoint_nobody_is_told_to_go_on_from_it(tmp_path, monkeypatch, capsys):
    def no_room(run, payload):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Run, "save_checkpoint", no_room)
    assert main(["train", "classic/cartpole", "--run", str(tmp_path / "new")]) == 1
    said = capsys.readouterr().err
    assert said.endswith(f"No space left on device. The record is in {tmp_path / 'new'}; begin again with another --run\n")


@pytest.mark.parametrize("wrong", [None, ZeroDivisionError("wrong")])
def test_who_draws_the_run_elsewhere_is_told_whether_it_failed(tmp_path, monkeypatch, wrong):
    def fail(*_):
        raise wrong

    told = []
    watcher = SimpleNamespace(write=lambda row: None, close=told.append)
    monkeypatch.setattr("rlscale.agents.train._events", lambda config, run: [watcher])
    if wrong:
        monkeypatch.setattr("rlscale.agents.train._loop", fail)
    with pytest.raises(ZeroDivisionError) if wrong else nullcontext():
        train(small(observations=300), tmp_path / "run", command=[])
    assert told == [wrong is not None]


def test_a_truncated_checkpoint_loses_nothing(finished, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    checkpoint = copy / "checkpoint.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    with pytest.raises(UsageError, match="truncated or damaged"):
        train(replace(small(observations=600), resume=str(copy)), copy, command=[])
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()} == before


def test_another_tasks_checkpoint_loses_nothing(finished, tmp_path):
    """Copied into the wrong folder: whatever both tasks have in common, the run does not go on with it."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    train(small("classic/acrobot", observations=300), tmp_path / "other", command=[])
    shutil.copy(tmp_path / "other" / "checkpoint.pt", copy)
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    with pytest.raises(UsageError, match="its checkpoint is of classic/acrobot, not of classic/cartpole"):
        train(replace(small(observations=600), resume=str(copy)), copy, command=[])
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()} == before


def test_a_goal_ends_the_run_and_the_record_says_so(tmp_path):
    config = replace(small(observations=200_000), budget=Budget(observations=200_000, goal=25.0))
    outcome = train(config, tmp_path / "run", command=[])
    assert (outcome.state, outcome.reached_goal) == ("finished", True)
    assert outcome.observations < 100_000
    run = read_run(tmp_path / "run")
    points = returns(run)
    assert points[-1]["return"] >= 25.0
    assert points[-1]["episodes"] >= 100
    assert all(point["return"] < 25.0 for point in points[:-1] if point["episodes"] >= 100)
    assert run.manifest["reason"] == f"mean return {points[-1]['return']:.4g} reached"


def test_a_resumed_run_knows_what_it_returned_before(tmp_path):
    """One near its goal ends where an uninterrupted run does, and one that has reached it at once."""
    config = replace(small(), budget=Budget(observations=200_000, goal=25.0))
    whole = train(config, tmp_path / "whole", command=[])
    rows = read_run(tmp_path / "whole").rows
    assert sum(row["episodes"] for row in rows[-4:]) < 100
    train(replace(config, budget=Budget(observations=rows[-4]["observations"])), tmp_path / "parts", command=[])
    resumed = replace(config, resume=str(tmp_path / "parts"))
    for _ in range(2):
        assert train(resumed, tmp_path, command=[]) == replace(whole, folder=tmp_path / "parts")
        parts = read_run(tmp_path / "parts")
        assert science(parts.rows) == science(rows)
        assert parts.manifest["reason"] == read_run(tmp_path / "whole").manifest["reason"]
    assert [segment["first_iteration"] for segment in parts.manifest["segments"]] == [0, len(rows) - 3, len(rows)]


def test_a_run_that_misses_its_goal_says_so(tmp_path, capsys):
    words = "classic/cartpole --environments 8 --rollout-length 16 --epochs 1 --mini-batch 128 --observations 2000 --goal 450"
    assert main(["train", *words.split(), "--run", str(tmp_path / "run")]) == 0
    assert "finished after 2,0" in (said := capsys.readouterr().out)
    assert ", and a mean return of 450 was not reached" in said
    assert main(["train", *words.replace("450", "nan").split(), "--run", str(tmp_path / "other")]) == 2
    assert "--goal: nan is no return" in capsys.readouterr().err


@pytest.mark.parametrize("actors", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("task", "said", "had_begun"),
    [
        ("bandits:NanReward", "environment 2 gave the reward nan in step 40", True),
        ("bandits:InfiniteObservation", "environment 1 gave the observation inf at 1 in step 7", True),
        ("bandits:InfiniteFirstObservation", "environment 3 gave the observation inf at 0 in step 0", False),
    ],
)
def test_numbers_that_are_not_finite_are_said_with_where_they_came_from(tmp_path, request, capsys, task, said, had_begun, actors):
    if actors:
        request.getfixturevalue("ray_instance")
    words = "--environments 8 --rollout-length 16 --epochs 1 --mini-batch 128 --observations 5000"
    assert main(["train", task, *words.split(), "--actors", str(actors), "--run", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{task}: {said}" in error
    assert (tmp_path / "run").exists() == had_begun
    if had_begun:
        assert read_run(tmp_path / "run").state == "failed"


def test_no_random_numbers_are_drawn_twice_over_a_resume(tmp_path, monkeypatch):
    """Environments that are grouped otherwise are made afresh, of another generation."""
    made, begin = [], _Group.__init__

    def watch(group, settings, actor, number, generation):
        made.append((generation, number))
        begin(group, settings, actor, number, generation)

    monkeypatch.setattr(_Group, "__init__", watch)
    config = small(observations=100, **ONE_STEP)
    train(config, tmp_path / "run", command=[])
    rollout = replace(config.rollout, fragment_environments=4)
    again = replace(config, rollout=rollout, budget=Budget(observations=300), resume=str(tmp_path / "run"))
    train(again, tmp_path, command=[])
    assert len(set(made)) == len(made) == 3


def test_a_resumed_run_counts_its_seconds_on(tmp_path):
    config = small(observations=400)
    train(config, tmp_path / "run", command=[])
    train(replace(config, budget=Budget(observations=800), resume=str(tmp_path / "run")), tmp_path, command=[])
    assert (np.diff(read_run(tmp_path / "run").column("seconds")) > 0).all()


@pytest.mark.parametrize("steps", [1, 5])
def test_a_run_makes_no_more_optimizer_steps_than_it_may(tmp_path, steps):
    config = small(**ONE_STEP)
    train(replace(config, budget=Budget(optimizer_steps=steps)), tmp_path / "run", command=[])
    assert read_run(tmp_path / "run").rows[-1]["optimizer_steps"] == steps
