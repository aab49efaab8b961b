"""What a session hands from the learner to the next iteration."""

from dataclasses import replace

from rlscale.agents.checks import check_config
from rlscale.agents.config import default_config
from rlscale.agents.setup import prepare
from rlscale.envs import find_task

TASK = find_task("classic/cartpole")


def test_the_rate_follows_the_noise_of_the_optimizer_steps_alone():
    """The first iterations also measure the joint loss between environments, which is noisier than between transitions."""
    config = default_config(TASK)
    config = replace(
        config,
        rollout=replace(config.rollout, environments=8, rollout_length=16),
        update=replace(config.update, epochs=1, mini_batch=32, lr_rule="noise", device="cpu", threads=1),
        noise=replace(config.noise, followed_noise="joint"),
    )
    check_config(config)
    session = prepare(config, TASK).start()
    try:
        measured = [session.iterate()[1].noise for _ in range(2)]
        joint = [record for records in measured for record in records if record.head == "joint"]
        assert {record.kind for record in joint} == {"rollout", "mini-batch"}
        of_steps = [record.statistics for record in joint if record.kind == "mini-batch"]
        assert session.get_state()["window"] == [(s.size, s.square, s.dot, s.block) for s in of_steps]
    finally:
        session.close()
