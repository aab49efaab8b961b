"""Runs the tests on the fake accelerator, `fake_*.py` beside this file, in a process of their own.

Once torch knows the fake device it knows it until the process ends: `torch.accelerator` names it, and so does `--device auto`.
Every test that came later in the same process would learn on it. Their names keep pytest from collecting them here.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SLOW = {"fake_learners", "fake_measurement", "fake_rllib"}  # processes, the whole script for people, RLlib
QUICK = {path.stem for path in HERE.glob("fake_*.py")} - SLOW


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    return outcomes_of(QUICK, tmp_path_factory.mktemp("quick"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    return outcomes_of(SLOW, tmp_path_factory.mktemp("slow"))


def outcomes_of(names, folder):
    """Of these files each test's name and what went wrong, None if nothing did, by file; and what was shown."""
    report = folder / "report.xml"
    files = [str(HERE / f"{name}.py") for name in sorted(names)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *files]
    # Of xdist's worker it must not think that it is one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    found = {name: [] for name in names}
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            wrong = [part.text for part in case if part.tag in ("failure", "error", "skipped")]
            where = case.get("classname").rpartition(".")[2]
            found.setdefault(where, []).append((case.get("name"), "\n".join(map(str, wrong)) or None))
    return found, f"{ran.stdout}{ran.stderr}exit code {ran.returncode}"


@pytest.mark.parametrize("name", sorted(QUICK))
def test_on_the_fake_accelerator(name, quick):
    all_pass(name, *quick)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(SLOW))
def test_on_the_fake_accelerator_at_length(name, slow):
    all_pass(name, *slow)


def all_pass(name, found, output):
    assert found[name], f"no test of {name}.py ran:\n{output[-4000:]}"
    wrong = [f"{test}\n{what}" for test, what in found[name] if what is not None]
    assert not wrong, "\n\n".join(wrong)


def test_this_process_knows_no_fake_accelerator():
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"


def test_no_code_names_a_makers_device():
    """Neither `torch.cuda` and its like, nor a comparison with a device's name other than the CPU's."""
    makers = {"cuda", "xpu", "mps", "mtia", "hpu", "nccl"}
    named = []
    for floor in ("rlscale", "envs", "agents", "benchmarks"):
        for path in (ROOT / floor).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                attribute = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "torch" and node.attr in makers
                compared = isinstance(node, ast.Compare) and any(getattr(n, "value", "") in makers for n in ast.walk(node))
                if attribute or compared:
                    named.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert named == []
