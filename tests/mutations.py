"""Would the tests notice a wrong formula? Draws formulas and conditions of the package, breaks one at a time, and runs the tests.

    python tests/mutations.py [--seed N] [--draws N] [--mirrored] [--out FILE]

A formula (an arithmetic expression that is part of no larger one) is doubled, halved or negated; a condition (of `if`, `while`, a
conditional expression or a comprehension) is negated. The draw depends on the seed and the package's source alone. Each broken
copy meets its mirrored tests first (`tests/agents/learning` for `agents/learning`, the module's own file before the others), then
all tests of `make test`; the first failure ends it. What no test notices is listed at the end: a test is missing there.

Left out are the scripts in `benchmarks/measurements`, which nothing else imports and whose results are read by people.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLOORS = ("rlscale", "envs", "agents", "benchmarks")
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.MatMult)
GUARD = "__name__ == '__main__'"
WAYS = {"doubled": "2 * ({})", "halved": "({}) / 2", "negated": "-({})", "not": "not ({})"}


def modules() -> list[Path]:
    """The package's modules, relative to the checkout, each once."""
    found = (path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))
    kept = (path for path in found if not any(parent.is_symlink() for parent in path.parents))
    return sorted(path.relative_to(ROOT) for path in kept if "measurements" not in path.parts)


def candidates(path: Path) -> list[tuple[Path, int, int, int, int, str]]:
    """Formulas and conditions of one module: where each begins and ends, and which of the two it is."""
    tree = ast.parse((ROOT / path).read_text())
    inner = {id(child) for node in ast.walk(tree) if is_formula(node) for child in ast.walk(node) if child is not node}
    found = []
    for node in ast.walk(tree):
        if is_formula(node) and id(node) not in inner:
            found.append((node, "formula"))
        if isinstance(node, ast.comprehension):
            found += [(test, "condition") for test in node.ifs]
        elif isinstance(node, ast.If | ast.While | ast.IfExp) and ast.unparse(node.test) not in ("TYPE_CHECKING", GUARD):
            found.append((node.test, "condition"))
    places = {(n.lineno, n.col_offset, n.end_lineno, n.end_col_offset, kind) for n, kind in found}
    return [(path, *place) for place in sorted(places)]


def is_formula(node: ast.AST) -> bool:
    """Arithmetic on numbers, as far as that can be seen: no text, list or path in it."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ARITHMETIC)):
        return False
    if isinstance(node.op, ast.Div) and any(word in ast.unparse(node.left).lower() for word in ("folder", "path", "package")):
        return False
    return not any(
        isinstance(part, ast.JoinedStr | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.ListComp)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in ast.walk(node)
    )


def mutate(source: str, place: tuple[int, int, int, int], way: str) -> tuple[str, str, str]:
    """The module with that place changed, and the place's text before and after."""
    lines = source.encode().split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    first, column, last, end = place
    begin, stop = starts[first - 1] + column, starts[last - 1] + end
    data = source.encode()
    before = data[begin:stop].decode()
    after = "(" + WAYS[way].format(before) + ")"
    return (data[:begin] + after.encode() + data[stop:]).decode(), before, after


def mirrored(path: Path) -> list[list[str]]:
    """Which tests are run, one group after another, until one fails."""
    folder = Path("tests", *path.parts[:-1])
    while not (ROOT / folder).is_dir() or not list((ROOT / folder).glob("test_*.py")):
        folder = folder.parent
    own = [str(p.relative_to(ROOT)) for p in sorted((ROOT / folder).glob(f"test_{path.stem}*.py"))]
    return [group for group in (own, [str(folder)], ["tests"]) if group]


def run_tests(copy: Path, tests: list[str], seconds: float) -> str | None:
    """The first test that fails, or None; a suite that hangs has noticed too."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-m",
        "not long",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-rfE",
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    try:
        done = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return "the tests hang"
    if done.returncode in (0, 5):
        return None
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return said[0].split(" - ")[0] if said else f"pytest ended with {done.returncode}"


def main() -> None:
    """Draw, break, test, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=15)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1800, help="after which a test run counts as hanging")
    parser.add_argument("--mirrored", action="store_true", help="leave out the run of all tests: fewer are noticed, in less time")
    parser.add_argument("--list", action="store_true", help="only say what is drawn")
    parser.add_argument("--out", type=Path, default=Path("mutations.json"))
    options = parser.parse_args()
    rng = random.Random(options.seed)
    pool = [candidate for path in modules() for candidate in candidates(path)]
    ways = {"condition": ["not"], "formula": ["doubled", "halved", "negated"]}
    drawn = [(candidate, rng.choice(ways[candidate[-1]])) for candidate in rng.sample(pool, options.draws)]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    record = {"seed": options.seed, "commit": commit, "candidates": len(pool), "command": sys.argv, "mutations": []}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".venv*", "__pycache__", "runs", ".*_cache"))
        for (path, first, column, last, end, _), way in drawn:
            source = (ROOT / path).read_text()
            changed, before, after = mutate(source, (first, column, last, end), way)
            print(f"{path}:{first}  {before!r} {way}", flush=True)
            if options.list:
                continue
            (copy / path).write_text(changed)
            begin, noticed = time.perf_counter(), None
            for group in mirrored(path)[: -1 if options.mirrored else None]:
                noticed = run_tests(copy, group, options.seconds)
                if noticed is not None:
                    break
            (copy / path).write_text(source)
            entry = {"module": str(path), "line": first, "before": before, "after": after, "noticed": noticed}
            record["mutations"].append({**entry, "seconds": round(time.perf_counter() - begin, 1)})
            print(f"    {noticed or 'NOT NOTICED'}", flush=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
    survivors = [m for m in record["mutations"] if m["noticed"] is None]
    if not options.list:
        print(f"{len(drawn) - len(survivors)} of {len(drawn)} noticed")


if __name__ == "__main__":
    main()
