"""A policy gradient in plain torch that measures its noise as it goes: `python torch_loop.py`.

The rewards to go of 64 CartPoles over 50 steps are one batch. It is cut into 16 blocks of four environments each, because steps
of one environment resemble each other. The optimizer step uses the mean of the same 16 gradients.
"""

import gymnasium
import numpy as np
import torch
from torch import nn

from rlscale import block_statistics, pool

UPDATES, WINDOW = 100, 10
ENVIRONMENTS, STEPS, BLOCKS = 64, 50, 16

torch.manual_seed(0)
environments = gymnasium.make_vec("CartPole-v1", ENVIRONMENTS, vectorization_mode="vector_entry_point")
policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
parameters = list(policy.parameters())
optimizer = torch.optim.Adam(parameters, lr=1e-2)
batch_gradient = torch.empty(sum(p.numel() for p in parameters))
observation, _ = environments.reset(seed=0)
window = []

for update in range(1, UPDATES + 1):
    # Sample: T x N observations, actions, and the rewards up to the end of each episode or of the rollout.
    seen = torch.empty(STEPS, ENVIRONMENTS, 4)
    action = torch.empty(STEPS, ENVIRONMENTS, dtype=torch.int64)
    reward, ended = np.empty((STEPS, ENVIRONMENTS)), np.empty((STEPS, ENVIRONMENTS), dtype=bool)
    for t in range(STEPS):
        seen[t] = torch.as_tensor(observation)
        with torch.no_grad():
            action[t] = torch.distributions.Categorical(logits=policy(seen[t])).sample()
        observation, reward[t], terminated, truncated, _ = environments.step(action[t].numpy())
        ended[t] = terminated | truncated
    to_go, following = np.empty_like(reward), np.zeros(ENVIRONMENTS)
    for t in reversed(range(STEPS)):
        following = to_go[t] = reward[t] + 0.97 * following * ~ended[t]
    advantage = torch.as_tensor((to_go - to_go.mean()) / (to_go.std() + 1e-8), dtype=torch.float32)

    # Learn: one gradient a block, the noise from all of them, and a step along their mean.
    gradients, sizes = [], []
    for block in np.array_split(np.arange(ENVIRONMENTS), BLOCKS):
        chosen = torch.log_softmax(policy(seen[:, block]), -1).gather(2, action[:, block, None]).squeeze(2)
        loss = -(advantage[:, block] * chosen).mean()
        gradients.append(torch.autograd.grad(loss, parameters))
        sizes.append(STEPS * len(block))
    window.append(block_statistics(gradients, sizes, mean_out=batch_gradient))
    for parameter, gradient in zip(parameters, batch_gradient.split([p.numel() for p in parameters]), strict=True):
        parameter.grad = gradient.view_as(parameter).clone()
    optimizer.step()

    if update % WINDOW == 0:
        length = ended.size / max(ended.sum(), 1)
        print(f"update {update}, episodes of some {length:.0f} steps: noise scale {pool(window).noise_scale} observations")
        window.clear()
