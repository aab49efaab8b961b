"""`VectorTaskEnv`, a `TaskEnv` around any `gymnasium.vector.VectorEnv`, and `task_of_spaces`, a task that is known by its spaces.

Families whose environments follow Gymnasium's interface build on these two, on `ArraysTaskEnv` where a few arrays are their whole
state, and on `RestartableTaskEnv` where single ones of them can be started anew as well.
"""

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from rlscale.errors import UsageError

from .actions import actions_of_space, to_space
from .interface import Step, TaskEnv
from .task import Task

__all__ = [
    "ArraysTaskEnv",
    "RestartableTaskEnv",
    "SyncEnvs",
    "VectorTaskEnv",
    "refuse_statistics",
    "shows_pixels",
    "task_of_spaces",
]


def task_of_spaces(task_id: str, observation: Any, action: Any, **rest: Any) -> Task:
    """A task with Discrete or Box actions whose observations, Box or Discrete, are flattened to one row of features.

    Args:
        task_id: its name.
        observation: Gymnasium's space of one environment's observations.
        action: the space of its actions.
        rest: the other fields of `Task`.

    Raises:
        UsageError: spaces that cannot be learned.
    """
    actions = actions_of_space(task_id, action)
    if not isinstance(observation, Box | Discrete):
        raise UsageError(
            "TASK", f"{task_id} has {type(observation).__name__} observations", "Only Box or Discrete can be learned"
        )
    if 0 in observation.shape:
        raise UsageError("TASK", f"{task_id} has observations of shape {observation.shape}", "Give them at least one number")
    return Task(
        id=task_id,
        frame_shape=(int(observation.n) if isinstance(observation, Discrete) else math.prod(observation.shape),),
        frame_dtype="uint8" if isinstance(observation, Box) and observation.dtype == "uint8" else "float32",
        actions=actions,
        preprocessing="flattened",
        pixels=shows_pixels(observation),
        **rest,
    )


def shows_pixels(observation: Any) -> bool:
    """Whether the observations of a Gymnasium space are pixels: bytes of which every one may be as large as 255.

    The bounds decide, because a dark picture and planes of 0 and 1 look alike.
    """
    return isinstance(observation, Box) and observation.dtype == np.uint8 and bool((observation.high == 255).all())


def refuse_statistics(name: str, env: Any) -> None:
    """Refuse wrappers that scale by what they have seen: groups of environments, and evaluations, have wrappers of their own.

    Args:
        name: of the task.
        env: a single environment, or a vector environment, which may be closed. Those of an `AsyncVectorEnv` are in other
            processes, so one more is made here.

    Raises:
        UsageError: one of them is around the vector environment, or around a single one in it.
    """
    while env is not None:
        for kind in type(env).__mro__:
            if kind.__name__ in ("NormalizeObservation", "NormalizeReward"):
                problem = f"{name} uses {kind.__name__}, whose statistics no evaluation and no second actor would share"
                raise UsageError("TASK", problem, "Scale by fixed numbers instead, with TransformObservation or TransformReward")
        if isinstance(env, AsyncVectorEnv):
            one = env.env_fns[0]()
            try:
                return refuse_statistics(name, one)
            finally:
                one.close()
        env = env.envs[0] if isinstance(env, SyncVectorEnv) else getattr(env, "env", None)


class VectorTaskEnv(TaskEnv):
    """The environments of a `gymnasium.vector.VectorEnv` that resets on the step after an end.

    Args:
        task: the task.
        env: its N environments.
        one_seed: they are natively vectorized: all draw from one generator, which takes the first seed.
    """

    def __init__(self, task: Task, env: Any, *, one_seed: bool) -> None:
        self.num_envs = env.num_envs
        self._task, self._env, self._one_seed = task, env, one_seed
        self._ended = np.zeros(self.num_envs, dtype=bool)
        self._steps = 0

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self._steps = 0
        answer = self._env.reset(seed=int(seeds[0]) if self._one_seed else [int(seed) for seed in seeds])
        observation, _ = self._values("reset", answer, 2)
        self._ended = np.zeros(self.num_envs, dtype=bool)
        return self._finite("observation", self._flatten(observation))

    def step(self, actions: np.ndarray) -> Step:
        self._steps += 1
        answer = self._env.step(to_space(self._task.actions, actions, self._env.single_action_space))
        observation, reward, terminated, truncated, _ = self._values("step", answer, 5)
        terminated = self._rows("ends", terminated).astype(bool)
        truncated = self._rows("cuts", truncated).astype(bool)
        reset, self._ended = self._ended, terminated | truncated
        return Step(
            self._finite("observation", self._flatten(observation)),
            self._finite("reward", np.asarray(self._rows("rewards", reward), dtype=np.float32)),
            terminated,
            truncated,
            reset,
        )

    def _values(self, method: str, answer: Any, count: int) -> tuple[Any, ...]:
        """What a method of the environments returned.

        Raises:
            UsageError: it is no tuple of so many values.
        """
        if isinstance(answer, tuple) and len(answer) == count:
            return answer
        what = f"{len(answer)} values" if isinstance(answer, tuple) else type(answer).__name__
        problem = f"{self._task.id}: {method} returned {what}, not {count} values"
        raise UsageError("TASK", problem, f"Mend the environment: return what gymnasium.vector.VectorEnv.{method} returns")

    def _rows(self, what: str, values: Any, shape: tuple[int, ...] = ()) -> np.ndarray:
        """The values as an array with a row of that shape for each environment; lists may be given too.

        Raises:
            UsageError: they have another shape.
        """
        wanted = (self.num_envs, *shape)
        try:
            rows = np.asarray(values)
            if rows.shape == wanted:
                return rows
            found = f"of shape {rows.shape}"
        except ValueError:
            found = "of several shapes"
        problem = f"{self._task.id}: {what} {found} in step {self._steps:,}, not {wanted}"
        raise UsageError("TASK", problem, "Mend the environment: a row for each environment, in the shape of its space")

    def _finite(self, what: str, values: np.ndarray) -> np.ndarray:
        """The values as they are.

        Raises:
            UsageError: one is not finite, from which no gradient could be computed; says where it came from.
        """
        if values.dtype != np.uint8 and not np.isfinite(values).all():
            place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
            where = f" at {', '.join(map(str, place[1:]))}" if place[1:] else ""
            raise UsageError(
                "TASK",
                f"{self._task.id}: environment {place[0]} gave the {what} {values[place]}{where} in step {self._steps:,}",
                "Mend the environment: learning needs finite numbers",
            )
        return values

    def _flatten(self, observation: Any) -> np.ndarray:
        space = self._env.single_observation_space
        observation = self._rows("observations", observation, space.shape)
        if isinstance(space, Discrete):
            states = observation - space.start
            self._require(np.isin(states, np.arange(space.n)), observation, f"not one of {space.n} from {space.start} on")
            rows = np.zeros((self.num_envs, *self._task.frame_shape), dtype=np.float32)
            rows[np.arange(self.num_envs), states.astype(np.int64)] = 1
            return rows
        if self._task.frame_dtype == "uint8" and observation.dtype != np.uint8:
            with np.errstate(invalid="ignore"):  # of what is not finite
                same = observation.astype(np.uint8) == observation
            self._require(same, observation, "no byte, as its space says")
        # The environment may reuse its buffer at the next step; astype copies. Always row by row: the last bits of a matrix
        # product depend on the layout, and a copy of a state that goes on would have another one.
        return observation.reshape(self.num_envs, -1).astype(self._task.frame_dtype, order="C")

    def _require(self, fits: np.ndarray, observation: np.ndarray, why: str) -> None:
        """Make sure that every observation of a batch fits its space.

        Raises:
            UsageError: an observation does not fit; says which.
        """
        if not fits.all():
            place = tuple(int(i) for i in np.argwhere(~fits)[0])
            given = f"{self._task.id}: environment {place[0]} gave the observation {observation[place]} in step {self._steps:,}"
            raise UsageError("TASK", f"{given}, {why}", "Mend the environment or its observation space")

    def close(self) -> None:
        try:
            self._env.close()
        except (EOFError, OSError):  # its environments' own processes have ended before, as by a signal to the whole group
            self._env.closed = True  # or its destructor asks them once more, and prints what it could not do


class ArraysTaskEnv(VectorTaskEnv):
    """Environments whose whole state is a few arrays and one generator, so that a run can go on exactly.

    The vector environment has them as `state`, `steps`, `prev_done` and `np_random`.
    """

    def get_state(self) -> dict[str, Any]:
        env = self._env
        return {
            "state": env.state.copy(),
            "steps": env.steps.copy(),
            "ended": env.prev_done.copy(),
            "generator": env.np_random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        env = self._env
        env.reset(seed=0)
        env.state, env.steps, env.prev_done = state["state"].copy(), state["steps"].copy(), state["ended"].copy()
        env.np_random.bit_generator.state = state["generator"]
        self._ended = state["ended"].copy()

    def draw_from(self, seeds: np.ndarray) -> None:
        """As in `TaskEnv`; all environments draw from one generator."""
        self._env.np_random = np.random.Generator(np.random.PCG64([int(seed) for seed in seeds]))


class SyncEnvs(SyncVectorEnv):  # type: ignore[misc]  # gymnasium is untyped
    """Gymnasium's single environments, one after another, whose infos nobody reads.

    Gymnasium would make arrays of them, which fails in the midst of a run where an environment's info is not always of one kind.
    """

    def _add_info(self, vector_infos: dict[str, Any], env_info: Any, env_num: int) -> dict[str, Any]:
        return vector_infos


class SyncTaskEnv(VectorTaskEnv):
    """A `SyncVectorEnv`, whose environments can be restarted one by one: those of many tasks all have episodes of one length."""

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        observation, _ = self._env.reset(seed=[int(seed) for seed in seeds], options={"reset_mask": which})
        self._ended[which] = False
        return self._finite("observation", self._flatten(observation))


class RestartableTaskEnv(ArraysTaskEnv):
    """Environments that can be restarted one by one, since nothing else sets episodes of one length out of step.

    The vector environment does it in `restart`.
    """

    def restart(self, which: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """As in `TaskEnv`; the states are drawn from the one generator of all environments, not from the seeds."""
        observation = self._env.restart(which)
        self._ended[which] = False
        return self._flatten(observation)
