"""The PPO loss, per observation and per head. A2C is the same loss without the clip. Pure functions of tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["HEADS", "Losses", "log_probability", "ppo_losses"]

HEADS = ("policy", "value", "entropy")


class Losses(NamedTuple):
    """Losses of single observations, (n,) each, that carry a gradient; and diagnostics, (n,) too, that do not.

    `joint` = policy + value_coef · value - entropy_coef · entropy is what the optimizer minimizes; `entropy` is the bonus
    itself, so its gradient points uphill.
    """

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    joint: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


@torch.no_grad()
def log_probability(logits: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Log-probability (n,) of each action (n,) under logits (n, actions); carries no gradient."""
    return torch.log_softmax(logits, dim=-1).gather(1, action[:, None]).squeeze(1)


def ppo_losses(
    *,
    logits: torch.Tensor,
    value: torch.Tensor,
    action: torch.Tensor,
    behaviour_log_prob: torch.Tensor,
    advantage: torch.Tensor,
    value_target: torch.Tensor,
    clip: float | None,
    value_coef: float,
    entropy_coef: float,
    proximal_log_prob: torch.Tensor | None = None,
    entropy_logits: torch.Tensor | None = None,
) -> Losses:
    """Clipped surrogate (Schulman et al. 2017, equation 7), squared value error and entropy bonus, of every observation.

    With ρ = π(a|s) / π_behaviour(a|s): policy = -min(ρ A, clip(ρ, 1-ε, 1+ε) A), or -ρ A where `clip` is None, whose
    gradient at ρ = 1 is that of A2C's -A log π. value = ½ (V - target)². How observations are averaged, and which of them
    count, is the caller's.

    Where the policy that acted is older than the one the update starts from, a clip about the former would count what had
    been learned since as part of this update's change, and cut it short. Then the clip is about the proximal policy, and the
    behaviour policy enters as an importance weight (Hilton, Cobbe and Schulman 2021): ρ = π / π_proximal, weighted by
    π_proximal / π_behaviour.

    Args:
        logits: (n, actions) float32.
        value, behaviour_log_prob, advantage, value_target: (n,) float32.
        action: (n,) int64.
        clip: ε, or None for no clip.
        value_coef: weight of the value loss in the joint loss.
        entropy_coef: weight of the entropy bonus.
        proximal_log_prob: (n,) float32, of the action under the policy that the update started from; None where that acted.
        entropy_logits: `logits` once more, (n, actions), for the entropy alone: the joint loss's gradient there is then the
            entropy's share, and that in `logits` the policy's. None: nobody needs them apart.

    Returns:
        `Losses`.
    """
    n = len(action)
    assert logits.ndim == 2, logits.shape
    assert len(logits) == n, (logits.shape, n)
    for array in (value, behaviour_log_prob, advantage, value_target):
        assert array.shape == (n,), (array.shape, n)
    log_probs = torch.log_softmax(logits, dim=-1)
    log_ratio = log_probs.gather(1, action[:, None]).squeeze(1) - behaviour_log_prob
    ratio = log_ratio.exp()
    gain = ratio * advantage
    change = ratio if proximal_log_prob is None else (log_ratio + behaviour_log_prob - proximal_log_prob).exp()
    if clip is not None:
        importance = 1.0 if proximal_log_prob is None else (proximal_log_prob - behaviour_log_prob).exp()
        gain = torch.minimum(gain, change.clamp(1 - clip, 1 + clip) * importance * advantage)
    policy = -gain
    value_loss = 0.5 * (value - value_target).square()
    if entropy_logits is not None:
        log_probs = torch.log_softmax(entropy_logits, dim=-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    joint = policy + value_coef * value_loss - entropy_coef * entropy
    with torch.no_grad():
        approx_kl = ratio - 1 - log_ratio
        clip_fraction = ((change - 1).abs() > clip).float() if clip is not None else torch.zeros_like(ratio)
    return Losses(policy, value_loss, entropy, joint, approx_kl, clip_fraction)
