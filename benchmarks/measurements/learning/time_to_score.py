"""How soon a task is solved here: wall time and observations to a stated return, every seed with its learning curve.

    python -m rlscale.benchmarks.measurements.learning.time_to_score [--cases NAME ...] [--seeds N] [--out FILE]

A goal counts as reached at the end of the first iteration whose last 100 finished episodes have that mean raw return; training
episodes, with actions drawn from the policy. The time is the run's own, from its first request for experience on, without the
start of Python and Ray. Machines differ, so before each run the sampling rate of `rlscale bench` is measured: Pong, the Nature
network, as many actors as cores. A time multiplied by that rate is what the machine would have sampled meanwhile, and compares
between machines. Every run has the whole machine. Stable-Baselines3 runs with the settings that RL Zoo publishes. Runs that the
record already holds are not made again: on another machine name another file.
"""

import json
import shlex
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro

from rlscale.agents.cluster import connected
from rlscale.agents.compute import resolve_compute
from rlscale.agents.config import default_config
from rlscale.agents.machine import describe_machine, find_commit
from rlscale.benchmarks.bench.suite import ENVIRONMENTS, UPDATE
from rlscale.benchmarks.bench.suite import TASK as SAMPLED
from rlscale.benchmarks.workers.calibration import Shape, measure_fleet
from rlscale.cpus import usable_cpus
from rlscale.envs import find_task
from rlscale.returns import EPISODES, RecentReturn

from ..measuring import CPU, map_in_processes, print_table, require_known, settings_of, train, write_result

POINTS = 200  # of a learning curve in the record
SAMPLING_SECONDS = 8.0
Curve = list[tuple[float, int, float | None]]  # seconds, observations, mean return of 100 episodes once there are as many


@dataclass(frozen=True)
class Case:
    """A task, how it is trained, and the returns that are waited for.

    Attributes:
        task: as typed after `rlscale train`.
        goals: mean raw returns of 100 episodes, the last of which ends a run.
        seeds: runs, if the user names no number.
        observations: at which a run ends without having reached its last goal.
        settings: as typed after the task.
        zoo: the environment with whose settings in RL Zoo Stable-Baselines3 trains; None: rlscale trains.
    """

    task: str
    goals: tuple[float, ...]
    seeds: int
    observations: int
    settings: str = ""
    zoo: str | None = None


# The defaults of atari/pong, spelled: records of the time before they were its defaults have the same label.
PONG = "--network small_cnn --actors 2 --epochs 3 --learning-rate 1e-3 --anneal"
CASES = {
    "pong": Case("atari/pong", (-18.0, 0.0, 18.0), 2, 2_500_000, PONG),
    "pong-sb3": Case("atari/pong", (-18.0,), 2, 1_000_000, zoo="PongNoFrameskip-v4"),
    "cartpole": Case("classic/cartpole", (475.0,), 3, 1_000_000),
    "cartpole-sb3": Case("classic/cartpole", (475.0,), 3, 1_000_000, zoo="CartPole-v1"),
    "asterix": Case("minatar/asterix", (2.0, 5.0), 3, 4_000_000, "--actors 2"),
    "breakout": Case("minatar/breakout", (4.0, 10.0), 3, 4_000_000, "--actors 2"),
    "freeway": Case("minatar/freeway", (10.0, 40.0), 3, 4_000_000, "--actors 2"),
    "seaquest": Case("minatar/seaquest", (2.0, 5.0), 3, 4_000_000, "--actors 2"),
    "space-invaders": Case("minatar/space_invaders", (30.0, 60.0), 3, 4_000_000, "--actors 2"),
}


@dataclass(frozen=True)
class Options:
    """Measure how soon tasks reach a stated return on this machine."""

    cases: tuple[str, ...] = tuple(CASES)
    """Which of them."""
    seeds: int | None = None
    """Runs of each case; None: two of Pong, three of the others."""
    out: Path = Path("results/time-to-score.json")
    """Where the record goes."""


def main(options: Options) -> None:
    """Make the runs that are missing, and print a table."""
    require_known("--cases", options.cases, CASES)
    runs: list[dict[str, Any]] = json.loads(options.out.read_text())["readings"]["runs"] if options.out.exists() else []
    chosen = {name: CASES[name] for name in options.cases}
    seeds = {name: case.seeds if options.seeds is None else options.seeds for name, case in chosen.items()}
    for seed in range(max(seeds.values(), default=0)):
        for name, case in chosen.items():
            labels = {"case": name, "seed": seed, "settings": case.settings}
            if seed >= seeds[name] or any(labels.items() <= run.items() for run in runs):
                continue
            print(f"{name}, seed {seed}: up to {case.observations:,} observations", flush=True)
            found = {"sampling": sampling_rate(), "commit": find_commit(), "machine": describe_machine(CPU)}
            # The other library's in a process of its own, with which its threads and environments are gone.
            (curve,) = [ours(case, seed)] if case.zoo is None else map_in_processes(with_stable_baselines3, [(case, seed)])
            runs.append({**labels, **found, "goals": crossings(curve, case.goals), "curve": thinned(curve)})
            write_result(options.out, {"options": settings_of(options), "runs": runs})
            print(f"{name}, seed {seed}: {describe(runs[-1])}", flush=True)
    print_table("Time to a mean return of 100 episodes: median [each seed]", *table(runs))


def sampling_rate() -> float:
    """Observations per second that `rlscale bench` would find for Pong with an actor on each core."""
    task, cores = find_task(SAMPLED), usable_cpus()
    usual = default_config(task)
    config = replace(usual, update=replace(usual.update, **UPDATE))
    with connected(None, cores):
        reading = measure_fleet(config, task, resolve_compute(config), Shape(cores, 1, ENVIRONMENTS), SAMPLING_SECONDS)
    return statistics.median(reading.rates)


def ours(case: Case, seed: int) -> Curve:
    """Seconds, observations and mean return after each iteration of `rlscale train`."""
    budget = ["--goal", case.goals[-1], "--observations", case.observations, "--seed", seed]
    recent, curve = RecentReturn(), Curve()
    for row in train(case.task, *shlex.split(case.settings), *budget).rows:
        recent.add(row["episodes"], row["return_mean"])
        curve.append((row["seconds"], row["observations"], recent.mean if recent.episodes >= EPISODES else None))
    return curve


def with_stable_baselines3(case: Case, seed: int) -> Curve:
    """The same of Stable-Baselines3's PPO with the settings that RL Zoo publishes, in its hyperparams/ppo.yml."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    model, total = {"PongNoFrameskip-v4": _zoo_pong, "CartPole-v1": _zoo_cartpole}[str(case.zoo)](PPO, seed)
    curve: Curve = []
    started = time.perf_counter()

    class Watch(BaseCallback):  # type: ignore[misc]  # untyped where the peers are not installed
        def _on_step(self) -> bool:
            return not reached(curve[-1:], case.goals[-1]) and self.num_timesteps < case.observations

        def _on_rollout_start(self) -> None:
            finished = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            mean = statistics.fmean(finished) if len(finished) == EPISODES else None
            if self.num_timesteps:
                curve.append((time.perf_counter() - started, self.num_timesteps, mean))

    model.learn(total, callback=Watch())
    return curve


def _zoo_pong(algorithm: Any, seed: int) -> tuple[Any, int]:
    """Settings of `atari`; environments in processes of their own, the faster way on two cores (results/peers.json)."""
    import ale_py
    import gymnasium
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack

    gymnasium.register_envs(ale_py)
    made = make_atari_env(
        "ALE/Pong-v5",
        8,
        seed=seed,
        env_kwargs={"frameskip": 1, "repeat_action_probability": 0.0},
        vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": "fork"},  # a fresh process would not know the Atari ids
    )
    model = algorithm(
        "CnnPolicy",
        VecFrameStack(made, 4),
        n_steps=128,
        n_epochs=4,
        batch_size=256,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=lambda left: 0.1 * left,
        vf_coef=0.5,
        ent_coef=0.01,
        seed=seed,
        device="cpu",
    )
    return model, 10_000_000


def _zoo_cartpole(algorithm: Any, seed: int) -> tuple[Any, int]:
    """Settings of `CartPole-v1`."""
    from stable_baselines3.common.env_util import make_vec_env

    model = algorithm(
        "MlpPolicy",
        make_vec_env("CartPole-v1", 8, seed=seed),
        n_steps=32,
        batch_size=256,
        gae_lambda=0.8,
        gamma=0.98,
        n_epochs=20,
        ent_coef=0.0,
        learning_rate=lambda left: 0.001 * left,
        clip_range=lambda left: 0.2 * left,
        seed=seed,
        device="cpu",
    )
    return model, 100_000


def crossings(curve: Curve, goals: tuple[float, ...]) -> dict[str, dict[str, float] | None]:
    """Seconds and observations at which each goal was first reached; None where it was not."""
    found: dict[str, dict[str, float] | None] = {}
    for goal in goals:
        first = reached(curve, goal)
        found[f"{goal:g}"] = None if first is None else {"seconds": first[0], "observations": first[1]}
    return found


def reached(curve: Curve, goal: float) -> tuple[float, int, float | None] | None:
    """The first point of a learning curve whose mean return is not below the goal."""
    return next((point for point in curve if point[2] is not None and point[2] >= goal), None)


def thinned(curve: Curve) -> Curve:
    """At most some 200 points of a learning curve, its last one among them."""
    every = max(len(curve) // POINTS, 1)
    return [*curve[: len(curve) - 1 : every], *curve[-1:]]


def describe(run: dict[str, Any]) -> str:
    """A run in a line."""
    words = [
        f"{goal} after {at['seconds']:,.0f} s, {at['observations']:,} observations" if at else f"{goal} not reached"
        for goal, at in run["goals"].items()
    ]
    return f"{'; '.join(words)} (Pong sampled at {run['sampling']:,.0f}/s)"


def table(runs: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one for each case, settings and goal."""
    rows = []
    for case, settings in dict.fromkeys((run["case"], run["settings"]) for run in runs):
        mine = [run for run in runs if (run["case"], run["settings"]) == (case, settings)]
        for goal in mine[0]["goals"]:
            crossed = [(run["goals"][goal], run["sampling"]) for run in mine if run["goals"][goal]]
            minutes = [at["seconds"] / 60 for at, _ in crossed]
            millions = [at["observations"] / 1e6 for at, _ in crossed]
            sampled = [at["seconds"] * rate / 1e6 for at, rate in crossed]
            rows.append([case, settings, goal, f"{len(crossed)} of {len(mine)}", *map(_each, (minutes, millions, sampled))])
    columns = [
        "case",
        "settings",
        "return",
        "reached",
        "minutes",
        "observations, millions",
        "the machine samples meanwhile, millions",
    ]
    return columns, rows


def _each(values: list[float]) -> str:
    each = [f"{value:.2f}" for value in values]
    return f"{statistics.median(values):.2f} [{', '.join(each)}]" if len(each) > 1 else (each or ["–"])[0]


if __name__ == "__main__":
    main(tyro.cli(Options))
