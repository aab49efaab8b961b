"""What a user is told whose own module cannot be used."""

import os
import sys

import pytest

from rlscale.envs import find_task
from rlscale.errors import UsageError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder of the user's own, in which the command is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_error_within_a_module_is_told_as_it_is(here):
    (here / "games_of_mine.py").write_text("import math\n\nmath.no_such_function()\n\n\ndef make(num_envs):\n    pass\n")
    with pytest.raises(UsageError) as refusal:
        find_task("games_of_mine:make")
    assert refusal.value.problem == "importing 'games_of_mine' failed: module 'math' has no attribute 'no_such_function'"


def test_a_file_with_the_name_of_an_installed_module_is_told_from_it(here):
    (here / "this.py").write_text("def make(num_envs):\n    pass\n")
    with pytest.raises(UsageError) as refusal:
        find_task("this:make")
    assert refusal.value.problem == f"module 'this' ({os.path.dirname(os.__file__)}/this.py) has no 'make'"
    assert refusal.value.mend == "Write module:callable; if that is another file than yours, give yours another name"


def test_a_module_without_a_file_is_told_as_well(here):
    (here / "folder").mkdir()
    for name, place in (("builtins", "built-in"), ("folder", "no file")):
        with pytest.raises(UsageError) as refusal:
            find_task(f"{name}:make")
        assert refusal.value.problem == f"module {name!r} ({place}) has no 'make'"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return gym.make_vec('CartPole-v1', 4)", "crowd:make(1) returned 4 environments"),
        ("raise RuntimeError('boom\\nsecond line')", "crowd:make(1) failed: RuntimeError: boom"),
    ],
)
def test_what_a_callable_does_wrong_is_one_line(here, body, problem):
    (here / "crowd.py").write_text(f"import gymnasium as gym\n\n\ndef make(num_envs):\n    {body}\n")
    with pytest.raises(UsageError) as refusal:
        find_task("crowd:make")
    assert refusal.value.problem == problem
