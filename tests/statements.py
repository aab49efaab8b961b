"""How large the house is: Python files, statements, lines and the longest file of every folder.

    python tests/statements.py [FOLDER ...]

Statements are counted by parsing; docstrings and comments are none.
"""

import ast
import sys
from pathlib import Path

FLOORS = ("rlscale", "envs", "agents", "benchmarks")


def statements(source: str) -> int:
    """Statements of a module, nested ones included."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    texts = [n for n in found if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str)]
    return len(found) - len(texts)


def main() -> None:
    """A line for each folder, and their sum."""
    total = [0, 0, 0]
    for top in sys.argv[1:] or FLOORS:
        for folder in (Path(top), *sorted(Path(top).rglob("*/"))):
            linked = any(place.is_symlink() for place in (folder, *folder.parents))
            files = {} if linked else {path: path.read_text() for path in folder.glob("*.py")}
            if not files:
                continue
            lines = {path: len(text.splitlines()) for path, text in files.items()}
            row = [len(files), sum(statements(text) for text in files.values()), sum(lines.values())]
            total = [a + b for a, b in zip(total, row, strict=True)]
            longest = max(lines, key=lambda path: lines[path])
            print(
                f"{folder!s:32}{row[0]:4} files {row[1]:6,} statements {row[2]:7,} lines, longest {longest.name} {lines[longest]}"
            )
    print(f"{'all':32}{total[0]:4} files {total[1]:6,} statements {total[2]:7,} lines")


if __name__ == "__main__":
    main()
