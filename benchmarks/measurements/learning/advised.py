"""What `rlscale advise` advises, followed, beside the default settings: observations a second and return in the same time.

    python -m rlscale.benchmarks.measurements.learning.advised CASE [--seconds S] [--seeds N] [--out FILE]

The advice is that of the real command. What it prints for rlscale, or for RLlib, is taken word for word. Both kinds of run last
equally many seconds and take turns over the seeds. The cases are Atari Pong, MinAtar Breakout, a user's own environment
(examples/own_environment.py) and an RLlib job (examples/rllib_job.py, whose own settings are its defaults). A case that was
measured before is replaced in the record; the others stay.
"""

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import tyro

from rlscale.records import read_run

from ..measuring import mean_return, output_of, print_table, write_result

EXAMPLES = Path("examples")  # of the checkout in which the measurement is started
TASKS = {"pong": "atari/pong", "breakout": "minatar/breakout", "own": "own_environment:make"}
POINTS = 40  # of a learning curve in the record
RLLIB_DEFAULTS = "config"  # the example's own settings, which the job below begins with
JOB = """
import sys, time
from ray.rllib.algorithms.ppo import PPOConfig
from rlscale.rllib import measure_noise

folder, seed, seconds, every = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_env_runners=1, num_envs_per_env_runner=16)
    .training(train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=4, lr=1e-3)
    .debugging(seed=seed)
)
config = {line}
measure_noise(config, run=folder, every=every)
algorithm = config.build_algo()
started = time.monotonic()
while time.monotonic() - started < seconds:
    algorithm.train()
algorithm.stop()
"""


def main(
    case: Literal["pong", "breakout", "own", "rllib"],
    /,
    seconds: float = 120,
    seeds: int = 3,
    out: Path = Path("results/advised.json"),
) -> None:
    """Ask for advice, then train with it and without.

    Args:
        case: What is trained.
        seconds: Of each run, from its first iteration on.
        seeds: Runs of each kind.
        out: Where the record goes.
    """
    cases = json.loads(out.read_text())["readings"] if out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        measured = (
            of_rllib(Path(folder), seconds, seeds) if case == "rllib" else of_task(TASKS[case], Path(folder), seconds, seeds)
        )
    cases[case] = {"options": {"case": case, "seconds": seconds, "seeds": seeds}, **measured}
    write_result(out, cases)
    rows = [
        [run["kind"], run["seed"], f"{run['rate']:,.0f}", f"{run['observations']:,}", f"{run['end']:.4g}", f"{run['whole']:.4g}"]
        for run in measured["runs"]
    ]
    print(f"advised in {measured['advice_seconds']:.0f} s: {measured['line']}")
    print_table(
        f"{case}, {seconds:g} s each", ["settings", "seed", "observations/s", "in all", "return, last fifth", "all"], rows
    )


def of_task(task: str, folder: Path, seconds: float, seeds: int) -> dict[str, Any]:
    """Advice and runs of `rlscale train`."""

    def make(words: str, seed: int, run: Path) -> None:
        rlscale(
            *shlex.split(words)[1:],
            "--seconds",
            str(seconds),
            "--no-anneal",  # the rate of some tasks falls to the end of their observations, which here have none
            "--observations",
            "None",
            "--seed",
            str(seed),
            "--run",
            str(run),
        )

    advice = advised(task, "--out", str(folder / "advice"))
    return beside(advice, "rlscale", f"rlscale train {task}", make, folder, seeds)


def of_rllib(folder: Path, seconds: float, seeds: int) -> dict[str, Any]:
    """The example's job, read by `advise --run`; then jobs with its settings and with the line for RLlib."""
    job(folder / "first", RLLIB_DEFAULTS, 0, 30, every=1)
    advice = advised("classic/cartpole", "--run", str(folder / "first"))

    def make(words: str, seed: int, run: Path) -> None:
        job(run, words, seed, seconds, every=1_000_000)

    return beside(advice, "RLlib", RLLIB_DEFAULTS, make, folder, seeds)


def beside(
    advice: dict[str, Any], tool: str, default: str, make: Callable[[str, int, Path], None], folder: Path, seeds: int
) -> dict[str, Any]:
    """The advice, and runs with the defaults and with the line for that tool, which take turns over the seeds."""
    line, runs = advice["lines"][tool], []
    for seed in range(seeds):
        for kind, words in {"default": default, "advised": line}.items():
            run = folder / f"{kind}-{seed}"
            make(words, seed, run)
            runs.append({"kind": kind, "seed": seed, **read(run)})
            print(runs[-1]["kind"], seed, f"{runs[-1]['end']:.4g}", flush=True)
    return {"advice_seconds": advice["seconds"], "line": line, "advice": advice, "runs": runs}


def advised(*words: str) -> dict[str, Any]:
    """What `rlscale advise WORDS --json` prints, and how long the whole command took."""
    started = time.monotonic()
    advice: dict[str, Any] = json.loads(rlscale("advise", *words, "--json"))
    return advice | {"seconds": time.monotonic() - started}


def job(folder: Path, line: str, seed: int, seconds: float, every: int) -> None:
    """An RLlib job in a process of its own, with the line as its settings."""
    output_of([sys.executable, "-c", JOB.replace("{line}", line), *map(str, (folder, seed, seconds, every))], EXAMPLES)


def rlscale(*words: str) -> str:
    """What `rlscale WORDS` prints; it runs where a user's own environment is found."""
    return output_of([sys.executable, "-m", "rlscale", *words], EXAMPLES)


def read(folder: Path) -> dict[str, Any]:
    """Rate, returns and learning curve of a run against its seconds."""
    rows = read_run(folder).rows
    seconds, observations = rows[-1]["seconds"], rows[-1]["observations"]
    finished = [row for row in rows if row["episodes"]]
    parts = [finished[i : i + max(1, len(finished) // POINTS)] for i in range(0, len(finished), max(1, len(finished) // POINTS))]
    return {
        "rate": observations / seconds,
        "observations": observations,
        "iterations": len(rows),
        "end": mean_return(row for row in rows if row["seconds"] > 0.8 * seconds),
        "whole": mean_return(rows),
        "curve": [[round(part[-1]["seconds"], 1), part[-1]["observations"], mean_return(part)] for part in parts],
    }


if __name__ == "__main__":
    tyro.cli(main)
