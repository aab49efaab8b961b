"""The sweeps that are published in results/ are still read, and say what they said when they were published."""

import gzip
import json
from pathlib import Path

import pytest

from rlscale.agents.config import config_from_dict
from rlscale.analysis.comparison import compare
from rlscale.benchmarks.sweep.plan import SweepPlan
from rlscale.records.sweep import read_sweep

RESULTS = Path(__file__).parents[3] / "results"
PUBLISHED = {  # per sweep: B_crit of the last goal, its interval, the noise scale that predicts it, the best rates
    "minatar-breakout": (
        (956.3664098031225, (239.32791177154363, 3657.399706888394), 1941.821231247292),
        {32: 0.009923, 128: 0.00686, 512: 0.01265, 2048: 0.02, 8192: 0.01789, 32768: 0.009701},
    ),
    "minatar-breakout-entropy": (
        (823.5908396073924, (439.8929962383954, 1517.1767315309007), 2245.0662020844047),
        {128: 0.0194, 512: 0.01265, 2048: 0.02, 8192: 0.01265},
    ),
    "demo": (
        (3051.7684176521752, (1097.0113217995483, 12177.1263099034), 1895.571963436158),
        {128: 0.00686, 512: 0.01265, 2048: 0.02, 8192: 0.01789},
    ),
}
each_sweep = pytest.mark.parametrize("name", PUBLISHED)


@each_sweep
def test_a_published_sweep_says_what_it_said(name):
    (b_crit, interval, predicted), rates = PUBLISHED[name]
    record = read_sweep(RESULTS / name)
    assert record.left_out == ()
    comparison = compare([record], [])
    row = comparison.rows[-1]
    assert row.measured.value == pytest.approx(b_crit, rel=1e-6)
    assert row.measured.interval == pytest.approx(interval, rel=1e-6)
    assert row.predicted("policy", "cumulative").value == pytest.approx(predicted, rel=1e-6)
    (sweep,) = comparison.sweeps
    assert {size.batch_size: size.learning_rate for size in sweep.sizes} == rates


@each_sweep
def test_the_sweep_and_the_page_choose_the_same_rates(name):
    record = read_sweep(RESULTS / name)
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in record.plan.items()}
    plan = SweepPlan(**{**settings, "config": config_from_dict(record.plan["config"])})
    assert plan.next_trials(record.results) == []
    assert {trial.id for trial in plan.trials(record.results)} == set(record.results)
    for size in compare([record], []).sweeps[0].sizes:
        choice = plan.choice(size.batch_size, record.results)
        assert size.runs[0].rate_index == choice.rate_index
        assert size.on_edge == choice.on_edge


@each_sweep
def test_a_result_is_written_as_it_was_read(name):
    lines = gzip.decompress((RESULTS / name / "results.jsonl.gz").read_bytes()).splitlines()
    for line, result in zip(lines, read_sweep(RESULTS / name).results.values(), strict=True):
        stored, written = json.loads(line), json.loads(json.dumps(result.to_json()).replace("Infinity", "null"))
        assert set(written) == set(stored)
        for part in ("goals", "evaluations", "noise", "noise_windows"):
            assert written.pop(part) == stored.pop(part)
        assert written == stored
