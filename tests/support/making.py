"""Fragments made by hand, and ports that nothing listens at."""

import socket

import numpy as np

from rlscale.agents.rollout.fragments import Fragment
from rlscale.envs import BoxActions


def make_fragment(
    rng: np.random.Generator, steps: int, envs: int, *, features: int = 4, actions: int | BoxActions = 2, **changes
) -> Fragment:
    """A fragment of random numbers for a task with `features` float32 features; no step is a reset unless said."""
    box = isinstance(actions, BoxActions)
    value = rng.normal(size=(steps, envs)).astype(np.float32)
    arrays = {
        "frames": rng.normal(size=(steps, envs, features)).astype(np.float32),
        "action": rng.normal(size=(steps, envs, len(actions))).astype(np.float32)
        if box
        else rng.integers(0, actions, (steps, envs)),
        "reward": rng.normal(size=(steps, envs)).astype(np.float32),
        "clipped_reward": rng.normal(size=(steps, envs)).astype(np.float32),
        "terminated": np.zeros((steps, envs), dtype=bool),
        "truncated": np.zeros((steps, envs), dtype=bool),
        "reset": np.zeros((steps, envs), dtype=bool),
        "log_prob": np.full((steps, envs), -1.4 * len(actions) if box else -np.log(actions), dtype=np.float32),
        "value": value,
        "bootstrap_value": rng.normal(size=envs).astype(np.float32),
        "episode_return": np.zeros(0, dtype=np.float32),
        "episode_length": np.zeros(0, dtype=np.int64),
    }
    numbers = {"policy_version": 0, "actor": 0, "group": 0, "generation": 0, "index": 0, "seconds": 0.1}
    made = {**arrays, **numbers, **changes}
    return Fragment(**{"observations": int((~made["reset"]).sum()), **made})


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
