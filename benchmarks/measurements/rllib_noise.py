"""RLlib's PPO on Atari Pong with the noise measured inside its learner: it trains, and what share of the time that takes.

    python -m rlscale.benchmarks.measurements.rllib_noise [--iterations N] [--epochs N] [--run FOLDER]

Network, wrappers, frame stacking by connectors and loss settings are those of RLlib's own Atari example for PPO; the batch comes
from more environments, since those are the blocks. What is added to the job is one call; see docs/rllib.md. The share is read
from the record: seconds of the measurement by seconds of the learner's updates.
"""

from pathlib import Path
from typing import Any

import tyro

from rlscale.analysis.summary import noise_over_run
from rlscale.records import read_run


def configure(environments: int, steps: int, epochs: int) -> Any:
    """The job, without the measurement."""
    import ale_py
    import gymnasium
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module.frame_stacking import FrameStackingEnvToModule
    from ray.rllib.connectors.learner.frame_stacking import FrameStackingLearner
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack
    from ray.tune.registry import register_env

    def make(settings: dict[str, Any]) -> Any:
        gymnasium.register_envs(ale_py)
        return wrap_atari_for_new_api_stack(gymnasium.make("ALE/Pong-v5", **settings), framestack=None)

    register_env("pong", make)
    return (
        PPOConfig()
        .environment("pong", env_config={"frameskip": 1, "repeat_action_probability": 0.0}, clip_rewards=True)
        .env_runners(
            num_env_runners=2,
            num_envs_per_env_runner=environments // 2,
            rollout_fragment_length=steps,
            env_to_module_connector=lambda *_, **__: FrameStackingEnvToModule(num_frames=4),
        )
        .training(
            learner_connector=lambda *_, **__: FrameStackingLearner(num_frames=4),
            train_batch_size_per_learner=environments * steps,
            minibatch_size=128,
            num_epochs=epochs,
            lambda_=0.95,
            kl_coeff=0.5,
            clip_param=0.1,
            vf_clip_param=10.0,
            entropy_coeff=0.01,
            lr=1.5e-4,
            grad_clip=100.0,
            grad_clip_by="global_norm",
        )
        .rl_module(
            model_config=DefaultModelConfig(
                conv_filters=[[16, 4, 2], [32, 4, 2], [64, 4, 2], [128, 4, 2]],
                conv_activation="relu",
                head_fcnet_hiddens=[256],
                vf_share_layers=True,
            )
        )
        .debugging(seed=0)
    )


def main(
    iterations: int = 8,
    environments: int = 16,
    steps: int = 128,
    epochs: int = 10,
    every: int = 4,
    run: str = "results/rllib-pong",
) -> None:
    """Train Pong with RLlib and measure the noise scale inside the job.

    Args:
        iterations: Calls of `train()`.
        environments: Environments, on two env runners.
        steps: Steps of each of them in a batch.
        epochs: Passes over the batch.
        every: The noise is measured in every so many-th update.
        run: Where the record goes; a new folder.
    """
    import ray

    from rlscale.rllib import measure_noise

    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algorithm = measure_noise(configure(environments, steps, epochs), run, every=every).build_algo()
    for iteration in range(iterations):
        result = algorithm.train()
        took = result["learners"]["__all_modules__"]["noise_seconds"]
        print(f"iteration {iteration}: {result['time_this_iter_s']:.1f} s, of which the noise {took:.1f} s", flush=True)
    algorithm.stop()
    ray.shutdown()
    record = read_run(Path(run))
    learning, noise = record.column("learning_seconds"), record.column("noise_seconds")
    share, due = noise.sum() / learning.sum(), noise > 0
    print(f"the noise took {share:.1%} of the learner's time, {(noise / learning)[due].mean():.1%} when due")
    for head in ("policy", "value", "entropy", "joint"):
        whole = noise_over_run(record, head, "rollout")
        print(f"{head}: {whole.noise_scale if whole else 'not measured'}")


if __name__ == "__main__":
    tyro.cli(main)
