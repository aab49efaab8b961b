"""Block gradients of Stable-Baselines3's loss on a whole rollout, at the parameters that sampled it.

Stable-Baselines3 computes its loss inside `train`, where nothing else can reach it. So PPO's and A2C's are written here once
more, as that library writes them, from the model's own settings, policy and rollout buffer.
"""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from stable_baselines3 import A2C, PPO
from torch.nn import functional

from ..config import FEWEST_BLOCKS
from ..devices import upload
from ..learning import GradientSums, NoiseRecord, adam_metric, deal_lengths, noise_records

__all__ = ["deal_rollout", "losses_of", "measure_rollout"]

MOST_OBSERVATIONS = 4096  # in the network at once, where the algorithm has no mini-batches that say how many fit


def measure_rollout(model: PPO | A2C, blocks: int, optimizer_step: int) -> list[NoiseRecord]:
    """The noise of every loss on the rollout that the model has just collected; the model is left as it was.

    A loss that depends on frozen parameters alone is left out.

    Args:
        model: whose rollout buffer is full.
        blocks: number of blocks at most.
        optimizer_step: steps that the model had made before.
    """
    policy, buffer = model.policy, model.rollout_buffer
    parameters = [p for p in policy.parameters() if p.requires_grad]
    advantages = torch.as_tensor(buffer.advantages)
    if model.normalize_advantage and advantages.numel() > 1:
        # Over the whole rollout, where Stable-Baselines3 normalizes each mini-batch by itself.
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    dealt = deal_rollout(buffer.episode_starts, blocks)
    sums = GradientSums(parameters, int(dealt.max()) + 1, model.device)
    was_training = policy.training
    accelerators = [] if model.device.type == "cpu" else [model.device]  # the CPU's state is always kept
    policy.set_training_mode(True)  # as in `train`
    try:
        with torch.random.fork_rng(devices=accelerators, device_type=model.device.type):
            for k in range(len(sums.sizes)):
                steps, environments = np.nonzero(dealt == k)
                most = getattr(model, "batch_size", MOST_OBSERVATIONS)
                for start in range(0, len(steps), most):
                    index = steps[start : start + most], environments[start : start + most]
                    losses = losses_of(model, index, upload(advantages[index], model.device))
                    # Where a part of the network is frozen, a loss may depend on no other.
                    sums.add(k, {head: loss for head, loss in losses.items() if loss.requires_grad}, len(index[0]))
    finally:
        policy.set_training_mode(was_training)
    metric = adam_metric([policy.optimizer], parameters)
    return noise_records(sums.matrices, sums.sizes.cpu().numpy(), optimizer_step, metric, sums.policy_columns)


def deal_rollout(episode_starts: np.ndarray, blocks: int) -> np.ndarray:
    """The block of each observation of a rollout, (T, N) int64.

    With at least eight environments the blocks are contiguous sets of them, the same in every rollout. With fewer, whole episodes
    and the pieces of episodes at the rollout's ends are dealt into blocks of about equally many observations.

    Args:
        episode_starts: (T, N), whether an observation is an episode's first.
        blocks: K at most.
    """
    steps, environments = episode_starts.shape
    if environments >= FEWEST_BLOCKS:
        count = min(blocks, environments)
        of_environment = [k for k, part in enumerate(np.array_split(np.arange(environments), count)) for _ in part]
        return np.broadcast_to(np.array(of_environment), (steps, environments))
    starts = episode_starts.astype(bool).T.copy()  # environment by environment
    starts[:, 0] = True
    first = np.flatnonzero(starts.reshape(-1))
    lengths = np.diff([*first, starts.size])
    return np.repeat(deal_lengths(lengths.tolist(), range(blocks)), lengths).reshape(environments, steps).T


def losses_of(model: PPO | A2C, index: tuple[np.ndarray, np.ndarray], advantage: torch.Tensor) -> dict[str, torch.Tensor]:
    """Means over some observations of the policy, value and entropy terms of the model's loss, and of all of it, `joint`.

    Args:
        model: PPO or A2C, whose rollout buffer is full.
        index: steps and environments of the n observations in it.
        advantage: (n,), as they enter the loss.
    """
    buffer = model.rollout_buffer

    def chosen(values: Any) -> Any:
        if isinstance(values, dict):
            return {name: chosen(value) for name, value in values.items()}
        return upload(torch.as_tensor(values[index]), model.device)

    # As its buffer gives them to `train`: of bytes, such as MultiBinary's, no log-probability can be computed.
    action = chosen(buffer.actions).float()
    if isinstance(model.action_space, Discrete):
        action = action.long().flatten()
    value, log_prob, entropy = model.policy.evaluate_actions(chosen(buffer.observations), action)
    value, target, value_before = value.flatten(), chosen(buffer.returns), chosen(buffer.values)
    if isinstance(model, PPO):
        clip = model.clip_range(model._current_progress_remaining)
        ratio = (log_prob - chosen(buffer.log_probs)).exp()
        policy = -torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
        if model.clip_range_vf is not None:
            most = model.clip_range_vf(model._current_progress_remaining)
            value = value_before + (value - value_before).clamp(-most, most)
    else:
        policy = -(advantage * log_prob).mean()
    value_loss = functional.mse_loss(target, value)
    bonus = (-log_prob if entropy is None else entropy).mean()  # without a formula, what the sampled actions say
    joint = policy + model.vf_coef * value_loss - model.ent_coef * bonus
    return {"policy": policy, "value": value_loss, "entropy": bonus, "joint": joint}
