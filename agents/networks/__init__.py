"""Policy-and-value networks and their layers.

What lives here: the four networks by name (`make_network`), their copy for acting (`ActingNetwork`), the distributions over
actions that their policy head speaks of (`Categorical`, `DiagonalGaussian`), one flat vector of all parameters
(`flatten_parameters`), and layers that compute the gradients of several blocks of observations in one pass.
What does not: the loss and the optimizer, which are in `rlscale.agents.learning`.

Start with `PolicyValueNet.forward` in `policy_value`; read `layers` for how block gradients come about and why the layers
fold and pack their data.
"""

from .distributions import Categorical, DiagonalGaussian, Distribution, distribution_of
from .layers import ForwardTape, Layer, LayerCall
from .policy_value import (
    PARAMETER_ORDER,
    ActingNetwork,
    PolicyOutput,
    PolicyValueNet,
    columns_of,
    flatten_parameters,
    make_network,
    policy_columns,
)

__all__ = [
    "PARAMETER_ORDER",
    "ActingNetwork",
    "Categorical",
    "DiagonalGaussian",
    "Distribution",
    "ForwardTape",
    "Layer",
    "LayerCall",
    "PolicyOutput",
    "PolicyValueNet",
    "columns_of",
    "distribution_of",
    "flatten_parameters",
    "make_network",
    "policy_columns",
]
