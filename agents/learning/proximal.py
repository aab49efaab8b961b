"""`AveragedPolicy`: the proximal policy of PPO-EWMA, an exponentially weighted average of past parameters."""

import copy
from typing import Any

import torch

from ..devices import upload
from ..networks import PolicyValueNet, flatten_parameters

__all__ = ["AveragedPolicy"]


class AveragedPolicy:
    """A network whose parameters are the average of all that a run has had, the latest weighing most.

    After k optimizer steps they are Σ_j β^(k-j) θ_j / Σ_j β^(k-j), j from 0 to k: θ_0 are the parameters at the start, and the
    division keeps the average from leaning towards zero. β = age / (age + 1) has its center of mass, 1/(1-β) - 1, at `age`
    (Hilton, Cobbe and Schulman 2021, arXiv:2110.00641, section 4).

    Args:
        network: begin with a copy of it.
        age: mean age of the parameters in the average once the run is long, in optimizer steps; 0 holds the latest alone.

    Attributes:
        network: the policy (and value) network with the averaged parameters.
    """

    def __init__(self, network: PolicyValueNet, age: float) -> None:
        self.network = copy.deepcopy(network)
        self._parameters = flatten_parameters(self.network)
        self._decay = age / (age + 1)
        self._weight = 1.0  # Σ_j β^(k-j)

    @torch.no_grad()
    def add(self, parameters: torch.Tensor) -> None:
        """Take in the parameters (P,) after an optimizer step."""
        self._weight = self._decay * self._weight + 1
        self._parameters.lerp_(parameters, 1 / self._weight)

    def get_state(self) -> dict[str, Any]:
        """The average and its weight, for a checkpoint; a copy, where the network is."""
        return {"parameters": self._parameters.clone(), "weight": self._weight}

    def set_state(self, state: dict[str, Any] | None, present: torch.Tensor) -> None:
        """Continue from a state of `get_state`; None, of a run that had no average so far, begins with the present parameters."""
        known = state or {"parameters": present.detach().cpu(), "weight": 1.0}
        self._parameters.copy_(upload(known["parameters"], self._parameters.device))
        self._weight = known["weight"]
