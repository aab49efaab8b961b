"""The PPO loss of each observation, with its policy, value and entropy parts. A2C is the same loss without the clip."""

from typing import NamedTuple

import torch

from ..networks import Distribution

__all__ = ["HEADS", "Losses", "ppo_losses"]

HEADS = ("policy", "value", "entropy")


class Losses(NamedTuple):
    """Losses of single observations, (n,) each, and two diagnostics, (n,) each, which carry no gradient.

    The optimizer minimizes `joint` = policy + value_coef · value - entropy_coef · entropy. `entropy` is the bonus itself, so its
    gradient points uphill. `approx_kl` and `clip_fraction` are the diagnostics.
    """

    policy: torch.Tensor
    value: torch.Tensor
    entropy: torch.Tensor
    joint: torch.Tensor
    approx_kl: torch.Tensor
    clip_fraction: torch.Tensor


def ppo_losses(
    *,
    policy: Distribution,
    value: torch.Tensor,
    action: torch.Tensor,
    behaviour_log_prob: torch.Tensor,
    advantage: torch.Tensor,
    value_target: torch.Tensor,
    clip: float | None,
    value_coef: float,
    entropy_coef: float,
    proximal_log_prob: torch.Tensor | None = None,
    entropy_policy: Distribution | None = None,
) -> Losses:
    """Clipped surrogate (Schulman et al. 2017, equation 7), squared value error and entropy bonus, of every observation.

    With ρ = π(a|s) / π_behaviour(a|s): policy = -min(ρ A, clip(ρ, 1-ε, 1+ε) A), or -ρ A where `clip` is None, whose
    gradient at ρ = 1 is that of A2C's -A log π. value = ½ (V - target)². The caller averages over observations and leaves out
    those that are masked.

    With lag, the policy that acted is older than the one that the update starts from (the proximal policy). A clip around the
    behaviour policy would then limit what earlier updates changed as well. So the clip is around the proximal policy,
    ρ = π / π_proximal, and the behaviour policy enters as an importance weight π_proximal / π_behaviour (Hilton, Cobbe and
    Schulman 2021, arXiv:2110.00641). The proximal policy of PPO-EWMA is an average of past ones (`AveragedPolicy`).

    Args:
        policy: the present policy's distribution at the n observations.
        value, behaviour_log_prob, advantage, value_target: (n,) float32.
        action: (n,) int64, or (n, k) float32.
        clip: ε, or None for no clip.
        value_coef: weight of the value loss in the joint loss.
        entropy_coef: weight of the entropy bonus.
        proximal_log_prob: (n,) float32, of the action under the proximal policy; None if that policy acted.
        entropy_policy: the same distribution made of another view of its parameters, for the entropy alone. The joint loss's
            gradient in that view is then the entropy's share, and in the other the policy's. None if they need not be separate.
    """
    n = len(action)
    for array in (value, behaviour_log_prob, advantage, value_target):
        assert array.shape == (n,), (array.shape, n)
    log_prob = policy.log_prob(action)
    assert log_prob.shape == (n,), (log_prob.shape, n)
    log_ratio = log_prob - behaviour_log_prob
    ratio = log_ratio.exp()
    gain = ratio * advantage
    change = ratio if proximal_log_prob is None else (log_ratio + behaviour_log_prob - proximal_log_prob).exp()
    if clip is not None:
        importance = 1.0 if proximal_log_prob is None else (proximal_log_prob - behaviour_log_prob).exp()
        gain = torch.minimum(gain, change.clamp(1 - clip, 1 + clip) * importance * advantage)
    policy_loss = -gain
    value_loss = 0.5 * (value - value_target).square()
    entropy = (policy if entropy_policy is None else entropy_policy).entropy()
    joint = policy_loss + value_coef * value_loss - entropy_coef * entropy
    with torch.no_grad():
        approx_kl = ratio - 1 - log_ratio
        clip_fraction = ((change - 1).abs() > clip).float() if clip is not None else torch.zeros_like(ratio)
    return Losses(policy_loss, value_loss, entropy, joint, approx_kl, clip_fraction)
