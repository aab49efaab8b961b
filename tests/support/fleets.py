"""Settings and weights for small fleets."""

from rlscale.agents.networks import flatten_parameters, make_network
from rlscale.agents.rollout.worker import WorkerSettings
from rlscale.envs import find_task


def settings_for(task_id, environments=4, length=16, **changes):
    task = find_task(task_id)
    network = "small_cnn" if task.network == "nature_cnn" else "mlp"
    values = dict(bfloat16=False, threads=1, cut_on_life_loss=True, random_first_steps=0, seed=11, generation=0)
    return WorkerSettings(task, environments, length, network, **{**values, **changes})


def weights_for(settings, seed=5):
    return flatten_parameters(make_network(settings.task, settings.network, seed)).numpy()
