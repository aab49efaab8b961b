"""The noise measurement for Stable-Baselines3 jobs: `NoiseCallback(run)` is given to `learn`.

from rlscale.sb3 import NoiseCallback

model.learn(100_000, callback=NoiseCallback("runs/my-job"))
"""

from rlscale.errors import UsageError

try:
    from rlscale.agents.sb3 import NoiseCallback
except ImportError as error:
    problem = f"Stable-Baselines3 cannot be imported ({error})"
    raise UsageError("rlscale.sb3", problem, "Run: pip install 'rlscale[sb3]'") from None

__all__ = ["NoiseCallback"]
