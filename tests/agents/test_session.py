"""What a session hands from the learner to the next iteration."""

from dataclasses import replace

import pytest

from rlscale.agents.checks import check_config
from rlscale.agents.config import default_config
from rlscale.agents.setup import prepare
from rlscale.envs import find_task
from rlscale.errors import UsageError

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


@pytest.mark.parametrize("rollout_length", [1, 8])
def test_environments_that_do_nothing_but_reset_are_told_of(rollout_length):
    """The first step of all is an observation, and none after it."""
    task = find_task("bandits:Endless")
    config = default_config(task)
    config = replace(
        config,
        rollout=replace(config.rollout, environments=4, rollout_length=rollout_length),
        update=replace(config.update, epochs=1, mini_batch=None, device="cpu", threads=1),
    )
    session = prepare(config, task).start()
    try:
        assert session.iterate()[1].observations == 4
        for _ in range(9):
            assert session.iterate() is None
        with pytest.raises(UsageError, match="TASK: bandits:Endless ends on every step, that of its reset included"):
            session.iterate()
    finally:
        session.close()
