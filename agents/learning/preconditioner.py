"""Adam's preconditioner, by which its noise scale weighs the parameters."""

from collections.abc import Sequence

import torch

__all__ = ["adam_metric"]


@torch.no_grad()
def adam_metric(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The diagonal of P = 1 / (√v̂ + ε) before the next step, where v̂ is Adam's bias-corrected mean of squared gradients.

    Adam steps by -P m̂, so tr(PΣ) / GᵀPG is the noise scale of the step that it makes.

    Args:
        optimizer: whose state it is.
        parameters: of a network, in the order that is wanted.

    Returns:
        (P,), all parameters one after another; None before the first step, and for another optimizer than Adam.
    """
    if not isinstance(optimizer, torch.optim.Adam):
        return None
    settings = {parameter: group for group in optimizer.param_groups for parameter in group["params"]}
    pieces = []
    for parameter in parameters:
        if "step" not in optimizer.state.get(parameter, {}):
            return None
        state, group = optimizer.state[parameter], settings[parameter]
        correction = (1 - group["betas"][1] ** torch.as_tensor(state["step"]).double()).sqrt()
        root = state["exp_avg_sq"].reshape(-1).sqrt()  # √v̂ is this by the correction
        pieces.append(torch.div(correction, root.add_(group["eps"] * correction), out=root))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
