"""An RLlib PPO job on CartPole whose gradient noise is measured: `python rllib_job.py`, then `rlscale report runs/rllib-job`."""

from ray.rllib.algorithms.ppo import PPOConfig

from rlscale.rllib import measure_noise

ITERATIONS = 10

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=1, num_envs_per_env_runner=16)
    .training(train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=4, lr=1e-3)
)
measure_noise(config, run="runs/rllib-job", every=1)  # the addition; after everything else is set

algorithm = config.build_algo()
for iteration in range(ITERATIONS):
    result = algorithm.train()
    policy = result["learners"]["default_policy"]["noise"]["policy"]
    print(f"iteration {iteration}: the policy's noise scale is above {policy['b_simple_low']:,.0f} observations")
algorithm.stop()  # closes the record
