"""`Rung`: one sweep of the ladder, as `rungs.toml` spells it. Nothing is run here."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["FILE", "Rung", "read_rungs"]

FILE = Path(__file__).parent / "rungs.toml"


@dataclass(frozen=True)
class Rung:
    """One sweep.

    Attributes:
        name: of its folder.
        task: that is swept.
        role: `task` counts for how well the noise scale predicts; `development` tasks were looked at before and are scored apart;
            a `control` has a known answer; an `intervention` moves the critical batch size by a known amount.
        base: the rung that an intervention is compared with; None for any other.
        options: of `rlscale sweep`, as they are typed, by name.
    """

    name: str
    task: str
    role: str
    base: str | None
    options: Mapping[str, str]

    def command(self, out: str) -> list[str]:
        """The words of its command, without the interpreter's."""
        words = [word for name, value in self.options.items() for word in (f"--{name}", *value.split())]
        return ["sweep", self.task, *words, "--out", out, "--no-report"]


def read_rungs(path: Path = FILE) -> tuple[str, list[Rung]]:
    """The commit that new rungs run from, and all rungs in their order.

    Raises:
        ValueError: a rung names no protocol that is there, or repeats one of its options or another rung's name.
    """
    read: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    rungs: list[Rung] = []
    for entry in read["rung"]:
        name, task, role, protocol = (entry.pop(key) for key in ("name", "task", "role", "protocol"))
        base = entry.pop("base", None)
        common = read["protocol"].get(protocol)
        if common is None:
            raise ValueError(f"rung {name}: there is no protocol {protocol!r}")
        if twice := set(common) & set(entry):
            raise ValueError(f"rung {name}: {', '.join(sorted(twice))} is its protocol's")
        if name in {rung.name for rung in rungs}:
            raise ValueError(f"rung {name} is there twice")
        if base is not None and base not in {rung.name for rung in rungs}:
            raise ValueError(f"rung {name}: there is no rung {base!r} before it")
        rungs.append(Rung(name, task, role, base, {**common, **entry}))
    return read["code"], rungs
