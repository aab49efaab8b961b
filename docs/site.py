"""The documentation as a web site: `make site` writes it to build/site.

Zensical makes the pages, from a configuration that MkDocs reads as well. The pages are those of the checkout, unchanged; so that
their links to code and records hold, what they link to lies beside them, at the same place as in the checkout. A link to a folder
leads to its `__init__.py` or its list of files.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "site"
NAVIGATION = {
    "Start": ["README.md", "docs/questions.md", "docs/everyday.md"],
    "How far, how many": ["docs/advise.md", "docs/frontier.md", "docs/noise.md", "docs/workers.md"],
    "What was measured": [
        "docs/ladder.md",
        "docs/beyond.md",
        "docs/studies.md",
        "docs/speed.md",
        "results/README.md",
        "docs/preregistration.md",
    ],
    "At work": ["docs/tasks.md", "docs/massive.md", "docs/cluster.md", "docs/faults.md", "docs/accelerator.md"],
    "Other libraries": ["docs/rllib.md", "docs/sb3.md", "examples/README.md"],
    "Reference": ["docs/glossary.md", "CHANGELOG.md"],
    "Inside": ["docs/tour.md", "docs/decisions.md", "docs/testing.md", "docs/log.md"],
}
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def main() -> None:
    """Lay out the sources and build."""
    source = OUT.with_name("site-source")
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(OUT, ignore_errors=True)
    lay_out(source / "pages")
    (source / "mkdocs.yml").write_text(configuration())
    if importlib.util.find_spec("zensical") is None:
        raise SystemExit("The site is made by zensical, which needs Python 3.11.5 or newer.")
    subprocess.run([sys.executable, "-m", "zensical", "build", "-f", "mkdocs.yml"], cwd=source, check=True)
    shutil.move(source / "site", OUT)
    shutil.rmtree(source)
    print(f"the site is in {OUT}; look at it with: {sys.executable} -m http.server --directory {OUT} --bind 127.0.0.1")


def lay_out(folder: Path) -> None:
    """Copy every page, and whatever pages link to, into the folder."""
    for page in (ROOT / name for names in NAVIGATION.values() for name in names):
        text = page.read_text()
        for _, target, _ in LINK.findall(text):
            if "://" not in target:
                _copy(Path(os.path.normpath(page.parent / target)), folder)  # the package's folders are links: not followed
        written = folder / page.relative_to(ROOT)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(LINK.sub(partial(_to_file, page), text))


def _copy(path: Path, folder: Path) -> None:
    place = folder / path.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        place.mkdir(exist_ok=True)
        first = path / "__init__.py"
        listed = first.read_text() if first.exists() else "".join(f"{child.name}\n" for child in sorted(path.iterdir()))
        (place / _front(path)).write_text(listed)
    elif path.suffix != ".md":
        shutil.copy2(path, place)


def _front(folder: Path) -> str:
    """The file that stands for a folder."""
    return "__init__.py" if (folder / "__init__.py").exists() else "files.txt"


def _to_file(page: Path, found: re.Match[str]) -> str:
    target = page.parent / found[2]
    if "://" in found[2] or not target.is_dir():
        return found[0]
    return f"{found[1]}{found[2].rstrip('/')}/{_front(target)}{found[3]}"


def configuration() -> str:
    """Of Zensical or MkDocs."""
    navigation = "".join(
        f"  - {title}:\n" + "".join(f"      - {name}\n" for name in names) for title, names in NAVIGATION.items()
    )
    return f"""site_name: rlscale
site_description: How far can this reinforcement-learning task be parallelized, and what should I buy?
docs_dir: pages
site_dir: site
nav:
{navigation}theme:
  name: material
  font: false
  features: [navigation.sections, navigation.indexes, navigation.footer, content.code.copy]
markdown_extensions:
  - tables
  - toc:
      permalink: true
  - pymdownx.superfences
  - pymdownx.highlight
"""


if __name__ == "__main__":
    main()
