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
FILES = sorted(path.stem for path in HERE.glob("fake_*.py"))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """The tests on the fake accelerator by file: of each its name and what went wrong, None if nothing did."""
    report = tmp_path_factory.mktemp("fake") / "report.xml"
    files = [str(HERE / f"{name}.py") for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junit-xml={report}", *files]
    # Of xdist's worker it must not think that it is one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    found = {name: [] for name in FILES}
    if report.exists():
        for case in ElementTree.parse(report).iter("testcase"):
            wrong = [part.text for part in case if part.tag in ("failure", "error", "skipped")]
            where = case.get("classname").rpartition(".")[2]
            found.setdefault(where, []).append((case.get("name"), "\n".join(map(str, wrong)) or None))
    return found, f"{ran.stdout}{ran.stderr}exit code {ran.returncode}"


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_on_the_fake_accelerator(name, outcomes):
    found, output = outcomes
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
