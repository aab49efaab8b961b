"""The frontier between optimizer steps and observations, and its critical batch size, from runs at several batch sizes.

Start with `fit_surface`: it takes the batch size, learning rate and optimizer steps of every run of a sweep, and returns a
`Surface` with intervals, the free exponent and the dependence on the range of sizes. `fit` does the same for runs whose learning
rate is chosen already, and returns a `Frontier`. `adaptive_gain` says what a batch size that changes along a run could win.

    runs        the runs as they were given, checked: `Point`
    surface     the frontier over batch size and learning rate: `fit_surface`, `Surface`
    response    the likelihood of all runs around that surface
    profile     how far that likelihood lets a figure be moved
    hyperbola   the curve, its fit and the result: `fit`, `Frontier`
    likelihood  the likelihood of runs of which some missed their goal, and how far an interval reaches
    advice      which batch size to add where the runs do not identify the frontier
    branches    the local critical batch size, from short branches of one run: `fit_branches`, `LocalFrontier`
    adaptive    the gain of an adaptive batch size

Which runs to make is decided by `rlscale.benchmarks.sweep`; `rlscale.analysis` picks those that a fit uses.
"""

from .adaptive import adaptive_gain
from .branches import LocalFrontier, fit_branches
from .hyperbola import Frontier, fit
from .runs import Point
from .surface import STOPPED_CONFIDENCE, Surface, fit_surface

__all__ = [
    "STOPPED_CONFIDENCE",
    "Frontier",
    "LocalFrontier",
    "Point",
    "Surface",
    "adaptive_gain",
    "fit",
    "fit_branches",
    "fit_surface",
]
