"""From records to results: everything that is computed from the records of runs and sweeps.

For a sweep: the best learning rate of each batch size (`rlscale.analysis.rates`, also used by the sweep itself), the runs that
make the frontier (`rlscale.analysis.sizes`), the noise scale that predicts it (`rlscale.analysis.predictions`), and a row per
goal with both (`rlscale.analysis.comparison`). For a single run: smoothed returns, noise windows and time shares
(`rlscale.analysis.summary`).

The estimators themselves are in `rlscale.noise` and `rlscale.frontier`, records are read in `rlscale.records`, and pages are
written in `rlscale.report`. Start with `compare`.
"""

from .comparison import Comparison, Row, compare
from .predictions import Prediction
from .rates import RateChoice, choose_rate
from .sizes import SizeRuns, size_runs

__all__ = ["Comparison", "Prediction", "RateChoice", "Row", "SizeRuns", "choose_rate", "compare", "size_runs"]
