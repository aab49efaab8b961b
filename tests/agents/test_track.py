"""`--track wandb` with the real client, offline: what its file holds is what the record says."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import COMMAND, SMALL, rows_of, start, wait_for

from rlscale.benchmarks.cli import main
from rlscale.noise import pool
from rlscale.records.noise import unpack_statistics
from rlscale.records.run import read_run

wandb = pytest.importorskip("wandb")
TASK = ["classic/cartpole", *SMALL]


def logged(run: Path):
    """What the client wrote offline: its run, and every row that was logged; from all its files, in order."""
    from wandb.proto import wandb_internal_pb2 as protocol

    found, rows = [], []
    for path in sorted((run / "wandb").glob("offline-run-*/*.wandb")):
        for record in records(path.read_bytes()):
            message = protocol.Record()
            message.ParseFromString(record)
            if message.WhichOneof("record_type") == "run":
                found.append(message.run)
            elif message.WhichOneof("record_type") == "history":
                items = message.history.item
                rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return found, rows


def records(data: bytes):
    """The records of a log in LevelDB's format, after the client's own seven bytes: pieces of blocks of 32 KiB."""
    place, kept = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        kept += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield kept
            kept = b""


def train(folder, *words, **environment):
    return subprocess.run(
        [*COMMAND, "train", *words], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


@pytest.mark.long
def test_what_is_logged_is_the_record_and_a_resumed_run_goes_on_under_its_name(tmp_path):
    done = train(tmp_path, *TASK, "--observations", "1000", "--run", "mine", "--track", "wandb", WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    (begun,), rows = logged(tmp_path / "mine")
    assert (begun.project, begun.display_name) == ("rlscale", "mine")
    assert {item.key for item in begun.config.update} >= {"task", "update", "rollout", "machine"}
    record = read_run(tmp_path / "mine")
    assert [row["observations"] for row in rows] == [row["observations"] for row in record.rows]
    for row, one in zip(rows, record.rows, strict=True):
        assert row["losses/entropy"] == one["entropy"]
        steps = [unpack_statistics(entry) for entry in one["noise"] if (entry["head"], entry["kind"]) == ("joint", "mini-batch")]
        assert len(steps) == 2, "one of each mini-batch of the first epoch"
        noise = pool(steps)
        assert row["noise/joint_mini-batch/trace_cov"] == noise.trace_cov
        assert row["noise/joint_mini-batch/grad_sq"] == noise.grad_sq
        assert row.get("noise/joint_mini-batch/b_simple") == noise.b_simple
    assert any("policy/grad_sq" in name for row in rows for name in row)

    words = ["classic/cartpole", "--resume", "mine", "--observations", "2000"]
    done = train(tmp_path, *words, WANDB_MODE="offline", WANDB_PROJECT="ours")
    assert done.returncode == 0, done.stderr
    both, rows = logged(tmp_path / "mine")
    assert len(both) == 2
    assert both[0].run_id == both[1].run_id
    assert both[1].project == "ours"
    assert [row["observations"] for row in rows] == [row["observations"] for row in read_run(tmp_path / "mine").rows]


@pytest.mark.long
def test_a_stopped_run_closes_the_log(tmp_path):
    words = [*TASK, "--observations", "100000000", "--run", "mine", "--track", "wandb"]
    with start(tmp_path, *words, WANDB_MODE="offline") as process:
        wait_for(lambda: rows_of(tmp_path / "mine") >= 3, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    _, rows = logged(tmp_path / "mine")
    assert [row["observations"] for row in rows] == [row["observations"] for row in read_run(tmp_path / "mine").rows]


def test_nobody_logged_in_is_said_in_one_line_and_leaves_nothing(tmp_path):
    nobody = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "none"), "WANDB_MODE": "online", "WANDB_API_KEY": ""}
    done = train(tmp_path, *TASK, "--observations", "1000", "--run", "mine", "--track", "wandb", **nobody)
    assert done.returncode == 2
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("rlscale: ")]
    assert "--track: Weights & Biases cannot begin" in said
    assert "WANDB_MODE=offline" in said
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "mine").exists()


def test_without_the_client_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", *TASK, "--observations", "1000", "--run", str(tmp_path / "mine"), "--track", "wandb"]) == 2
    assert "pip install 'rlscale[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()
