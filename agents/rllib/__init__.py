"""The noise measurement inside an RLlib job, and the record that the job keeps of it.

What lives here: `measure_noise`, which adds the measurement to a PPO configuration; the mixin of RLlib's learner that measures
(`measure`); and the callback that writes one row of the record after every `train()` (`record`). Users import it as
`from rlscale.rllib import measure_noise`. Importing this folder imports RLlib.
What does not: RLlib as a competitor in speed measurements, which is in `rlscale.benchmarks.measurements.peers`.

Start with `MeasuresNoise.measure_if_due` in `measure`.
"""

from .measure import MeasuresNoise, NoiseLearner, measure_noise
from .record import KeepsRecord

__all__ = ["KeepsRecord", "MeasuresNoise", "NoiseLearner", "measure_noise"]
