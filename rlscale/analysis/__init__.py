"""From records to results: everything that is computed from the records of runs and sweeps.

For a sweep: its runs as points of the response surface (`rlscale.analysis.points`), the noise scale that predicts the critical
batch size (`rlscale.analysis.predictions`), a row per goal with both (`rlscale.analysis.rows`), several of them side by side
(`rlscale.analysis.comparison`), and the rows as files (`rlscale.analysis.export`). For a single run: smoothed returns, noise
windows and time shares (`rlscale.analysis.summary`), and what its noise says of a batch size (`rlscale.analysis.reading`).
Whether the noise scale predicts the critical batch size: `rlscale.analysis.verdict`, over sweeps as rungs
(`rlscale.analysis.rungs`), with the paper's own figures in `rlscale.analysis.paper`.

The estimators themselves are in `rlscale.noise` and `rlscale.frontier`, records are read in `rlscale.records`, and pages are
written in `rlscale.report`. Start with `compare`.
"""

from .comparison import Comparison, compare
from .points import SurfacePoint, fit_points, surface_points
from .predictions import Prediction
from .rows import Row

__all__ = ["Comparison", "Prediction", "Row", "SurfacePoint", "compare", "fit_points", "surface_points"]
