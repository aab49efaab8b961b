"""Which checkpoints can be used, and what a resumed run takes from one; that it goes on exactly is in test_train.py."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from rlscale.agents.checkpoints import TrainedPolicy, kept_environments, why_afresh
from rlscale.agents.config import Budget, default_config
from rlscale.agents.train import train
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records import read_run

CONFIG = default_config(find_task("classic/cartpole"))
CONFIG = replace(
    CONFIG,
    budget=Budget(observations=600),
    rollout=replace(CONFIG.rollout, environments=8, rollout_length=16),
    update=replace(CONFIG.update, epochs=1, mini_batch=None, threads=1),
)


def with_rollout(**changes):
    return replace(CONFIG, rollout=replace(CONFIG.rollout, **changes))


def checkpoint(config=CONFIG, environments=4, groups=2, asked=()):
    """What `why_afresh` and `kept_environments` read of one."""
    fleet = {"states": [{}] * groups}
    return {"fleet": fleet, "fragment_environments": environments, "asked": list(asked), "config": asdict(config)}


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        ({"actors": 2}, {"actors": 0}, 4),
        ({"actors": 2}, {"actors": 1}, 4),
        ({"actors": 2}, {"actors": 4}, None),  # two groups are too few for four
        ({"actors": 0}, {"actors": "auto"}, None),
        ({"actors": "auto"}, {"actors": "auto"}, 4),
        ({"actors": "auto"}, {"actors": 2}, 4),
        ({}, {"clones": 2}, None),
        ({}, {"batch_size": "adaptive"}, None),
    ],
)
def test_groups_are_kept_where_they_fit_the_actors_of_now(before, now, kept):
    assert kept_environments(checkpoint(with_rollout(**before)), with_rollout(**now)) == kept


def test_without_states_there_is_no_group_to_keep():
    for fleet in (None, [{}, {}]):  # the last of an earlier version, which did not say how they were grouped either
        stored = {**checkpoint(), "fleet": fleet}
        del stored["fragment_environments"]
        assert kept_environments(stored, CONFIG) is None


@pytest.mark.parametrize(
    ("stored", "now", "why"),
    [
        (checkpoint(), {}, None),
        ({**checkpoint(), "fleet": None}, {}, "the checkpoint holds no state of them"),
        ({**checkpoint(), "fleet": [{}, {}]}, {}, "the checkpoint holds no state of them"),  # of an earlier version
        (checkpoint(), {"clones": 2}, "their batches or their clones are of another kind now"),
        (checkpoint(), {"batch_size": "adaptive"}, "their batches or their clones are of another kind now"),
        (checkpoint(environments=2, groups=4), {}, "they are 2 groups of 4 now, and were 4 of 2"),
        (checkpoint(), {"batch_size": 256}, None),
        (checkpoint(asked=[2]), {"batch_size": 256}, "a batch of another size had been begun"),
        (checkpoint(asked=[6]), {}, None),
        (checkpoint(asked=[2, 7]), {}, "a batch of 7 fragments had been begun, and there is room for 6"),
    ],
)
def test_why_environments_begin_afresh(stored, now, why):
    memory = SimpleNamespace(environments=4, groups=2, most_batch_fragments=6)
    assert why_afresh(stored, with_rollout(**now), memory) == why


def segments_of(folder):
    return [segment["environments"] for segment in read_run(folder).manifest["segments"]]


@pytest.mark.parametrize(("first", "then"), [(4, None), (None, 4)])
def test_groups_stay_as_they_are_unless_others_are_asked_for(tmp_path, capfd, first, then):
    """Eight environments are one group by themselves."""
    config = with_rollout(fragment_environments=first)
    train(config, tmp_path / "run", command=[])
    longer = replace(config, budget=Budget(observations=1200), resume=str(tmp_path / "run"))
    train(replace(longer, rollout=replace(config.rollout, fragment_environments=then)), tmp_path, command=[])
    said = capfd.readouterr().err
    if then is None:
        assert segments_of(tmp_path / "run") == ["new", "as they were"]
        assert said == ""
    else:
        assert segments_of(tmp_path / "run") == ["new", "seeded afresh"]
        assert said == "rlscale: the environments begin afresh: they are 2 groups of 4 now, and were 1 of 8\n"


def test_an_adaptive_batch_that_was_begun_and_has_no_room_any_more(tmp_path, capfd):
    """With --lag 1 one has always been begun."""
    config = with_rollout(batch_size="adaptive", fragment_environments=4, lag=1, exchange_rate=1_000_000)
    train(replace(config, budget=Budget(observations=4000)), tmp_path / "run", command=[])
    record = read_run(tmp_path / "run")
    fragment = record.manifest["memory"]["fragment_bytes"]
    most = record.rows[-1]["fragments"]
    assert most > 4
    room = replace(config, rollout=replace(config.rollout, memory=f"{2 * fragment * (most - 1) / 1024:.3f} KiB"))
    train(replace(room, budget=Budget(observations=6000), resume=str(tmp_path / "run")), tmp_path, command=[])
    assert segments_of(tmp_path / "run") == ["new", "seeded afresh"]
    assert f"and there is room for {most - 1}" in capfd.readouterr().err
    assert max(row["fragments"] for row in read_run(tmp_path / "run").rows[len(record.rows) :]) <= most - 1


@pytest.mark.parametrize(
    ("task", "other"), [("atari/breakout@42", True), ("minatar/breakout", False), ("classic/cartpole", False)]
)
def test_parameters_in_an_earlier_order_are_refused_where_they_mean_something_else(tmp_path, monkeypatch, task, other):
    """Only above pixels; the vector of parameters is as long, and would go on, or act, as another network."""
    config = default_config(find_task(task))
    rollout = replace(config.rollout, environments=8, rollout_length=16)
    update = replace(config.update, epochs=1, mini_batch=None, threads=1)
    config = replace(config, rollout=rollout, update=update, budget=Budget(observations=128))
    run = tmp_path / "run"
    with monkeypatch.context() as earlier:
        earlier.setattr("rlscale.agents.checkpoints.PARAMETER_ORDER", 1)
        train(config, run, command=[])
    longer = replace(config, budget=Budget(observations=256), resume=str(run))
    if not other:
        TrainedPolicy(run)
        assert train(longer, run, command=[]).observations >= 256
        return
    with pytest.raises(UsageError, match=r"RUN: .* read images in another order"):
        TrainedPolicy(run)
    with pytest.raises(UsageError, match=r"--resume: .* read images in another order"):
        train(longer, run, command=[])
