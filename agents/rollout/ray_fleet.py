"""`RayFleet`: rollout workers as Ray actors; those that die, hang or come later change nothing about the order of fragments.

`Fleet` is either this one or `LocalFleet`, whose methods say what a run needs of both.

The groups of environments of a lost actor become another one's (`GroupAssignment` keeps the books), and its outstanding
fragments are requested again. Where the environments can be saved, each fragment comes with the state of its group after it;
the other actor goes on from there and makes the very fragments that are missing, so that the loss leaves no trace in what is
learned. Where they cannot, they are made afresh.
"""

import math
import time
from collections import deque
from collections.abc import Iterable
from itertools import groupby, takewhile
from typing import Any

import numpy as np

from ..cluster.processes import LostWorkerError, describe_loss, kind_of_loss
from ..cluster.resources import living_nodes
from .actors import START_SECONDS, RolloutActors
from .assignment import GroupAssignment
from .fleet import LocalFleet, LostActor, Sampled
from .requests import Policy, Request, bring_ahead
from .worker import WorkerSettings

__all__ = ["Fleet", "RayFleet"]

UNKNOWN_SECONDS = 600  # for the first fragment of all, whose length nobody knows yet
LEAST_STRAGGLER_SECONDS = 30
STRAGGLER_FACTOR = 5  # times what the slowest fragment so far took
LOOK_SECONDS = 5  # between two looks for free CPUs
GONE = "died with its node"
COPY_SECONDS = 0.5  # between two looks for fragments that other nodes have finished meanwhile
SAME_STRIKES = 3  # losses in a row over a fragment that is made the same way again; from the next one on its group is made afresh
MOST_STRIKES = 6  # losses in a row over one fragment, however it was made


class RayFleet:
    """Workers as Ray actors, with one reserved CPU for each thread. Lost actors are replaced, each under a new number.

    It does what `LocalFleet` says of its methods.

    Args:
        settings: `workers` is the number of actors, `threads` the number of CPUs that Ray reserves for each.
        most_fragments: largest number that may be under way or held at once; actors wait beyond it.
        ahead: finished fragments of a batch that this node may hold before they are taken.
        actors: number to begin with, where that is not `workers`.
        straggler_seconds: an actor that has finished no fragment for so long is given up; None: 30, or five times what the
            slowest fragment so far took if that is more.
        grows: start more actors whenever the cluster has CPUs for them, up to one a group; fewer after `resize`.

    Attributes:
        short: whether there was no room for as many actors as are wanted when the cluster was last looked at. Those that have
            been starting for `START_SECONDS` count as without room: others were quicker, or no single node has so much.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        most_fragments: int,
        *,
        ahead: int = 2,
        actors: int | None = None,
        straggler_seconds: float | None = None,
        grows: bool = False,
    ) -> None:
        import ray

        self._ray = ray
        self._groups = settings.workers * settings.groups
        first = settings.workers if actors is None else actors
        self._assignment = GroupAssignment(self._groups, first, settings.generation)
        # By group: its state after the fragment of it that was taken last; None where it is not known, or cannot be saved.
        self._taken: dict[int, dict[str, Any] | None] = dict.fromkeys(range(self._groups))
        self._starts: dict[int, Any] = {}  # state, or reference to one, that the actor which has the group now goes on from
        groups = [dict.fromkeys(self._assignment.groups_of(actor), settings.generation) for actor in range(first)]
        self._actors = RolloutActors(settings, groups, fewest=1 if grows else first, most=self._groups if grows else first)
        self._straggler_seconds, self._grows = straggler_seconds, grows
        self._wanted, self.short = self._groups, False
        self._leaving: set[int] = set()  # actors whose groups have moved away, and that still have fragments to be taken
        self._most, self._ahead = most_fragments, ahead
        self._here = ray.get_runtime_context().get_node_id()
        self._waiting: deque[Policy] = deque()  # of each fragment that there is no room for yet
        self._requests: deque[Request] = deque()  # in the order in which they are taken, finished or not
        self._held = 0
        self._next_group = 0
        self._to_make: set[int] = set()  # groups whose environments the actor that has them may still have to make
        self._slowest = 0.0
        self._finished: dict[int, int] = {}  # fragments that an actor had ready when the present wait last ran out
        self._strikes: dict[int, int] = {}  # by group: actors lost in a row over its next fragment
        self._lost: list[LostActor] = []
        self._looked, self._late = time.monotonic(), math.inf  # from when on those that are starting count as without room
        for number in set(range(first)) - set(self._actors.working):  # another program was quicker to take its CPUs
            moved = self._assignment.groups_of(number)
            self._assignment.share_out(moved, self._actors.working)
            for group in moved:
                self._hand_over(group, None)
            self._actors.forget(number, moved)
        self._taken |= self._actors.take_first_states()
        self._savable = any(state is not None for state in self._taken.values())  # a task's environments can be saved, or not

    @property
    def actors(self) -> int:
        return len(self._staying)

    @property
    def _staying(self) -> list[int]:
        return [number for number in self._actors.working if number not in self._leaving]

    @property
    def generation(self) -> int:
        return max(self._assignment.generation)

    def request(self, weights: np.ndarray, policy_version: int, fragments: int) -> None:
        self._grow()
        self._waiting.extend([Policy(weights, self._ray.put(weights), policy_version)] * fragments)
        self._submit()

    def _submit(self) -> None:
        """Let actors begin on the fragments that wait, as far as there is room for them."""
        while self._waiting and len(self._requests) + self._held < self._most:
            self._requests.append(self._send(self._next_group, self._waiting.popleft()))
            self._next_group = (self._next_group + 1) % self._groups

    def _send(self, group: int, policy: Policy, lost: LostActor | None = None) -> Request:
        number, generation = self._assignment.actor_of[group], self._assignment.generation[group]
        start = self._starts.pop(group, None)
        sample = self._actors.working[number].sample.options(num_returns=3)
        summary, fragment, state = sample.remote(policy.reference, policy.version, group, generation, start)
        follows = isinstance(start, self._ray.ObjectRef)
        return Request(group, policy, number, summary, fragment, state, time.monotonic(), lost, follows)

    def take(self) -> Sampled:
        """Wait for the next fragment, and if its actor is lost, for the one that replaces it.

        Raises:
            LostWorkerError: actors are lost again and again, or none is left and there is no room for another.
        """
        if not self._requests:
            raise RuntimeError("no fragment was requested, or all of the room is held")
        while True:
            first = self._requests[0]
            try:
                summary, fragment, state = self._wait_for(first)
                break
            except self._ray.exceptions.GetTimeoutError:
                self._replace(self._find_hung())
            except self._ray.exceptions.RayError as error:
                if kind_of_loss(error) is None:
                    raise
                self._replace(self._find_dead(first.actor, error))
        self._requests.popleft()
        self._end_idle()
        self._held += 1
        self._slowest = max(self._slowest, summary.seconds)
        self._taken[first.group] = state
        self._to_make.discard(first.group)
        self._strikes.pop(first.group, None)
        self._finished.clear()
        if first.lost is not None and first.lost.recovery_seconds is None:
            first.lost.recovery_seconds = time.monotonic() - first.lost.noticed
        return Sampled(summary, fragment, first.fragment)

    def _wait_for(self, first: Request) -> list[Any]:
        """What the actor returns, all of it: once it is on this machine, the loss of another cannot take it away."""
        answers = [first.summary, first.fragment, first.state]
        alone = {*self._actors.node_of.values()} == {self._here}
        left = self._bound(first)
        if alone:
            return list(self._ray.get(answers, timeout=left))
        end = time.monotonic() + left
        while True:
            bring_ahead(self._requests, self._ahead)
            left = max(end - time.monotonic(), 0.0)
            # Not `get`: when it runs out of time Ray drops what it has copied, and a slow copy would begin again and again.
            arrived, _ = self._ray.wait(answers, num_returns=len(answers), timeout=min(COPY_SECONDS, left))
            if len(arrived) == len(answers) or not left:
                return list(self._ray.get(answers, timeout=left))

    def release(self, fragments: int) -> None:
        self._held -= fragments
        self._submit()

    def lost_actors(self) -> list[LostActor]:
        lost, self._lost = self._lost, []
        return lost

    # --- which actors are lost ---------------------------------------------------------------------------------------------

    def _bound(self, request: Request) -> float:
        """Seconds within which this fragment, or another one of its actor, must arrive."""
        making = max(START_SECONDS, STRAGGLER_FACTOR * self._actors.making_seconds) if request.group in self._to_make else 0
        if self._straggler_seconds is not None:
            return making + self._straggler_seconds
        known = max(LEAST_STRAGGLER_SECONDS, STRAGGLER_FACTOR * self._slowest) if self._slowest else UNKNOWN_SECONDS
        return making + known

    def _find_hung(self) -> dict[int, tuple[str, str]]:
        """After a wait in vain, the actors that finished nothing while it lasted: by number, the kind of loss and a line."""
        first, now = self._requests[0], time.monotonic()
        if not self._ray.wait([first.summary, first.fragment, first.state], num_returns=3, timeout=0)[1]:
            return {}  # it came at the last moment
        answers = [request.summary for request in self._requests]
        ready = set(self._ray.wait(answers, num_returns=len(answers), timeout=0, fetch_local=False)[0]) - {first.summary}
        hung, nodes = {}, living_nodes()
        for number in dict.fromkeys(request.actor for request in self._requests):
            outstanding = [request for request in self._requests if request.actor == number]
            unfinished = [request for request in outstanding if request.summary not in ready]
            if unfinished and self._waits_for_another(min(unfinished, key=lambda request: request.at), ready):
                continue
            finished = len(outstanding) - len(unfinished)
            # What was finished before this wait was taken, or was there when the wait before it ran out.
            idle = not finished or self._finished.get(number) == finished
            self._finished[number] = finished
            if unfinished and idle:
                bound = max(self._bound(request) for request in unfinished)
                if now - min(request.at for request in unfinished) > bound - 0.1:
                    gone = self._actors.node_of[number] not in nodes
                    hung[number] = ("node lost", GONE) if gone else ("hung", f"made no fragment for {bound:.0f} s")
        return hung

    def _waits_for_another(self, request: Request, ready: set[Any]) -> bool:
        """Whether it goes on from a fragment that another actor has not finished, of which that actor is to be blamed."""
        before = takewhile(lambda other: other is not request, self._requests)
        owing = (other for other in before if other.group == request.group and other.actor != request.actor)
        return request.follows and any(other.summary not in ready for other in owing)

    def _find_dead(self, number: int, error: Exception) -> dict[int, tuple[str, str]]:
        """The actor that raised this error, and all others known to be dead: by number, the kind of loss and a line."""
        errors = {number: error}
        others = [request for request in self._requests if request.actor != number]
        answers = {other.summary: other.actor for other in others if not other.follows}  # those fail with the actor they follow
        if answers:
            for answer in self._ray.wait(list(answers), num_returns=len(answers), timeout=0, fetch_local=False)[0]:
                try:
                    self._ray.get(answer)
                except self._ray.exceptions.RayError as other:
                    if kind_of_loss(other) is not None:
                        errors.setdefault(answers[answer], other)
        nodes = living_nodes()
        dead = {actor: ("node lost", GONE) for actor, node in self._actors.node_of.items() if node not in nodes}
        for actor, what in errors.items():
            kind = kind_of_loss(what) or "died"
            by_node = kind == "died" and (actor in dead or "node has died" in str(what))
            dead[actor] = "node lost" if by_node else kind, describe_loss(what, "while it sampled") or kind
        return dead

    # --- which actors take over --------------------------------------------------------------------------------------------

    def _replace(self, found: dict[int, tuple[str, str]]) -> None:
        """End the lost actors, find others for their groups, and request every fragment again that was outstanding there.

        Raises:
            LostWorkerError: it keeps happening, or no actor is left.
        """
        if not found:
            return
        noticed = time.monotonic()
        self._leaving.clear()  # all that are left may be needed now; those too many leave again at the next request
        lost_of: dict[int, LostActor] = {}  # by group
        lost = []
        for number, (what, why) in found.items():
            outstanding = [request for request in self._requests if request.actor == number]
            groups = sorted({*self._assignment.groups_of(number), *(request.group for request in outstanding)} - set(lost_of))
            lost.append(LostActor(what, number, groups, [], 0, None, noticed))
            self._lost.append(lost[-1])  # told of, even if it ends the run
            lost_of |= dict.fromkeys(groups, lost[-1])
            self._actors.end(number)
            self._count_strike(outstanding, why)
        newcomers = self._actors.replace(len(lost), " and ".join(dict.fromkeys(why for _, why in found.values())))
        for one in lost:
            one.replaced_by = newcomers.pop(0) if newcomers else None
            heirs = self._actors.working if one.replaced_by is None else [one.replaced_by]
            self._assignment.share_out(self._assignment.groups_of(one.actor), heirs)
        for group, one in lost_of.items():  # also those that had moved away, but for fragments that were still to come
            if self._taken[group] is None or self._strikes.get(group, 0) > SAME_STRIKES:
                self._renew(group)
                one.afresh.append(group)
            self._hand_over(group, self._taken[group])
        for index, request in enumerate(self._requests):
            if (because := lost_of.get(request.group)) is not None:
                because.fragments += 1
                self._requests[index] = self._send(request.group, request.policy, because)

    def _count_strike(self, outstanding: list[Request], why: str) -> None:
        """Note the fragment that the actor made when it was lost; several losses in a row over the same one are no accident."""
        if outstanding:
            group = min(outstanding, key=lambda request: request.at).group
            self._strikes[group] = self._strikes.get(group, 0) + 1
            if self._strikes[group] >= MOST_STRIKES:
                raise LostWorkerError(f"a rollout worker {why} ({MOST_STRIKES} in a row were lost over the same fragment)")

    def _renew(self, group: int) -> None:
        """From now on the group is one that is made afresh."""
        self._taken[group] = None
        self._assignment.generation[group] += 1

    def _hand_over(self, group: int, start: Any) -> None:
        """Have the actor that holds the group now go on from a state, or the reference to one; None: from its beginning."""
        self._to_make.add(group)
        if start is not None:
            self._starts[group] = start
            return
        self._starts.pop(group, None)
        actor = self._actors.working[self._assignment.actor_of[group]]
        actor.prepare.remote({group: self._assignment.generation[group]})

    def _move_on(self, moved: Iterable[tuple[int, int]]) -> None:
        """Hand over groups whose actors work on: each goes on from where the last fragment that was requested of it will end.

        Args:
            moved: the groups, each with the actor that held it before, which gives it up behind those fragments.
        """
        last = {request.group: request.state for request in self._requests}
        for group, before in moved:
            if not self._savable:
                self._renew(group)
            known = last.get(group, self._starts.get(group, self._taken[group]))
            self._hand_over(group, known if self._savable else None)
            self._actors.working[before].drop.remote(group)

    def resize(self, actors: int) -> None:
        """Have so many actors from the next request on, as far as there are CPUs for them. Only of a fleet that grows."""
        self._wanted, self.short = actors, False
        self._looked, self._late = -math.inf, math.inf

    def _grow(self) -> None:
        """Give new actors their share of the groups; start more if there are CPUs for them, and send away those too many."""
        self._take_in()
        now = time.monotonic()
        if not self._actors.starting:
            self._late = math.inf
        elif self._late == math.inf:
            self._late = now + START_SECONDS
        if self._grows and now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._send_away(self.actors - self._wanted)
            if not self._actors.starting:
                self._actors.start_where_free(self._wanted - self.actors)
            # While some are starting nobody knows how many there will be; but they may never find room.
            self.short = self.actors < self._wanted and not (self._actors.starting and now < self._late)

    def _take_in(self) -> None:
        """Give those that have started since the last request their share of the groups."""
        if not self._actors.starting:
            return
        for newcomer in self._actors.wait_for(self._actors.starting, 0):
            if self.actors > self._wanted:  # fewer are wanted since it was asked for
                self._actors.end(newcomer)
                continue
            self._move_on(self._assignment.make_room(newcomer, self._staying))
        if not self._actors.starting:
            self._looked = -math.inf  # all have come: there may be room for more

    def _send_away(self, actors: int) -> None:
        """Have so many actors, the newest, hand their groups to the others; each ends when its last fragment has been taken."""
        going = sorted(self._staying)[-actors:] if actors > 0 else []
        self._leaving.update(going)
        for number in going:
            moved = self._assignment.groups_of(number)
            self._assignment.share_out(moved, self._staying)
            self._move_on((group, number) for group in moved)
        self._end_idle()

    def _end_idle(self) -> None:
        """End the actors that are leaving and have nothing more to make."""
        for number in self._leaving - {request.actor for request in self._requests} if self._leaving else ():
            self._leaving.discard(number)
            self._actors.end(number)

    def get_state(self) -> dict[str, Any] | None:
        states = [self._taken[group] for group in range(self._groups)]
        if any(state is None for state in states):
            return None
        policies = [request.policy for request in self._requests] + list(self._waiting)
        batches = [list(batch) for _, batch in groupby(policies, key=lambda policy: policy.version)]
        requested = [(batch[0].weights, batch[0].version, len(batch)) for batch in batches]
        next_group = self._requests[0].group if self._requests else self._next_group
        generations = list(self._assignment.generation)
        return {"states": states, "generations": generations, "requested": requested, "next_group": next_group}

    def set_state(self, state: dict[str, Any]) -> None:
        self._assignment.generation = list(state["generations"])
        self._taken = dict(enumerate(state["states"]))
        self._starts = dict(self._taken)
        self._next_group = state["next_group"]
        for weights, version, fragments in state["requested"]:
            self.request(weights, version, fragments)

    def close(self) -> None:
        self._actors.close()


Fleet = LocalFleet | RayFleet
