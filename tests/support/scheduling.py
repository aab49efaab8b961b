"""Which tests share a process when several run side by side, and which begin first."""

import re
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

TIMED = re.compile(r"^(?:\s*@|pytestmark = .*)pytest\.mark\.timed\b", re.MULTILINE)  # over a test, or over all of a file
# What takes longest of the files that are not timed; these have by far the most to do of `make test-long`.
LONGEST = ("tests/benchmarks/sweep/test_planted_command.py", "tests/benchmarks/sweep/test_sweep.py")


class ByFile(LoadScopeScheduling):
    """The tests of one file stay in one process, and so do all files that have a test marked `timed`.

    Tests of a file share fixtures. Timed tests kill and stop processes against a clock, so no two may run at once: in one process
    they follow one another, and the other process never waits for them.

    pytest-xdist's own groups, by a mark, would do the same. Version 3.8 writes them where pytest 9.2 no longer reads them, and
    then every test is a group of its own: fixtures are made in each process, and `make unit` takes half as long again.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return "timed" if is_timed(Path(self.config.rootpath, path)) else path


def longest_first(items: list[pytest.Item]) -> None:
    """Move timed files and `LONGEST` to the beginning, so that no process has one of them for itself at the end."""
    items.sort(key=lambda item: not (is_timed(item.path) or item.path.as_posix().endswith(LONGEST)))


@cache
def is_timed(file: Path) -> bool:
    """Whether a test of the file is marked `timed`."""
    return TIMED.search(file.read_text()) is not None
