"""The gain of a batch size that follows the noise scale along a run."""

from typing import Any

import numpy as np

__all__ = ["adaptive_gain"]


def adaptive_gain(noise_scales: Any, full_batch_steps: Any) -> float:
    """Gain γ of adapting the batch size along a run: 1 for a constant noise scale, else less.

    With B(s) = √(r·𝓑(s)) the frontier becomes (S/S_min - 1)(E/E_min - 1) = γ, where the best constant batch size has 1:

        γ = (∫√𝓑 ds)² / (S_min·E_min), S_min = ∫ds, E_min = ∫𝓑 ds

    The smaller γ is, the more there is to win: the steps and the observations beyond the fewest shrink by √γ each.

    Source: McCandlish, Kaplan, Amodei et al., arXiv:1812.06162, appendix D.

    Args:
        noise_scales: (N,) 𝓑 in observations, one number for every stretch of the run; zero or more.
        full_batch_steps: (N,) ds, the full-batch steps that each stretch made. An optimizer step at batch size B makes
            1 / (1 + 𝓑/B) of one.

    Raises:
        ValueError: the shapes differ, a number is negative or not finite, or all are zero.
    """
    scale, steps = (np.atleast_1d(np.asarray(v, dtype=np.float64)) for v in (noise_scales, full_batch_steps))
    if scale.shape != steps.shape or scale.ndim != 1:
        raise ValueError("noise_scales and full_batch_steps must be vectors of one length")
    for name, values in (("noise_scales", scale), ("full_batch_steps", steps)):
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(f"{name} must be finite and not negative")
    s_min, e_min = float(steps.sum()), float((scale * steps).sum())
    if s_min == 0 or e_min == 0:
        raise ValueError("noise_scales, full_batch_steps: no stretch has both a noise scale and steps")
    return float((np.sqrt(scale) * steps).sum()) ** 2 / (s_min * e_min)
