"""What a learner reads of fragments, one plain gradient of it for references that a test computes by itself, and `InThreads`."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from rlscale.agents.learning.batch import arrange_slots
from rlscale.agents.learning.blocks import share_of_columns
from rlscale.agents.learning.frames import Positions
from rlscale.agents.learning.learner import Learner
from rlscale.agents.learning.losses import ppo_losses
from rlscale.agents.learning.remote_learners import _join


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


class InThreads:
    """Several learners in threads of this process: what `RemoteLearners` is, but for Ray, processes and torch.distributed."""

    def __init__(self, config, task):
        self._config, count = config, config.update.learners
        self._meeting, self._owed = threading.Barrier(count), [torch.zeros(0)] * count
        self.learners = [
            Learner(config, task, torch.device("cpu"), False, rank, partial(self._add, rank)) for rank in range(count)
        ]

    def _add(self, rank, total):
        self._owed[rank] = total.clone()
        self._meeting.wait(60)
        everything = sum(self._owed)
        self._meeting.wait(60)
        total.copy_(everything)

    def learn_batch(self, fragments, iteration, learning_rate):
        """The result of the first learner, with the noise of all."""
        slots = arrange_slots([fragment.group for fragment in fragments], fragments[0].environments)

        def learn(rank):
            mine = share_of_columns(self._config, rank, self._config.rollout.environments)
            read = [number for number, slot in enumerate(slots) if set(slot.columns) & set(mine)]
            learner = self.learners[rank]
            learner.begin(slots, iteration)
            for number in read:
                learner.accept(fragments[number], slots[number])
            return learner.finish(learning_rate)

        with ThreadPoolExecutor(len(self.learners)) as threads:
            results = list(threads.map(learn, range(len(self.learners))))
        assert len({(result.optimizer_steps, result.observations) for result in results}) == 1
        noise = []
        for records in zip(*(result.noise for result in results), strict=True):
            joined = {"statistics": _join([record.statistics for record in records])}
            joined["adam"] = None if records[0].adam is None else _join([record.adam for record in records])
            noise.append(replace(records[0], **joined))
        return replace(results[0], noise=noise)
