"""A Stable-Baselines3 job with continuous actions whose gradient noise is measured: `python sb3_job.py`.

Afterwards `rlscale report runs/sb3-job` draws the noise, and `rlscale advise --run runs/sb3-job` says which batch it suggests.
"""

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from rlscale.sb3 import NoiseCallback

OBSERVATIONS = 100_000

environments = make_vec_env("Pendulum-v1", n_envs=16)
model = PPO("MlpPolicy", environments, n_steps=128, gamma=0.9, learning_rate=1e-3, device="cpu", verbose=1)
model.learn(OBSERVATIONS, callback=NoiseCallback("runs/sb3-job", every=1))
