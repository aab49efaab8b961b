"""The commands that README.md, docs/ and examples/ show are ones that `rlscale` takes, with options that it knows."""

import re
import shlex
from pathlib import Path

import pytest

from rlscale.agents.config import TrainConfig
from rlscale.benchmarks.advise.options import AdviseOptions
from rlscale.benchmarks.bench.options import BenchOptions
from rlscale.benchmarks.branch.options import BranchOptions
from rlscale.benchmarks.commands import COMMANDS
from rlscale.benchmarks.commands.compare import CompareOptions
from rlscale.benchmarks.commands.demo import DemoOptions
from rlscale.benchmarks.commands.play import PlayOptions
from rlscale.benchmarks.commands.report import ReportOptions
from rlscale.benchmarks.commands.runs import RunsOptions
from rlscale.benchmarks.options import parse, parse_train
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.benchmarks.workers.options import WorkersOptions

ROOT = Path(__file__).parent.parent
HISTORY = {"log.md", "decisions.md", "preregistration.md"}  # also name commands that were
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *(p for p in (ROOT / "docs").glob("*.md") if p.name not in HISTORY)]
LINE = re.compile(r"^(?: {4,}|\$ )(?:\.venv/bin/)?(rlscale [a-z].*)$", re.MULTILINE)
INLINE = re.compile(r"`(rlscale [a-z][^`]*)`")
OPTIONS = {
    "advise": AdviseOptions,
    "bench": BenchOptions,
    "branch": BranchOptions,
    "compare": CompareOptions,
    "demo": DemoOptions,
    "play": PlayOptions,
    "report": ReportOptions,
    "runs": RunsOptions,
    "sweep": SweepOptions,
    "train": TrainConfig,
    "workers": WorkersOptions,
}


def commands_of(page: Path) -> list[list[str]]:
    """The words after `rlscale`, of every command that is whole."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = [*LINE.findall(text), *(" ".join(said.split()) for said in INLINE.findall(text))]
    said = [re.sub(r" \[[^]]*\]", "", one) for one in found if not re.search("…|[<>|]", one)]  # [what may be added]
    return [shlex.split(one, comments=True)[1:] for one in said]


TYPED = sorted({(page.relative_to(ROOT).as_posix(), *words) for page in PAGES for words in commands_of(page)})


def test_commands_are_found():
    assert len(TYPED) > 100
    assert ("README.md", "sweep", "minatar/breakout", "--report") in TYPED
    assert {name for _, name, *_ in TYPED} == set(COMMANDS)


@pytest.mark.parametrize("typed", TYPED, ids=" ".join)
def test_a_command_of_a_page_is_taken(typed):
    _, name, *words = typed
    assert name in COMMANDS
    words = ["classic/cartpole" if word == "TASK" or re.fullmatch(r"\w+:\w+", word) else word for word in words]
    if not words or "--help" in words or name == "tasks":
        return
    if name == "train" and "--resume" not in words:
        parse_train(words)
        return
    options = parse(OPTIONS[name], name, words)
    if isinstance(options, SweepOptions):
        for task in options.tasks:
            if not task.startswith("supervised/"):  # whose data may not be here
                make_plan(task, options)
