"""What a learner reads of fragments, and one plain gradient of it, for references that a test computes by itself."""

import numpy as np
import torch

from rlscale.agents.learning.batch import arrange_slots
from rlscale.agents.learning.frames import Positions
from rlscale.agents.learning.losses import ppo_losses


def read_batch(learner, fragments, iteration=0):
    """The batch that the learner has begun with these fragments, as it would learn from it in `finish`."""
    slots = arrange_slots([f.group for f in fragments], fragments[0].environments)
    learner.begin(slots, iteration)
    return learner._read(list(zip(slots, fragments, strict=True)))


def whole_gradient(learner, batch, head="joint"):
    """Reference: one plain backward pass over all valid observations at once, from a loss to all that it trains."""
    u = learner._config.update
    everything = np.arange(batch.steps * batch.environments)
    output = learner.network(batch.observations(Positions.of(everything, torch.device("cpu"))))
    losses = ppo_losses(
        policy=learner.network.distribution(output.policy),
        value=output.value,
        action=batch.action,
        behaviour_log_prob=batch.log_prob,
        advantage=batch.advantage,
        value_target=batch.target,
        clip=u.clip,
        value_coef=u.value_coef,
        entropy_coef=u.entropy_coef,
    )
    network, of, loss = learner.network, [learner.network], head
    if head == "policy_last_layer":
        of, loss = [network.policy_head], "policy"
    elif head == "joint_policy_parameters":
        of, loss = [network.trunk, network.policy_head], "joint"
    mean = getattr(losses, loss)[batch.valid].mean()
    grads = torch.autograd.grad(mean, [p for part in of for p in part.parameters()], materialize_grads=True)
    return torch.cat([g.reshape(-1) for g in grads])
