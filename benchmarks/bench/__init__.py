"""`rlscale bench`: a fixed suite that measures a machine or a Ray cluster, and the comparison of two of its results.

`suite` says what one round measures: fleets of Ray actors, the learner alone, and whole iterations, always on Atari Pong.
`compare` reads two result files and says which rates changed by more than the rounds themselves scatter. `options` holds what can
be typed; `run` makes the rounds and writes the result file. How one fleet is measured is in
`rlscale.benchmarks.workers.calibration`.

The suite has a version: change it whenever what is measured changes. Start with `suite.measure_round`.
"""

from .compare import compare_files, rate_ratio
from .options import BenchOptions
from .run import run_bench
from .suite import measure_round

__all__ = ["BenchOptions", "compare_files", "measure_round", "rate_ratio", "run_bench"]
