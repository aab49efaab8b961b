"""Adam's preconditioner, by which its noise scale weighs the parameters."""

from collections.abc import Sequence

import torch

__all__ = ["adam_metric"]


@torch.no_grad()
def adam_metric(optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The diagonal of P = 1 / (√v̂ + ε) before the next step, where v̂ is Adam's bias-corrected mean of squared gradients.

    Adam steps by -P m̂, so tr(PΣ) / GᵀPG is the noise scale of the step that it makes.

    Args:
        optimizers: whose state it is; several that have the parameters between them.
        parameters: of a network, in the order that is wanted.

    Returns:
        (P,), all parameters one after another, 1 for one that never had a gradient. None before the first step, where the
        optimizers do not have all of them, and where one is no Adam.
    """
    if not all(isinstance(optimizer, torch.optim.Adam) for optimizer in optimizers):
        return None
    settings = {p: group for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    known = {p: state for optimizer in optimizers for p, state in optimizer.state.items()}
    states = [known.get(parameter, {}) for parameter in parameters]
    if not any("step" in state for state in states) or any(parameter not in settings for parameter in parameters):
        return None
    pieces = []
    for parameter, state in zip(parameters, states, strict=True):
        if "step" not in state:
            pieces.append(torch.ones_like(parameter).reshape(-1))
            continue
        group = settings[parameter]
        correction = (1 - group["betas"][1] ** torch.as_tensor(state["step"]).double()).sqrt()
        squares = state.get("max_exp_avg_sq", state["exp_avg_sq"])  # the former with AMSGrad
        root = squares.reshape(-1).sqrt()  # √v̂ is this by the correction
        pieces.append(torch.div(correction, root.add_(group["eps"] * correction), out=root))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
