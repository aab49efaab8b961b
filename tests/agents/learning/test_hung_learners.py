"""A learner that hangs, dies or cannot be reached is told in one line; Ray's answers are made up here."""

import signal
import time
from types import SimpleNamespace

import pytest
import ray

from rlscale.agents import stopping
from rlscale.agents.cluster import LostWorkerError
from rlscale.agents.learning.remote_learners import HUNG_SECONDS, PATIENCE, RemoteLearners, WaitedInVainError
from rlscale.agents.learning.results import UpdateResult
from rlscale.noise import NotFiniteError


class Answers:
    """As Ray answers calls, which are given by their names; one that is not known hangs."""

    exceptions = ray.exceptions

    def __init__(self, known):
        self.known, self.waits = known, []

    def wait(self, calls, timeout=None):
        self.waits.append(timeout)
        ready = [call for call in calls if call in self.known][:1]
        assert ready or timeout is not None, "waits for ever"
        return ready, [call for call in calls if call not in ready]

    def get(self, call):
        if isinstance(self.known[call], Exception):
            raise self.known[call]
        return self.known[call]


def learners_that_answer(known) -> RemoteLearners:
    """Two learners whose calls have these answers."""
    learners = object.__new__(RemoteLearners)
    learners._ray, learners._hung, learners._iteration = Answers(known), set(), 3
    learners._accepting, learners._learning, learners._kept = {}, True, []
    calls = [
        {
            "finish": SimpleNamespace(remote=lambda *_, rank=rank: f"finish {rank}"),
            "address": SimpleNamespace(remote=lambda rank=rank: f"address {rank}"),
            "join": SimpleNamespace(remote=lambda address, rank=rank: f"join {rank}"),
            "get_state": SimpleNamespace(remote=lambda before, rank=rank: f"get_state {rank}{' before' if before else ''}"),
        }
        for rank in (0, 1)
    ]
    learners._actors = [SimpleNamespace(**of_rank) for of_rank in calls]
    return learners


def raised_in_learner(error) -> ray.exceptions.RayTaskError:
    return ray.exceptions.RayTaskError("finish", f"traceback: {error}", error).as_instanceof_cause()


@pytest.mark.parametrize("hung", [0, 1])
def test_a_learner_that_hangs_ends_the_run_once_another_has_waited_in_vain(hung):
    other = 1 - hung
    in_vain = raised_in_learner(WaitedInVainError("Timed out waiting 600000ms"))
    learners = learners_that_answer({f"finish {other}": in_vain, f"get_state {other} before": {"of": other}})
    with pytest.raises(LostWorkerError, match=f"learner {hung} hung in iteration 3"):
        learners.finish(0.1)
    assert learners._ray.waits == [None, HUNG_SECONDS]
    assert learners.get_state() == {"of": other}


def test_a_learner_that_died_is_named_and_not_the_one_that_waited_for_it():
    in_vain = raised_in_learner(WaitedInVainError("Connection closed by peer"))
    learners = learners_that_answer({"finish 0": in_vain, "finish 1": ray.exceptions.ActorDiedError()})
    with pytest.raises(LostWorkerError, match="learner 1 died in iteration 3"):
        learners.finish(0.1)


def test_learners_that_cannot_reach_one_another_end_the_run_in_one_line():
    in_vain = raised_in_learner(WaitedInVainError("Timed out waiting 600000ms"))
    with pytest.raises(LostWorkerError, match=r"learner 0 waited in vain .*: Timed out waiting 600000ms"):
        learners_that_answer({"finish 0": in_vain, "finish 1": in_vain}).finish(0.1)


def test_a_mistake_in_one_learner_is_raised_and_the_others_are_not_waited_for_without_end():
    with pytest.raises(NotFiniteError, match="block_gradients: not finite"):
        learners_that_answer({"finish 1": raised_in_learner(NotFiniteError("block_gradients: not finite"))}).finish(0.1)


def test_a_learner_that_gives_no_state_in_time_hung(capsys):
    learners = learners_that_answer({"get_state 1": {"of": 1}})
    learners._learning = False
    assert learners.get_state() == {"of": 1}
    assert learners._hung == {0}
    assert capsys.readouterr().err == "rlscale: waiting up to 10 minutes for a learner to give the state that is saved\n"


def test_the_state_is_that_of_the_learner_that_is_not_in_a_sum(capsys):
    """The first one waits for the second, which ran out of memory and answers: nobody waits for the first."""
    learners = learners_that_answer({"finish 1": raised_in_learner(MemoryError()), "get_state 1 before": {"of": 1}})
    with pytest.raises(LostWorkerError, match="learner 1 ran out of memory in iteration 3"):
        learners.finish(0.1)
    assert learners.get_state() == {"of": 1}
    assert learners._hung == set()
    assert capsys.readouterr().err == ""


def test_a_dead_learner_does_not_keep_the_state_of_another_from_being_saved():
    died = ray.exceptions.ActorDiedError()
    assert learners_that_answer({"get_state 0 before": died, "get_state 1 before": {"of": 1}}).get_state() == {"of": 1}


UPDATE = UpdateResult({}, [], 0.0, 8, 0.5, 0.1, optimizer_steps=5)


def test_a_learner_that_hangs_after_the_last_sum_is_not_waited_for_without_end():
    """Nobody waits in vain for it then, so that no other learner would ever tell."""
    learners = learners_that_answer({"finish 0": UPDATE, "get_state 0 before": {"of": 0}})
    with pytest.raises(LostWorkerError, match="learner 1 hung in iteration 3"):
        learners.finish(0.1)
    assert learners._ray.waits == [None, PATIENCE.total_seconds()]
    assert learners.get_state() == {"of": 0}


def test_where_learners_wait_for_a_dead_one_without_end_the_state_before_is_in_the_object_store():
    """Of two copies the one that is still there; neither learner answers. An update that all returned is asked for."""
    learners = learners_that_answer({"finish 0": UPDATE, "kept 1": "before", "get_state 1": "after"})
    learners._kept = ["kept 0", "kept 1"]
    assert learners.get_state() == "before"
    assert learners._ray.waits == [HUNG_SECONDS, HUNG_SECONDS]
    learners._learning = False
    assert learners.get_state() == "after"


def test_an_update_that_one_learner_did_not_return_is_not_saved():
    """The first learner made it, and the run does not count it: what is saved is the state before."""
    learners = learners_that_answer({"finish 0": UPDATE, "finish 1": ray.exceptions.ActorDiedError(), "get_state 0 before": 0})
    with pytest.raises(LostWorkerError, match="learner 1 died in iteration 3"):
        learners.finish(0.1)
    assert learners.get_state() == 0


def test_an_update_that_all_returned_is_saved():
    learners = learners_that_answer({"finish 0": UPDATE, "finish 1": UPDATE, "get_state 0": "after"})
    learners.finish(0.1)
    assert learners.get_state() == "after"
    assert learners.optimizer_steps == 5


def test_a_learner_that_lacks_a_fragment_says_so_in_one_line():
    lacks = raised_in_learner(LostWorkerError("could not fetch 1 of the 4 fragments"))
    with pytest.raises(LostWorkerError) as lost:
        learners_that_answer({"finish 1": lacks}).finish(0.1)
    assert str(lost.value) == "learner 1 could not fetch 1 of the 4 fragments in iteration 3"
    assert type(lost.value) is LostWorkerError


def test_learners_that_do_not_meet_within_a_minute_say_which_ports_must_be_open(capsys):
    with pytest.raises(LostWorkerError, match="learner 0 hung at its start"):
        learners_that_answer({"address 0": "tcp://10.0.0.1:40000"}).meet()
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("rlscale: the learners have not met at tcp://10.0.0.1:40000 for 60 s: ")
    assert "free ports, which must be open" in said
    learners_that_answer({"address 0": "tcp://10.0.0.1:40000", "join 0": None, "join 1": None}).meet()
    assert capsys.readouterr().err == ""


@pytest.mark.timed
def test_ctrl_c_while_learners_start_is_heard(monkeypatch):
    def wait(calls, timeout=None):
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)
        return [], calls

    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 0.05)
    learners = learners_that_answer({})
    learners._ray.wait = wait
    begun = time.monotonic()
    with stopping.StopRequests(), pytest.raises(KeyboardInterrupt):
        learners.meet()
    assert time.monotonic() - begun < 2
