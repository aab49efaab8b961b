"""Generalized advantage estimation, as a pure function of arrays."""

import numpy as np

__all__ = ["generalized_advantages"]


def generalized_advantages(
    *,
    reward: np.ndarray,
    value: np.ndarray,
    bootstrap_value: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    discount: float,
    gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and value targets of T steps in N environments (Schulman et al. 2016, equation 16).

    δ_t = r_t + γ V(s_{t+1}) (1 - terminated_t) - V(s_t);  A_t = δ_t + γ λ (1 - ended_t) A_{t+1}

    A terminated step has no future value. A truncated step has one: its next observation is the episode's true last one
    (environments reset on the step after), so V(s_{t+1}) estimates it, and only the sum over later steps stops. For the last
    step of the fragment `bootstrap_value` is the next value. The step after a true end only resets the environment: its own
    advantage is meaningless and must be masked, but no other step's advantage depends on it.

    Args:
        reward: (T, N), clipped where the task clips.
        value: (T, N), V(s_t) by the behaviour policy's network.
        bootstrap_value: (N,), V(s_T).
        terminated: (T, N) bool, the return ends with this step.
        truncated: (T, N) bool, the episode was cut short at this step.
        discount: γ.
        gae_lambda: λ.

    Returns:
        (advantage, value_target), both (T, N) float32; value_target = advantage + value.

    Raises:
        ValueError: the shapes differ.
    """
    steps, envs = reward.shape
    if not value.shape == terminated.shape == truncated.shape == reward.shape or bootstrap_value.shape != (envs,):
        raise ValueError("reward, value, terminated and truncated must be (T, N), bootstrap_value (N,)")
    next_value = np.concatenate([value[1:], bootstrap_value[None]])
    delta = reward + discount * next_value * ~terminated - value
    carry = discount * gae_lambda * ~(terminated | truncated)
    advantage = np.empty((steps, envs), dtype=np.float64)
    following = np.zeros(envs)
    for t in range(steps - 1, -1, -1):
        following = delta[t] + carry[t] * following
        advantage[t] = following
    return advantage.astype(np.float32), (advantage + value).astype(np.float32)
