"""`kind_of`: what a record is of, which its settings alone tell."""

from collections.abc import Mapping
from typing import Any, Literal

__all__ = ["Kind", "kind_of"]

Kind = Literal["training", "supervised", "rllib", "sb3"]


def kind_of(config: Mapping[str, Any]) -> Kind:
    """Reinforcement learning of our own, learning from examples, or a job of RLlib or of Stable-Baselines3.

    Args:
        config: the settings in a run's manifest or a sweep's plan. Those of another library's job are under its name; of our own
            alone reinforcement learning makes rollouts.
    """
    if "rllib" in config:
        return "rllib"
    if "sb3" in config:
        return "sb3"
    return "training" if "rollout" in config else "supervised"
