"""`rlscale advise`: within minutes, which batch size and how many actors a task is worth here, and what more machines would give.

`run` trains for a minute and measures a few fleets, with what `rlscale train` and `rlscale workers` use; `job` reads how a run
learned, or a job of another library; `fastest` finds the mini-batch with which a run ends soonest here, `settings` turns the
predicted critical batch size into settings of PPO and into lines for three libraries; `options` holds the flags. What a run's
noise says is in `rlscale.analysis.reading`, what more machines give in `rlscale.sizing.machines`, words and page in
`rlscale.report.advice_page`.

An advice is a prediction. The measurement is `rlscale sweep`.
"""

from .options import AdviseOptions
from .run import run_advise

__all__ = ["AdviseOptions", "run_advise"]
