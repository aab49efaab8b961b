"""The noise measurement for RLlib jobs: `measure_noise(config, run)` adds it to a PPO configuration.

from rlscale.rllib import measure_noise

measure_noise(config, run="runs/my-job", every=4)  # then build and train as before
"""

from rlscale.errors import UsageError

try:
    from rlscale.agents.rllib import measure_noise
except ImportError as error:
    raise UsageError("rlscale.rllib", f"RLlib cannot be imported ({error})", "Run: pip install 'ray[rllib]'") from None

__all__ = ["measure_noise"]
