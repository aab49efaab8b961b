"""What a record says of the code that made it."""

import shutil
import subprocess

import pytest

import rlscale
from rlscale.agents import machine


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of a file, which the package is said to be in; asks git anew each time."""
    package = tmp_path / "rlscale"
    package.mkdir()
    (package / "__init__.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(rlscale, "__file__", str(package / "__init__.py"))

    def commit():
        machine.find_commit.cache_clear()
        return machine.find_commit()

    yield package / "__init__.py", commit
    machine.find_commit.cache_clear()


def test_two_edits_of_one_commit_are_told_apart(checkout):
    """`rlscale bench` goes on with a file of rounds that were measured with the same code alone."""
    file, commit = checkout
    clean = commit()
    assert len(clean) == 40
    found = {}
    for content in (b"x = 2\n", b"x = 3\n", b"x = '\xff'\n", b"x = 2\n", b"x = 1\n"):
        file.write_bytes(content)
        found.setdefault(content, commit())
        assert commit() == found[content]
    assert len(set(found.values())) == 4
    assert found[b"x = 1\n"] == clean
    assert all(name.startswith(f"{clean}+changes-") for content, name in found.items() if content != b"x = 1\n")
    (file.parent / "mine.txt").write_text("")
    assert commit() == clean, "a file that git does not know"


def test_outside_a_checkout_the_code_is_told_apart_by_its_modules(checkout, tmp_path):
    """As installed, where nothing is known of a commit and two versions may have one number."""
    file, commit = checkout
    assert machine.find_code() == commit(), "in a checkout it is the commit"
    shutil.rmtree(tmp_path / ".git")
    assert commit() is None
    (tmp_path / "agents").mkdir()
    (file.parent / "agents").symlink_to("../agents")
    linked, found = tmp_path / "agents" / "learn.py", []
    for content in ("x = 1\n", "x = 2\n", "x = 1\n"):
        linked.write_text(content)
        found.append(machine.find_code())
    assert found[0] == found[2] != found[1]
    assert found[0].startswith("installed-")
    (file.parent / "mine.txt").write_text("")
    assert machine.find_code() == found[0], "a file that is no module"
