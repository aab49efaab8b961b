"""The script for whoever has an accelerator, run on the fake one: its checks pass, and fail where a device is wrong."""

import json
import sys
from dataclasses import replace

import fake_accelerator as fake
import pytest
import torch

from rlscale.agents.learning import gradients
from rlscale.benchmarks.measurements.accelerator import __main__ as command
from rlscale.benchmarks.measurements.accelerator import checks, figures

fake.register()

THERE = torch.device("fake")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(checks, "ROLLOUT", 8)
    monkeypatch.setattr(command, "ROLLOUT", 8)
    monkeypatch.setattr(checks, "CHECKED", 64)
    monkeypatch.setattr(checks, "FIRST_STEPS", 0)
    monkeypatch.setattr(figures, "CHUNKS", (32,))
    monkeypatch.setattr(figures, "ACTED", (2,))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)  # else it would start Ray for two learners


def test_it_prints_a_block_to_paste_and_keeps_a_record(tmp_path, capsys):
    assert command.main(rounds=1, batch=32, runs=0, out=tmp_path / "record.json") == 0
    printed = capsys.readouterr().out
    block = printed.partition("Please paste what follows into an issue:")[2]
    assert "### rlscale on fake accelerator (fake): none of 36 checks failed" in block
    readings = json.loads((tmp_path / "record.json").read_text())["readings"]
    assert len(readings["checks"]) == 36
    for name in ("float32", "bfloat16", "joint noise", "all heads", "streamed", "frames visiting", "chunk 32", "on the CPU"):
        assert len(readings["learner_seconds"][name]) == 1
        assert f"| learning, {name}: observations/s | " in block
    assert readings["accelerator"]["accelerator"] == "fake accelerator"
    assert 0.9 < readings["trace_ratio"][0] < 1.1
    assert "| acting on fake, 2: ms | " in block
    assert readings["run_rates"] == readings["several_seconds"] == {}


def test_what_fails_is_a_check_that_failed_and_the_rest_is_measured_all_the_same(tmp_path, monkeypatch, capsys):
    """An operator that is missing, statistics that are not finite, and a run that ends this process with a line."""

    def missing(*_):
        raise NotImplementedError("Could not run 'aten::im2col' | on this backend\nmore")

    monkeypatch.setattr(checks, "compare_acting", missing)
    monkeypatch.setattr(command, "measure_acting", missing)
    monkeypatch.setattr(command, "measure_runs", lambda *_: sys.exit("a run failed"))
    assert command.main(rounds=1, batch=32, runs=1, out=tmp_path / "record.json") == 1
    block = capsys.readouterr().out.partition("Please paste what follows into an issue:")[2]
    assert "### rlscale on fake accelerator (fake): 7 of 38 checks failed" in block
    said = "NotImplementedError: Could not run 'aten::im2col' / on this backend | nan | 0 | **failed** |"
    assert f"| acting, small_cnn: {said}" in block
    assert block.count(said) == 6  # of five policies, and the speed of acting
    assert "| whole runs: SystemExit: a run failed | nan | 0 | **failed** |" in block
    assert "| learning, float32: observations/s | " in block
    readings = json.loads((tmp_path / "record.json").read_text())["readings"]
    assert sum(not check["passed"] for check in readings["checks"]) == 7


@pytest.mark.parametrize("factor", [1.1, float("nan")])
def test_a_device_that_computes_something_else_fails_its_checks(factor, monkeypatch):
    losses = gradients.ppo_losses

    def wrong(**arguments):
        if arguments["advantage"].device.type == "fake":
            arguments["advantage"] = arguments["advantage"] * factor
        return losses(**arguments)

    monkeypatch.setattr(gradients, "ppo_losses", wrong)
    if factor != factor:  # statistics that are not finite are refused before they can be compared
        with pytest.raises(ValueError, match="not finite"):
            checks.compare("mlp", "mlp", THERE)
        return
    found = checks.compare("mlp", "mlp", THERE)
    assert [check.name for check in found if not check.passed][:2] == ["mlp: |g_k|² of all heads", "mlp: g_k·ĝ of all heads"]
    block = command.block_of(THERE, 64, found, {})
    assert f"{sum(not check.passed for check in found)} of 4 checks failed" in block
    assert "**failed**" in block


@pytest.mark.parametrize("figure", range(3))
def test_a_figure_that_is_no_number_fails_its_check(figure, monkeypatch):
    """Whichever it is: the largest of differences of which one is no number may be any of the others."""
    learn = checks.learn_batch

    def wrong(learner, *given):
        result = learn(learner, *given)
        if learner._device.type == "fake":
            name = list(result.figures)[figure]
            result = replace(result, figures={**result.figures, name: float("nan")})
        return result

    monkeypatch.setattr(checks, "learn_batch", wrong)
    failed = [check.name for check in checks.compare("mlp", "mlp", THERE) if not check.passed]
    assert failed == ["mlp: figures"]


def test_a_difference_that_is_no_number_is_not_allowed():
    assert not checks.Check("", float("nan"), 1.0).passed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"device": "cpu"}, "rlscale: --device: cpu is no accelerator."),
        ({"device": "abacus"}, "rlscale: --device: 'abacus' is no device. Use auto, cpu or fake"),
        ({"batch": 100}, "rlscale: --batch: 100 is no multiple of 16 of at least 32. Give for example 8192"),
        ({"rounds": 0}, "rlscale: --rounds: 0 is not a positive number. Give one above zero"),
        ({"runs": -1}, "rlscale: --runs: -1 is not zero or more. Give zero or more"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(words, message, capsys):
    assert command.main(**words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message)
    assert printed.err.count("\n") == 1
