"""What TensorBoard and Weights & Biases are given of a row."""

import errno
import struct
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rlscale.noise import BlockStatistics, pool
from rlscale.records.events import TensorBoard, WeightsAndBiases, _figures
from rlscale.records.noise import pack_statistics


def row_of(*statistics):
    """A row with measurements of the policy's noise."""
    noise = [{"head": "policy", "kind": "rollout", "optimizer_step": 0, **pack_statistics(s)} for s in statistics]
    return {"observations": 100, "return_mean": None, "entropy": 0.5, "noise": noise}


def test_a_measurement_with_fewer_than_two_blocks_is_passed_over():
    """Nearly all environments may have just been reset. Such a batch says nothing of the noise, and ends no run."""
    one_block = BlockStatistics([3, 0, 0], [2.0, 0.0, 0.0], [2.0, 0.0, 0.0])
    whole = BlockStatistics([3, 3, 3], [2.0, 3.0, 4.0], [1.5, 2.0, 2.5])
    assert _figures(row_of(one_block)) == {"losses/entropy": 0.5}
    expected = {"losses/entropy": 0.5, "noise/policy/trace_cov": pool([whole]).trace_cov}
    found = _figures(row_of(one_block, whole))
    assert found == pytest.approx({**expected, "noise/policy/grad_sq": pool([whole]).grad_sq})


def test_a_measurement_with_two_blocks_hides_none_of_three():
    """An interval needs three, and so does a noise scale that is resolved."""
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(8, 40)) + 1.0
    whole = BlockStatistics([16] * 8, (gradients**2).sum(1), gradients @ gradients.mean(0))
    two = replace(whole, size=np.where(np.arange(8) < 2, whole.size, 0.0))
    assert _figures(row_of(whole, two)) == _figures(row_of(whole))
    assert "noise/policy/b_simple" in _figures(row_of(whole))


def test_a_run_resumed_within_one_second_keeps_the_events_before(tmp_path, monkeypatch):
    """tensorboardX names its files by the second."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    for entropy in (0.5, 0.25):
        writer = TensorBoard(tmp_path)
        writer.write({**row_of(), "entropy": entropy})
        writer.close()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


class Filling:
    """A file of which the disk takes three bytes, then none for a while."""

    def __init__(self, file):
        self._file, self.name, self.close, self._calls = file, file.name, file.close, 0

    def write(self, data):
        self._calls += 1
        if 1 < self._calls < 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data[:3] if self._calls == 1 else data)


def test_a_full_disk_is_waited_for_and_every_event_is_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    events = TensorBoard(tmp_path)
    events.write({**row_of(), "entropy": 0.5})
    events._file = Filling(events._file)
    events.write({**row_of(), "entropy": 0.25, "observations": 200})
    events.write({**row_of(), "entropy": 0.75, "observations": 300})
    events.close()
    assert capsys.readouterr().err.count("Waiting 10 minutes") == 1
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert read_events(path) == [
        ("losses/entropy", 100, 0.5),
        ("losses/entropy", 200, 0.25),
        ("losses/entropy", 300, 0.75),
    ]


def test_nobody_waits_for_a_full_disk_once_the_run_shall_end(tmp_path):
    events = TensorBoard(tmp_path, lambda: True)
    events._file.close()
    events._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left"):
        events.write(row_of())
    events.close(True)


def read_events(path):
    """Name, step and value of every scalar; each event's checksums are compared, as TensorBoard does."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data, found, versions = path.read_bytes(), [], []
    while data:
        length = struct.unpack("<Q", data[:8])[0]
        content = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12])[0] == masked_crc32c(data[:8])
        assert struct.unpack("<I", data[12 + length : 16 + length])[0] == masked_crc32c(content)
        event = Event.FromString(content)
        versions.append(event.file_version)
        found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    assert versions[0] == "brain.Event:2"
    return found


@pytest.mark.parametrize(("failed", "code"), [(False, 0), (True, 1)])
def test_weights_and_biases_is_told_whether_the_run_failed(failed, code, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    codes = []
    begun = SimpleNamespace(define_metric=lambda *_, **__: None, finish=lambda exit_code: codes.append(exit_code))
    monkeypatch.setattr(wandb, "init", lambda **_: begun)
    manifest = {"created": "", "config": {}, "task": {"id": "toy/catch"}, "machine": {}}
    WeightsAndBiases(tmp_path, manifest).close(failed)
    assert codes == [code]
