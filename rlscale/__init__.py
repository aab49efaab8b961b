"""Measures how far a reinforcement-learning task can be parallelized: its gradient noise scale and its critical batch size.

    estimate, errors, text                  what every figure and every complaint looks like
    noise, crossing, frontier               the mathematics, without files, Ray or environments
    records, analysis                       what a run and a sweep write, and the results that follow from it
    sizing, report                          how many workers and at what cost; pages and charts
    cpus, control_groups, returns           what this process may use; the return that is shown everywhere
    rllib, sb3                              the noise measurement inside other libraries' jobs
    envs, agents, benchmarks                environments; training; the command, the sweeps and the measurements

The names below are those to start with. Each is imported when it is first used, because every rollout worker imports this
module: neither it nor one of the names loads PyTorch, Ray or Altair.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .analysis import compare
    from .crossing import find_crossing
    from .estimate import Estimate
    from .frontier import fit as fit_frontier
    from .noise import BlockStatistics, block_statistics, noise_scale, pool, run_average
    from .records import read_run, read_sweep

__all__ = [
    "BlockStatistics",
    "Estimate",
    "block_statistics",
    "compare",
    "find_crossing",
    "fit_frontier",
    "noise_scale",
    "pool",
    "read_run",
    "read_sweep",
    "run_average",
]
__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(["BlockStatistics", "block_statistics", "noise_scale", "pool", "run_average"], "noise"),
    "Estimate": "estimate",
    "compare": "analysis.comparison",
    "find_crossing": "crossing",
    "fit_frontier": "frontier",
    "read_run": "records.run",
    "read_sweep": "records.sweep",
}

_PLUG_INS = ("rllib", "sb3")  # whose libraries need not be installed
_ROOMS = (
    "agents",
    "analysis",
    "benchmarks",
    "control_groups",
    "cpus",
    "crossing",
    "envs",
    "errors",
    "estimate",
    "frontier",
    "noise",
    "records",
    "report",
    "returns",
    "sizing",
    "text",
)

if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> object:
        """One of the names above, on its first use (PEP 562).

        Raises:
            AttributeError: there is none, or it is a plug-in whose library is not installed.
        """
        if name in _ROOMS:
            return import_module(f".{name}", __name__)
        if name in _PLUG_INS:
            from .errors import UsageError

            try:
                return import_module(f".{name}", __name__)
            except UsageError as error:
                raise AttributeError(str(error)) from None
        if name not in _HOMES:
            raise AttributeError(f"module 'rlscale' has no attribute {name!r}")
        module = import_module(f".{_HOMES[name]}", __name__)
        found = globals()[name] = getattr(module, "fit" if name == "fit_frontier" else name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_ROOMS})
