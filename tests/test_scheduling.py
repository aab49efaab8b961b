"""Tests that run side by side: what shares a process. tests/support/scheduling.py decides it."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEST = "def test_{}(): pass\n"


def processes_of(run):
    """The processes that ran the tests of each file."""
    found = defaultdict(set)
    for process, file in re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::", run.stdout, re.MULTILINE):
        found[file].add(process)
    return dict(found)


@pytest.mark.long
def test_a_file_stays_in_one_process_and_timed_files_in_the_same(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    several = "".join(TEST.format(name) for name in "abcdef")
    timed = f"import pytest\n@pytest.mark.timed\n{several}"
    for name, text in {"one": several, "two": timed, "three": several, "four": timed}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers = timed\npythonpath = {ROOT / 'tests' / 'support'}\n")
    command = [sys.executable, "-m", "pytest", "-vv", "-n", "2", "--dist", "loadfile", str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    found = processes_of(run)
    assert set(found) == {"test_one.py", "test_two.py", "test_three.py", "test_four.py"}
    assert all(len(processes) == 1 for processes in found.values())
    assert found["test_two.py"] == found["test_four.py"]
    assert len(set.union(*found.values())) == 2
