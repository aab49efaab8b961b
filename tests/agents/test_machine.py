"""What a record says of the code that made it."""

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
