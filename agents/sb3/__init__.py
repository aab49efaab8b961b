"""The noise measurement inside a Stable-Baselines3 job, and the record that the job keeps of it.

What lives here: `NoiseCallback`, which is given to `learn` and writes the record (`callback`), and the measurement that it makes
of every so many-th rollout (`measure`). Users import it as `from rlscale.sb3 import NoiseCallback`. Importing this folder imports
Stable-Baselines3.
What does not: Stable-Baselines3 as a competitor in speed measurements, which is in `rlscale.benchmarks.measurements.peers`.

Start with `NoiseCallback._on_rollout_end` in `callback`.
"""

from .callback import NoiseCallback
from .measure import deal_rollout, losses_of, measure_rollout

__all__ = ["NoiseCallback", "deal_rollout", "losses_of", "measure_rollout"]
