"""What the record of an RLlib job says of long episodes, restored algorithms, several actions and unused parameters."""

import math
from types import SimpleNamespace

import gymnasium
import pytest

pytest.importorskip("tree", reason="RLlib's own dependencies are not installed")  # dm-tree
pytest.importorskip("ray")
rllib = pytest.importorskip("rlscale.agents.rllib.measure")

from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402

from rlscale.agents.rllib.record import SETTINGS, KeepsRecord  # noqa: E402
from rlscale.errors import UsageError  # noqa: E402
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


class Choices(gymnasium.ActionWrapper):
    """CartPole, whose every step has two actions, of which the first is made."""

    def __init__(self, _=None):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.action_space = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(3)))

    def action(self, action):
        return action[0]


def job(tmp_path, **training):
    settings = {"train_batch_size_per_learner": 100, "minibatch_size": 50, "num_epochs": 1, **training}
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0, num_envs_per_env_runner=10)
    return rllib.measure_noise(config.training(**settings), tmp_path / "run", every=1, blocks=5).build_algo()


@pytest.fixture(scope="module")
def rows(tmp_path_factory, shared_ray):
    """Two iterations of whole episodes, whose every step has two actions."""
    shared_ray.provide(4)
    run = tmp_path_factory.mktemp("choices") / "run"
    config = PPOConfig().environment(Choices).env_runners(num_env_runners=0, num_envs_per_env_runner=4)
    config = config.env_runners(batch_mode="complete_episodes")
    config = config.training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
    algorithm = rllib.measure_noise(config, run, every=1, blocks=4).build_algo()
    for _ in range(2):
        algorithm.train()
    algorithm.stop()
    return read_run(run).rows


def test_an_algorithm_that_goes_back_to_a_checkpoint_counts_its_steps_from_there(tmp_path, ray_of_four):
    algorithm = job(tmp_path)
    algorithm.train()
    algorithm.save_to_path(tmp_path / "checkpoint")
    for _ in range(2):
        algorithm.train()
    algorithm.restore_from_path(tmp_path / "checkpoint")
    algorithm.train()
    algorithm.stop()
    first, second = read_run(tmp_path / "run").rows
    assert second["optimizer_steps"] == pytest.approx(2 * first["optimizer_steps"], abs=1)
    assert {entry["optimizer_step"] for entry in second["noise"]} == {first["optimizer_steps"]}


def test_of_whole_episodes_a_row_counts_what_was_learned_from(rows):
    """RLlib samples more, and drops the episodes that have not ended; the noise is of what it keeps."""
    assert all(sum(entry["size"]) == row["batch_observations"] for row in rows for entry in row["noise"])
    assert sum(row["batch_observations"] for row in rows) < rows[-1]["observations"]


def test_several_actions_of_a_step_are_dealt_with_it(rows):
    for row in rows:
        assert {entry["head"] for entry in row["noise"]} >= {"policy", "value", "joint"}
        assert all(sum(entry["size"]) == row["batch_observations"] for entry in row["noise"])


def test_a_critic_that_is_not_used_does_not_take_adam_s_metric_away(tmp_path, ray_of_four):
    algorithm = job(tmp_path, use_critic=False)
    for _ in range(2):
        algorithm.train()
    algorithm.stop()
    entries = {entry["head"]: entry for entry in read_run(tmp_path / "run").rows[1]["noise"]}
    assert "adam_square" in entries["policy"]


def test_a_runner_of_the_user_s_own_need_not_have_a_number():
    episode = SimpleNamespace(id_="abc")
    KeepsRecord().on_episode_created(episode=episode, env_runner=SimpleNamespace(worker_index=None, num_envs=4), env_index=3)
    assert episode.id_ == "abc@3"


@pytest.mark.parametrize("sampled", [{}, {"env_runners": {}}, {"env_runners": {"num_env_steps_sampled": math.nan}}])
def test_an_iteration_in_which_no_environment_runner_gave_anything_has_no_row(sampled):
    """RLlib warns, restores its runners and goes on; what was measured waits for the next row."""
    KeepsRecord().on_train_result(algorithm=None, result={"training_iteration": 3, **sampled})


def test_a_place_that_cannot_be_written_is_told_of_before_anything_is_sampled(tmp_path):
    (tmp_path / "file").write_text("")
    settings = {SETTINGS: {"run": str(tmp_path / "file" / "run")}}
    sampled = []
    config = SimpleNamespace(learner_config_dict=settings)
    algorithm = SimpleNamespace(config=config, cleanup=None, training_step=lambda: sampled.append(1), iteration=0)
    KeepsRecord().on_algorithm_init(algorithm=algorithm)  # so a checkpoint can be evaluated where its record cannot be written
    for _ in range(2):
        with pytest.raises(UsageError, match=r"^run: cannot write"):
            algorithm.training_step()
    assert sampled == []
    (tmp_path / "there").mkdir()
    settings[SETTINGS]["run"] = str(tmp_path / "there")
    algorithm.training_step = lambda: sampled.append(1)
    KeepsRecord().on_algorithm_init(algorithm=algorithm)
    with pytest.raises(UsageError, match="exists already and is never overwritten"):
        algorithm.training_step()
    assert sampled == []
    settings[SETTINGS]["run"] = str(tmp_path / "folder" / "run")
    KeepsRecord().on_algorithm_init(algorithm=algorithm)
    assert not (tmp_path / "folder").exists()
