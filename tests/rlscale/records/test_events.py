"""What TensorBoard and Weights & Biases are given of a row."""

from dataclasses import replace

import numpy as np
import pytest

from rlscale.noise import BlockStatistics, pool
from rlscale.records.events import TensorBoard, _figures
from rlscale.records.run import pack_statistics


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
