"""Where the `rlscale` command starts: makes sure that its four packages are its own, then hands over to `benchmarks.cli`.

This module alone looks upwards, and only to say clearly when another package called `envs`, `agents` or `benchmarks` stands
before ours; the names are common.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def main() -> int:
    """Run the command; the process exit code."""
    ours = Path(__file__).resolve().parent.parent
    for package in ("envs", "agents", "benchmarks"):
        spec = find_spec(package)
        places = [Path(p).resolve() for p in (spec.submodule_search_locations or [])] if spec else []
        if ours / package not in places[:1]:
            found = places[0] if places else (spec.origin if spec else "nowhere")
            print(
                f"rlscale: another package named '{package}' ({found}) stands before rlscale's own. "
                "Run from another folder, or remove it from PYTHONPATH.",
                file=sys.stderr,
            )
            return 2
    return import_module("benchmarks.cli").main()


if __name__ == "__main__":
    sys.exit(main())
