"""Tests that run side by side: what shares a process. tests/support/scheduling.py decides it."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
TEST = "def test_{}(): pass\n"


def processes_of(run):
    """The processes that ran the tests of each file."""
    found = defaultdict(set)
    for process, file in re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::", run.stdout, re.MULTILINE):
        found[file].add(process)
    return dict(found)


@pytest.mark.parametrize(
    ("text", "timed"),
    [
        ("import pytest\n\n\n@pytest.mark.long\n@pytest.mark.timed\ndef test_it(): ...\n", True),
        ("class TestIt:\n    @pytest.mark.timed\n    def test_it(self): ...\n", True),
        ("pytestmark = pytest.mark.timed\n", True),
        ("pytestmark = [pytest.mark.long, pytest.mark.timed]\n", True),
        ('TEXT = "@pytest.mark.timed"\n', False),
        ("def test_it(): ...  # not pytest.mark.timed\n", False),
    ],
)
def test_a_file_is_timed_that_marks_a_test_and_not_one_that_writes_of_it(text, timed, tmp_path):
    pytest.importorskip("xdist")
    from scheduling import is_timed

    (tmp_path / "test_it.py").write_text(text)
    assert is_timed(tmp_path / "test_it.py") is timed


def test_timed_files_and_the_longest_begin_first(tmp_path):
    pytest.importorskip("xdist")
    from scheduling import LONGEST, longest_first

    assert all((ROOT / file).exists() for file in LONGEST)
    (tmp_path / "test_kills.py").write_text("@pytest.mark.timed\n")
    (tmp_path / "test_light.py").touch()
    files = [tmp_path / "test_light.py", ROOT / LONGEST[1], tmp_path / "test_kills.py", ROOT / LONGEST[0]]
    items = [SimpleNamespace(path=file, number=number) for file in files for number in (1, 2)]
    longest_first(items)
    assert [(item.path, item.number) for item in items] == [(files[k], n) for k in (1, 2, 3, 0) for n in (1, 2)]


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
