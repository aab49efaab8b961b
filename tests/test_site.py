"""The documentation as a web site, built as `make site` builds it: every link of every page leads somewhere."""

import importlib.util
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent


class Page(HTMLParser):
    """The links of a page and the places in it that links may name."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.outside = [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        link = given.get("href") or given.get("src")
        if link and not urlsplit(link).scheme:
            self.links.append(link)
        elif link and tag != "a":
            self.outside.append(link)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    found = importlib.util.spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    site = importlib.util.module_from_spec(found)
    sys.modules["docs_site"] = site
    found.loader.exec_module(site)
    pytest.importorskip("zensical", reason="needs Python 3.11.5")
    site.OUT = tmp_path_factory.mktemp("built") / "site"
    site.main()
    return site


def test_every_page_of_the_docs_is_in_the_navigation_once(built):
    named = [name for names in built.NAVIGATION.values() for name in names]
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")}
    assert len(named) == len(set(named))
    assert set(named) == there | {"README.md", "CHANGELOG.md", "results/README.md", "examples/README.md"}


def test_every_link_leads_somewhere(built):
    pages = {path: Page(path) for path in built.OUT.rglob("*.html") if path.name != "404.html"}
    assert len(pages) == sum(map(len, built.NAVIGATION.values()))
    links = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = place / "index.html" if place.is_dir() else place
            assert place.is_file(), f"{path.relative_to(built.OUT)} links to {link}"
            if parts.fragment and place.suffix == ".html":
                anchors = pages[place].anchors
                assert unquote(parts.fragment) in anchors, f"{path.relative_to(built.OUT)} links to {link}"
            links += 1
    assert links > 1000


def test_no_page_loads_anything_from_elsewhere(built):
    assert [page.outside for page in map(Page, built.OUT.rglob("*.html")) if page.outside] == []
