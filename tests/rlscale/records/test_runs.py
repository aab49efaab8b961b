"""Records: nothing is overwritten, nothing torn is believed, nothing good is lost."""

import errno
import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_records import FACTS, make_run

from rlscale.agents.job_record import refuse_existing
from rlscale.errors import UsageError
from rlscale.noise import BlockStatistics
from rlscale.records import files
from rlscale.records.files import dump_json, lock_folder, make_folder, read_lines, unpack
from rlscale.records.noise import pack_statistics, unpack_statistics
from rlscale.records.run import Run, read_checkpoint, read_run


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path / "some" / "run", {**FACTS, "segments": []})
    yield run
    run.close()


NOISE = {"head": "joint", "kind": "rollout", "size": [8], "square": [1.0], "dot": [1.0]}


def row(iteration, **more):
    counted = dict.fromkeys(("optimizer_steps", "batch_observations", "episodes"), 10)
    seconds = dict.fromkeys(("seconds", "sampling_seconds", "transfer_seconds", "learning_seconds"), 1.5)
    unknown = dict.fromkeys(("return_mean", "episode_length_mean", "learning_rate"))
    found = {"observations": 10 * (iteration + 1), **counted, **seconds, **unknown, "noise": []}
    return {"iteration": iteration, **found, **more}


def test_the_first_snapshot_waits_for_room_too(run, monkeypatch):
    """Its folder is made where there is room for it."""
    full, made = [errno.ENOSPC, errno.ENOSPC], Path.mkdir

    def make(self, *words, **options):
        if self.name == "snapshots" and full:
            raise OSError(full.pop(), "No space left on device")
        made(self, *words, **options)

    monkeypatch.setattr(Path, "mkdir", make)
    monkeypatch.setattr(files.time, "sleep", lambda _: None)
    run.save_snapshot(32, b"policy")
    assert (run.folder / "snapshots" / "0000000032.npy").read_bytes() == b"policy"


def test_a_folder_that_was_renamed_meanwhile_is_one_line(run):
    run.folder.rename(run.folder.parent / "other")
    with pytest.raises(
        UsageError, match=r"--run: the record in .*run cannot be written any more: No such file or directory. Put"
    ):
        run.save_checkpoint(b"parameters")
    (run.folder.parent / "other").rename(run.folder)  # for the fixture


def test_rows_come_back(run):
    rows = [row(0, figure=0.1, missing=None), row(1, noise=[NOISE])]
    for r in rows:
        run.append(r)
    record = read_run(run.folder)
    assert rows == record.rows
    assert record.name == "run"
    assert np.array_equal(record.column("observations"), [10, 20])
    assert math.isnan(record.column("missing")[0])


@pytest.mark.parametrize("wrong", [[], {}, "many", None])
def test_a_figure_that_is_no_number_is_none(run, wrong):
    """Of what a page only draws: it leaves a gap there."""
    run.append(row(0, clip_fraction=0.25))
    run.append(row(1, clip_fraction=wrong))
    first, second = read_run(run.folder).column("clip_fraction")
    assert first == 0.25
    assert math.isnan(second)


def test_a_published_record_may_be_compressed(run):
    run.append(row(0))
    path = run.folder / "iterations.jsonl"
    (run.folder / "iterations.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert read_run(run.folder).rows == [row(0)]


@pytest.mark.parametrize(
    ("beside", "whole"),
    [
        (None, b"a\nb\n"),
        (b"", b"a\nb\n"),
        (b"c\n", b"a\nb\nc\n"),  # appended beside the compressed lines
        (b"a\nb\n", b"a\nb\n"),  # a crash came after they were written, before the compressed file was removed
        (b"a\nb\nc\n", b"a\nb\nc\n"),  # and later another process appended
    ],
)
def test_lines_beside_compressed_ones_are_read_and_kept_once(tmp_path, beside, whole):
    path, packed = tmp_path / "results.jsonl", tmp_path / "results.jsonl.gz"
    packed.write_bytes(gzip.compress(b"a\nb\n"))
    if beside is not None:
        path.write_bytes(beside)
    for _ in range(2):
        assert read_lines(path, "SWEEP", "Restore it") == (whole.split(b"\n")[:-1], b"")
        unpack(path)
        assert path.read_bytes() == whole
        assert not packed.exists()


def test_unpacking_what_a_crash_left_unpacked_writes_nothing(tmp_path, monkeypatch):
    """The disk may be full."""
    path, packed = tmp_path / "results.jsonl", tmp_path / "results.jsonl.gz"
    path.write_bytes(b"a\nb\nc\n")
    packed.write_bytes(gzip.compress(b"a\nb\n"))
    monkeypatch.setattr("rlscale.records.files.write_atomically", lambda *_: pytest.fail("written"))
    unpack(path)
    assert not packed.exists()


def test_what_is_not_finite_becomes_null_and_stays_readable(run):
    run.append(row(0, a=math.nan, b=math.inf, c=[1.0, -math.inf]))
    text = (run.folder / "iterations.jsonl").read_text()
    assert json.loads(text, parse_constant=lambda word: pytest.fail(word)) == row(0, a=None, b=None, c=[1.0, None])


def test_numbers_of_numpy_are_recorded_as_pythons():
    """A seed that `rng.integers` drew, in the settings of a run."""
    settings = {"seed": np.int64(7), "flags": [np.bool_(True), np.float32(0.5)], "lost": np.float32(math.nan)}
    assert json.loads(dump_json(settings)) == {"seed": 7, "flags": [True, 0.5], "lost": None}


def test_a_torn_last_line_is_passed_over(run):
    run.append(row(0))
    with (run.folder / "iterations.jsonl").open("a") as file:
        file.write('{"iteration": 1, "observ')
    assert [r["iteration"] for r in read_run(run.folder).rows] == [0]


def test_a_resumed_run_goes_on_after_a_torn_line(run):
    run.append(row(0))
    with (run.folder / "iterations.jsonl").open("a") as file:
        file.write('{"iteration": 1, "observ')
    run.close()
    resumed = Run.resume(run.folder)
    resumed.append(row(1))
    resumed.append(row(2))
    assert [r["iteration"] for r in read_run(run.folder).rows] == [0, 1, 2]
    run._lock, run._rows = resumed._lock, resumed._rows


def test_iterations_made_again_replace_the_earlier_ones(run):
    for iteration in (0, 1, 2, 3, 1, 2):
        run.append(row(iteration, order=len(read_run(run.folder).rows)))
    assert [r["iteration"] for r in read_run(run.folder).rows] == [0, 1, 2]
    assert len((run.folder / "iterations.jsonl").read_text().splitlines()) == 6  # append-only: nothing was removed


def test_damage_in_the_middle_is_an_error(run):
    path = run.folder / "iterations.jsonl"
    path.write_text(f"{json.dumps(row(0))}\nnonsense\n{json.dumps(row(1))}\n")
    with pytest.raises(UsageError, match="line 2"):
        read_run(run.folder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (None, "it is no object"),
        ({"observations": None}, "observations cannot be null"),
        ({"iteration": "2"}, 'iteration cannot be "2"'),
        ({"episodes": ...}, "episodes is missing"),
        ({"noise": 3}, "noise is no list"),
        ({"noise": [NOISE, {"head": "joint"}]}, "noise.kind is missing"),
        ({"noise": [NOISE, NOISE | {"dot": [1.0, 1.0]}]}, "noise of the joint loss is not one number a block"),
        ({"noise": [NOISE | {"adam_square": [None]}]}, "noise of the joint loss is not one number a block"),
    ],
)
def test_a_row_that_lacks_what_is_read_is_damaged(run, changes, fault):
    odd = changes and {name: value for name, value in (row(1) | changes).items() if value is not ...}
    (run.folder / "iterations.jsonl").write_text(f"{json.dumps(row(0))}\n{json.dumps(odd)}\n")
    with pytest.raises(UsageError, match=f"line 2 .*{fault}"):
        read_run(run.folder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (dict.fromkeys(FACTS | {"state": None, "created": None}, ...), "state is missing"),
        ({"task": None}, "task is no object"),
        ({"task": FACTS["task"] | {"id": None}}, "task.id cannot be null"),
        ({"task": FACTS["task"] | {"goals": [1, "many"]}}, 'task.goals cannot be "many"'),
        ({"config": []}, r"config cannot be \[\]"),
        ({"segments": [{}]}, "segments.first_iteration is missing"),
    ],
)
@pytest.mark.parametrize("read", [read_run, Run.resume])
def test_a_manifest_that_lacks_what_is_read_is_damaged(run, changes, fault, read):
    manifest = {name: value for name, value in (run.manifest | changes).items() if value is not ...}
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=rf"manifest.json is damaged: {fault}\. Restore it"):
        read(run.folder)


def test_an_existing_run_is_never_overwritten(run):
    before = (run.folder / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match="never overwritten"):
        Run.create(run.folder, {})
    assert (run.folder / "manifest.json").read_bytes() == before


HOLDS = """
import sys
from pathlib import Path
from rlscale.records.files import dump_json, lock_folder
lock_folder(Path(sys.argv[1]), "--out")
print("held", flush=True)
sys.stdin.read()
"""


def test_only_one_process_writes(run, tmp_path):
    with pytest.raises(UsageError, match=r"is being written by this process already\. Close the session that writes it"):
        Run.resume(run.folder)
    with subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match=rf"^--out: {tmp_path} is being written by process {other.pid}\. Wait for it"):
            lock_folder(tmp_path, "--out")
        elsewhere = {"process": other.pid, "host": "of another machine"}
        (tmp_path / ".lock").write_text(json.dumps(elsewhere))
        with pytest.raises(UsageError, match=rf"by process {other.pid} on another machine"):
            lock_folder(tmp_path, "--out")
        (tmp_path / ".lock").write_text("")
        with pytest.raises(UsageError, match=r"by another process\. Wait for it, or stop it$"):
            lock_folder(tmp_path, "--out")
        other.stdin.close()
        other.wait()
    os.close(lock_folder(tmp_path, "--out"))


def test_no_run_there(tmp_path):
    with pytest.raises(UsageError, match="holds no run"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        read_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": 99}')
    with pytest.raises(UsageError, match="schema 99"):
        read_run(tmp_path)


def test_checkpoints_are_whole_or_refused(run):
    run.save_checkpoint(b"first" * 1000)
    run.save_checkpoint(b"second" * 1000)
    assert read_checkpoint(run.folder) == b"second" * 1000
    path = run.folder / "checkpoint.pt"
    content = path.read_bytes()
    for damaged in (content[:-1], content[: len(content) // 2], b"", content[:-1] + b"x", b"PK" + content):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="truncated or damaged"):
            read_checkpoint(run.folder)
    path.unlink()
    with pytest.raises(UsageError, match="before its first checkpoint"):
        read_checkpoint(run.folder)
    path.mkdir()
    with pytest.raises(UsageError, match=r"RUN: cannot read .*checkpoint\.pt: Is a directory"):
        read_checkpoint(run.folder, "RUN")


def test_a_foreign_file_among_the_snapshots_is_left_alone(run):
    for steps in (1, 20, 300):
        run.save_snapshot(steps, b"policy")
    foreign = run.folder / "snapshots" / "best.npy"
    foreign.touch()
    assert run.snapshot_steps(20) == [1, 20]
    assert foreign.exists()


def test_a_crash_while_a_checkpoint_is_written_leaves_the_old_one(run):
    run.save_checkpoint(b"old")
    (run.folder / "checkpoint.pt.new").write_bytes(b"half of the new o")
    assert read_checkpoint(run.folder) == b"old"


def test_states(run):
    assert read_run(run.folder).state == "running"
    run.set_state("failed", "RuntimeError: the reason")
    record = read_run(run.folder)
    assert (record.state, record.manifest["reason"]) == ("failed", "RuntimeError: the reason")


def test_a_dead_process_is_not_running(tmp_path):
    made = f"Run.create(Path('run'), {FACTS})"
    code = f"import os; from pathlib import Path; from rlscale.records.run import Run; {made}; os._exit(9)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert read_run(tmp_path / "run").state == "interrupted"


def test_no_permission():
    with pytest.raises(UsageError, match="cannot write"):  # not even root may make folders there
        Run.create(Path("/proc/rlscale/run"), {})


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--run"):
        Run.create(tmp_path / "file" / "run", {})


@pytest.mark.parametrize("name", ["file/run", "x" * 300])
def test_a_job_of_another_library_is_told_of_its_own_word_for_the_folder(tmp_path, name):
    (tmp_path / "file").write_text("")
    folder = tmp_path / name
    refuse_existing(folder)  # nothing is there
    with pytest.raises(UsageError, match=r"^run: cannot write"):
        Run.create(folder, {}, "run")
    if name == "file/run":
        with pytest.raises(UsageError, match=r"^run: cannot write .*: .*[Ee]xists|^run: cannot write .*: Not a directory"):
            make_folder(folder.parent, "run")
    held = Run.create(tmp_path / "held", {**FACTS, "segments": []}, "run")
    with pytest.raises(UsageError, match=r"^run: .*by this process already"):
        Run.resume(held.folder, "run")
    held.close()


floats = st.floats(1e-12, 1e12)


@given(st.lists(st.tuples(st.integers(0, 10**6), floats, floats), min_size=2, max_size=20), st.booleans())
def test_statistics_keep_nine_digits(blocks, named):
    size, square, dot = zip(*blocks, strict=True)
    names = [7 * i for i in range(len(blocks))] if named else None
    before = BlockStatistics(size, square, [-d for d in dot], names)
    after = unpack_statistics(json.loads(json.dumps(pack_statistics(before))))
    np.testing.assert_array_equal(after.size, before.size)
    np.testing.assert_array_equal(after.block, before.block)
    np.testing.assert_allclose(after.square, before.square, rtol=1e-8)
    np.testing.assert_allclose(after.dot, before.dot, rtol=1e-8)


def test_noise_of_one_kind_of_blocks_is_not_that_of_another(tmp_path):
    """Between environments and between mini-batches a loss has other noise."""
    record = make_run(tmp_path / "run", iterations=3)
    for row in record.rows:
        row["noise"].append({**row["noise"][0], "kind": "mini-batch", "optimizer_step": 100})
    assert [len(record.noise("policy", kind)) for kind in ("rollout", "mini-batch", None)] == [3, 3, 6]


def test_a_metric_that_nobody_knows_is_one_line(tmp_path):
    """As the pages spell it, say, which would else be a KeyError, or nothing at all where there is no such head either."""
    record = make_run(tmp_path / "run", iterations=2)
    for head in ("policy", "nobody's"):
        with pytest.raises(UsageError, match=r"^metric: there is no 'Adam'\. Choose one of plain, adam$"):
            record.noise(head, metric="Adam")
    assert record.noise("policy", metric="adam") == []


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOSYS])
def test_a_folder_that_cannot_be_locked_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, error):
    """Another user's lock file, or a file system without locks."""

    def refuse(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with pytest.raises(UsageError, match=rf"--run: cannot lock .*: {os.strerror(error)}\. Choose a folder of your own"):
        Run.create(tmp_path / "run", {"task": {"id": "classic/cartpole"}})
    assert not (tmp_path / "run").exists()


def test_a_new_run_on_a_full_disk_leaves_its_name_free(tmp_path, monkeypatch):
    """A folder without a manifest could neither be gone on with nor be used again."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            Run.create(tmp_path / "mine", {})
    assert not (tmp_path / "mine").exists()
    Run.create(tmp_path / "mine", {}).close()
