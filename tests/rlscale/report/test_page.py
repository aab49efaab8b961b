"""The script that every page carries: bundled once for a user, then kept."""

import os

import pytest
import vl_convert

from rlscale.report import page


@pytest.fixture(autouse=True)
def forgotten():
    """As in a new process, before and after."""
    page._embed_script.cache_clear()
    yield
    page._embed_script.cache_clear()


def again():
    page._embed_script.cache_clear()
    return page._embed_script()


def test_it_is_bundled_once_for_each_version_of_its_package(tmp_path, monkeypatch):
    bundled = []
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda words: bundled.append(words) or "embed('</script>')")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert page._embed_script() == again() == "embed('<\\/script>')"
    assert len(bundled) == 1
    assert [path.name for path in (tmp_path / "rlscale").iterdir()] == [f"vega-{vl_convert.__version__}.js"]
    monkeypatch.setattr(vl_convert, "__version__", "another")
    assert again() == "embed('<\\/script>')"
    assert len(bundled) == 2


@pytest.mark.parametrize("place", ["a file", "a damaged copy", "no home"])
def test_a_page_needs_no_place_to_keep_it(place, tmp_path, monkeypatch):
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda words: "bundled")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    if place == "a file":
        (tmp_path / "caches").write_text("")
    elif place == "a damaged copy":
        kept = tmp_path / "caches" / "rlscale" / f"vega-{vl_convert.__version__}.js"
        kept.parent.mkdir(parents=True)
        kept.write_bytes(b"\xff\xff")
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as of a user who is not in the machine's list
    assert again() == "bundled"
    assert not list(tmp_path.glob("**/*-*-*.js")), "half of a copy is left"
