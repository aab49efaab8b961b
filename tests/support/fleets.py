"""Settings and weights for small fleets, and `SimulatedRay`: Ray in one process with a clock of its own.

In it actors work, die and hang when a test wants them to. It offers what `RayFleet` and `RolloutActors` call of Ray, under the
same names. An actor's calls are made one after another, in the order in which they were asked for, each once the answers that it
takes are there; which actor is next is drawn by a seed. What Ray itself adds, processes, object stores and networks, is tested
with real ones elsewhere.
"""

import random
from types import SimpleNamespace

import ray
from ray import exceptions

from rlscale.agents.networks import flatten_parameters, make_network
from rlscale.agents.rollout.worker import WorkerSettings
from rlscale.envs import find_task

SECONDS_OF_A_CALL = 0.01


def settings_for(task_id, environments=4, length=16, **changes):
    task = find_task(task_id)
    network = "small_cnn" if task.network == "nature_cnn" else "mlp"
    values = dict(bfloat16=False, threads=1, cut_on_life_loss=True, random_first_steps=0, seed=11, generation=0)
    return WorkerSettings(task, environments, length, network, **{**values, **changes})


def weights_for(settings, seed=5):
    return flatten_parameters(make_network(settings.task, settings.network, seed)).numpy()


class Answer:
    """What an object reference is."""

    def __init__(self, value=None, done=False):
        self.value, self.done, self.error = value, done, None

    def put(self, value):
        self.value, self.done = value, True

    def fail(self, error):
        self.error, self.done = error, True


class Actor:
    """An actor's handle, and the process behind it.

    Attributes:
        instance: of its class, once it has started.
        node: where it started.
        hangs: set it, and the actor makes nothing any more.
    """

    def __init__(self, cluster, cls, arguments):
        self._cluster, self._cls, self._arguments = cluster, cls, arguments
        self._calls = []
        self.instance = self.node = None
        self.dead = self.hangs = False

    def __getattr__(self, name):
        return SimpleNamespace(
            remote=lambda *arguments: self._submit(name, arguments, 1)[0],
            options=lambda num_returns: SimpleNamespace(remote=lambda *arguments: self._submit(name, arguments, num_returns)),
        )

    def _submit(self, name, arguments, returns):
        answers = [Answer() for _ in range(returns)]
        if self.dead:
            self._fail(answers)
        else:
            self._calls.append((name, arguments, answers))
        return answers

    @staticmethod
    def _fail(answers):
        for answer in answers:
            answer.fail(exceptions.ActorDiedError())

    def die(self):
        self.dead = True
        for _, _, answers in self._calls:
            self._fail(answers)
        self._calls = []

    def can_work(self):
        if self.dead or self.hangs or not self._calls:
            return False
        if self.instance is None:
            return self._cluster.free() > 0
        return all(argument.done for argument in self._calls[0][1] if isinstance(argument, Answer))

    def work(self):
        """Make the call that is next; the first one starts the actor."""
        self._cluster.working = self
        if self.instance is None:
            self.node = self._cluster.random.choice(self._cluster.alive)
            self.instance = self._cls(*(a.value if isinstance(a, Answer) else a for a in self._arguments))
        name, arguments, answers = self._calls.pop(0)
        for argument in arguments:
            if isinstance(argument, Answer) and argument.error is not None:
                for answer in answers:
                    answer.fail(argument.error)
                return
        result = getattr(self.instance, name)(*(a.value if isinstance(a, Answer) else a for a in arguments))
        self._cluster.working = None
        for answer, value in zip(answers, result if len(answers) > 1 else [result], strict=True):
            answer.put(value)


class SimulatedRay:
    """A cluster. Put it in the place of the module `ray`, and itself in that of the module `time`.

    Args:
        cpus: that there are; every actor takes one.
        seed: of the order in which actors work.
        nodes: their names.
    """

    ObjectRef, exceptions, cloudpickle = Answer, exceptions, ray.cloudpickle

    def __init__(self, cpus, seed=0, nodes=("a",)):
        self.cpus, self.alive, self.now = cpus, list(nodes), 1000.0
        self.random = random.Random(seed)
        self.actors, self.working = [], None

    def monotonic(self):
        return self.now

    def free(self):
        return self.cpus - sum(actor.instance is not None and not actor.dead for actor in self.actors)

    def let_work(self, calls):
        """Let actors make so many calls, as far as there are any; whether there were."""
        for _ in range(calls):
            able = [actor for actor in self.actors if actor.can_work()]
            if not able:
                return False
            self.random.choice(able).work()
            self.now += SECONDS_OF_A_CALL
        return True

    def lose_node(self, name):
        self.alive.remove(name)
        for actor in self.actors:
            if actor.node == name:
                actor.die()

    # --- as Ray's own ------------------------------------------------------------------------------------------------------

    def remote(self, cls):
        def make(*arguments):
            self.actors.append(Actor(self, cls, arguments))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def put(self, value):
        return Answer(value, done=True)

    def kill(self, actor):
        actor.die()

    def nodes(self):
        return [{"NodeID": name, "Alive": True, "Resources": {"CPU": self.cpus}} for name in self.alive]

    def cluster_resources(self):
        return {"CPU": self.cpus}

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: self.working.node if self.working else "here")

    def get(self, answers, timeout=None):
        """Other than Ray's, it never runs out of time while an actor can work, however slowly."""
        asked = answers if isinstance(answers, list) else [answers]
        while not all(answer.done for answer in asked) and not any(answer.error for answer in asked):
            if not self.let_work(1):
                assert timeout is not None, "nobody can work, and this would wait for ever"
                self.now += timeout
                raise exceptions.GetTimeoutError
        for answer in asked:
            if answer.error is not None:
                raise answer.error
        values = [answer.value for answer in asked]
        return values if isinstance(answers, list) else values[0]

    def wait(self, answers, num_returns=1, timeout=None, fetch_local=True):
        assert 1 <= num_returns <= len(answers) == len(set(answers))
        while timeout != 0 and sum(answer.done for answer in answers) < num_returns:
            if not self.let_work(1):
                self.now += timeout
                break
        ready = [answer for answer in answers if answer.done][:num_returns]
        return ready, [answer for answer in answers if answer not in ready]
