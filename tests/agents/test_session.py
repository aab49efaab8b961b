"""What a session hands from the learner to the next iteration."""

from dataclasses import replace

import numpy as np
import pytest

from rlscale.agents.checks import check_config
from rlscale.agents.cluster.processes import LostWorkerError
from rlscale.agents.config import TrainConfig, default_config
from rlscale.agents.learning import UpdateResult
from rlscale.agents.rollout import FragmentSummary
from rlscale.agents.rollout.fleet import LostActor
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


def test_a_batch_that_was_requested_in_part_is_not_gone_on_with():
    """As where the head node is lost meanwhile: its fragments would come beside every later batch, by older policies."""
    session = two_groups(0).start()
    try:
        session.iterate()
        session._fleet.request(session.weights(), 1, 1)  # the session has not noted it
        state = session.get_state()
        assert (state["fleet"], state["asked"]) == (None, [])
    finally:
        session.close()


@pytest.mark.parametrize("lag", [0, 1])
def test_an_iteration_that_is_cut_short_while_it_samples_begins_again(monkeypatch, lag):
    """In another session, with the same fragments: what comes of it is what would have come."""
    setup = two_groups(lag)
    whole, cut, other = setup.start(), setup.start(), setup.start()
    try:
        for _ in range(5):
            whole.iterate()
        for _ in range(2):
            cut.iterate()
        interrupt(monkeypatch, cut._fleet, "take", after=1)
        with pytest.raises(KeyboardInterrupt):
            cut.iterate()
        cut.end_fleet()
        state = cut.get_state()
        assert state["progress"]["iteration"] == 2
        other.set_state(state)
        for _ in range(3):
            other.iterate()
        np.testing.assert_array_equal(other.weights(), whole.weights())
        assert other.progress.observations == whole.progress.observations
    finally:
        for session in (whole, cut, other):
            session.close()


@pytest.mark.parametrize("lag", [0, 1])
def test_a_learner_that_is_lost_between_iterations_takes_no_environments_with_it(monkeypatch, lag):
    """It is missed when the next batch is requested; nothing of that batch has been begun then."""
    setup = two_groups(lag)
    whole, cut, other = setup.start(), setup.start(), setup.start()
    try:
        for _ in range(4):
            whole.iterate()
        for _ in range(2):
            cut.iterate()
        cut._learner.weights = lost
        with pytest.raises(LostWorkerError):
            cut.iterate()
        cut.end_fleet()
        other.set_state(cut.get_state())
        for _ in range(2):
            other.iterate()
        np.testing.assert_array_equal(other.weights(), whole.weights())
        assert other.progress.turn == whole.progress.turn
    finally:
        for session in (whole, cut, other):
            session.close()


def lost():
    raise LostWorkerError("learner 0 died")


def test_actors_lost_in_an_iteration_that_is_cut_short_are_in_the_row_of_the_one_that_makes_it_again(monkeypatch):
    setup = two_groups(0)
    cut, other = setup.start(), setup.start()
    try:
        assert cut.iterate()[0]["losses"] == []
        loss = LostActor("died", 3, [0, 1], [], 2, 4, noticed=5.0, recovery_seconds=None)
        found = [[loss], []]
        monkeypatch.setattr(cut._fleet, "lost_actors", lambda: found.pop(0) if found else [])
        interrupt(monkeypatch, cut._fleet, "take", after=1)
        with pytest.raises(KeyboardInterrupt):
            cut.iterate()
        assert cut.lost_actors == 1
        other.set_state(cut.get_state())
        (told,) = other.iterate()[0]["losses"]
        assert (told["actor"], told["groups"], told["replaced_by"]) == (3, [0, 1], 4)
        assert "noticed" not in told
        assert other.lost_actors == 0  # of its own
        assert other.iterate()[0]["losses"] == []
    finally:
        for session in (cut, other):
            session.close()


def test_what_the_object_store_wrote_to_disk_is_counted_once_and_whenever_it_does(monkeypatch):
    """Files that lay there before are no news; others of the same size in their place are."""
    session = two_groups(0).start()
    try:
        readings = [{"a": 100}, {"a": 100}, {"b": 100}, {"b": 100, "c": 20}, {}]
        monkeypatch.setattr("rlscale.agents.session.spilled_files", lambda: readings.pop(0))
        monkeypatch.setattr(TrainConfig, "rays", True)
        assert [session.iterate()[0]["spilled_bytes"] for _ in range(5)] == [100, 0, 100, 20, 0]
    finally:
        session.close()


def test_fragments_that_a_step_was_made_of_do_not_come_again(monkeypatch):
    """The learner stands between two steps of an iteration, and would learn from them twice."""
    session = two_groups(0).start()
    try:
        session.iterate()
        interrupt(monkeypatch, session._learner, "_step", after=1)
        with pytest.raises(KeyboardInterrupt):
            session.iterate()
        state = session.get_state()
        assert (state["fleet"], state["asked"]) == (None, [])
    finally:
        session.close()


def two_groups(lag):
    config = default_config(TASK)
    config = replace(
        config,
        rollout=replace(config.rollout, environments=8, rollout_length=16, fragment_environments=4, lag=lag),
        update=replace(config.update, epochs=2, mini_batch=32, device="cpu", threads=1),
    )
    check_config(config)
    return prepare(config, TASK)


def interrupt(monkeypatch, of, name, after):
    """Ctrl-C when that method was called so many times from now on."""
    calls, method = [], getattr(of, name)

    def interrupted(*arguments, **words):
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(1)
        return method(*arguments, **words)

    monkeypatch.setattr(of, name, interrupted)


@pytest.mark.parametrize(("rollout_length", "update"), [(1, {}), (8, {}), (8, {"stream": True, "advantage_scale": "running"})])
def test_environments_that_do_nothing_but_reset_are_told_of(rollout_length, update):
    """The first step of all is an observation, and none after it."""
    task = find_task("bandits:Endless")
    config = default_config(task)
    config = replace(
        config,
        rollout=replace(config.rollout, environments=4, rollout_length=rollout_length),
        update=replace(config.update, epochs=1, mini_batch=None, device="cpu", threads=1, **update),
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


CATCH = find_task("toy/catch")


def rows_of(iterations=4, rollout=(), **update):
    """Rows of a session of Catch, of eight environments and one optimizer step an iteration."""
    config = default_config(CATCH)
    plain = {"epochs": 1, "mini_batch": None, "device": "cpu", "threads": 1, "warm_up": 0, "learning_rate": 1e-3}
    config = replace(
        config,
        rollout=replace(config.rollout, **{"environments": 8, "rollout_length": 20, **dict(rollout)}),
        update=replace(config.update, **{**plain, **update}),
        budget=replace(config.budget, observations=1000),
    )
    check_config(config)
    session = prepare(config, CATCH).start()
    try:
        return [session.iterate()[0] for _ in range(iterations)]
    finally:
        session.close()


def test_the_rate_falls_in_a_straight_line_to_the_end_of_the_observations():
    """By what was learned from before each iteration, and never below zero."""
    rows = rows_of(9, anneal=True)
    before = [0, *(row["observations"] for row in rows[:-1])]
    assert [row["learning_rate"] for row in rows] == pytest.approx([1e-3 * max(0.0, 1 - n / 1000) for n in before])
    assert rows[-1]["learning_rate"] == 0.0
    assert {row["learning_rate"] for row in rows_of(3, anneal=False)} == {1e-3}


def test_the_rate_of_a_rule_is_that_of_an_optimizer_step():
    """160 steps an iteration in four mini-batches, of which those that only reset teach nothing."""
    rows = rows_of(3, mini_batch=40, shuffle="transitions", lr_rule="linear", lr_batch=1000)
    assert [row["learning_rate"] for row in rows] == pytest.approx([row["batch_observations"] / 4 * 1e-6 for row in rows])


def test_episodes_have_their_own_length_and_return():
    """All of Catch have nine steps, and end with the ball caught or lost."""
    rows = [row for row in rows_of() if row["episodes"]]
    assert {row["episode_length_mean"] for row in rows} == {9.0}
    assert all(-1 <= row["return_mean"] <= 1 for row in rows)


def test_an_iterations_seconds_are_those_of_its_parts():
    """In one process sampling is waited for, and nothing is handed over; rates are observations by each part's own time."""
    for row in rows_of():
        assert row["sampling_seconds"] <= row["waiting_seconds"]
        assert row["transfer_seconds"] == pytest.approx(row["waiting_seconds"] - row["sampling_seconds"])
        sampling, learning = row["sampling_observations_per_second"], row["learning_observations_per_second"]
        assert sampling * row["sampling_seconds"] == pytest.approx(row["batch_observations"])
        assert learning * row["learning_seconds"] == pytest.approx(row["batch_observations"])
        assert row["observations_per_second"] * (row["waiting_seconds"] + row["learning_seconds"]) == pytest.approx(
            row["batch_observations"]
        )


def test_actors_sample_beside_each_other_and_the_one_that_works_longest_counts(monkeypatch):
    """Of 12 s, 4 were waited for fragments: one actor made two in 1.5 s each, the other one in 2 s."""
    session = two_groups(0).start()
    try:
        monkeypatch.setattr("rlscale.agents.session.spilled_files", dict)
        session.config = replace(session.config, rollout=replace(session.config.rollout, actors=2))
        summaries = [
            FragmentSummary(64, np.zeros(0), np.zeros(0), 0, actor, 0, 0, index, seconds)
            for actor, index, seconds in [(0, 0, 1.5), (1, 0, 2.0), (0, 1, 1.5)]
        ]
        result = UpdateResult({}, [], 0.5, 192, 0.0, 1e-3, 1)
        assert session._times(summaries, result, 12.0, 4.0) == {
            "sampling_seconds": 3.0,
            "waiting_seconds": 4.0,
            "transfer_seconds": 1.0,
            "learning_seconds": 8.0,
            "noise_seconds": 0.5,
            "observations_per_second": 16.0,
            "sampling_observations_per_second": 64.0,
            "learning_observations_per_second": 24.0,
            "spilled_bytes": 0,
        }
    finally:
        session.close()


def test_the_rate_of_a_streamed_batch_is_that_of_a_held_one():
    """By the observations that it held, not by its steps, of which some only reset."""
    held, streamed = (
        rows_of(3, stream=stream, advantage_scale="running", lr_rule="linear", lr_batch=1000) for stream in (False, True)
    )
    rates = [row["batch_observations"] * 1e-6 for row in streamed]
    assert [row["learning_rate"] for row in streamed] == pytest.approx(rates)
    assert held[0]["learning_rate"] == streamed[0]["learning_rate"]
    assert all(row["batch_observations"] < 160 for row in streamed[1:])
