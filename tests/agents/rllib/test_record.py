"""What the record of an RLlib job says of episodes that are longer than a rollout."""

import pytest

pytest.importorskip("tree", reason="RLlib's own dependencies are not installed")  # dm-tree
pytest.importorskip("ray")
rllib = pytest.importorskip("rlscale.agents.rllib.measure")

from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402

from rlscale.records.run import read_run  # noqa: E402


@pytest.mark.parametrize("runners", [0, 1])
def test_an_episode_is_as_long_as_its_steps_whoever_samples(tmp_path, ray_of_four, runners):
    """Pendulum's 200 steps, in pieces of some 80; a local learner lengthens the very pieces that an environment runner keeps."""
    config = (
        PPOConfig()
        .environment("Pendulum-v1")
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=160, minibatch_size=80, num_epochs=1)
    )
    algorithm = rllib.measure_noise(config, tmp_path / "run").build_algo()
    for _ in range(6):
        algorithm.train()
    algorithm.stop()
    lengths = [row["episode_length_mean"] for row in read_run(tmp_path / "run").rows if row["episodes"]]
    assert lengths == [200.0, 200.0]
