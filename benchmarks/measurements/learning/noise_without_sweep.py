"""The noise scale of tasks that no sweep affords: one training run of each, the noise of every head against its return.

    python -m rlscale.benchmarks.measurements.learning.noise_without_sweep [--tasks TASK ...] [--observations N] [--jobs N]

PPO as people run it: 16 environments x 128 steps, three epochs of mini-batches of 256, a constant rate. The noise of policy,
value and joint loss is that of the whole iteration batch, in blocks of one environment each, every eighth iteration. The record
keeps it pooled over windows of some 20 measurements. Each run works on one core; Ctrl-C stops them all, and the same command
goes on, with more observations than before too. It prints where the runs are; `rlscale report RUN --watch`
follows them.
"""

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rlscale.analysis.summary import noise_over_run, noise_windows, returns
from rlscale.cpus import usable_cpus
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.noise import NoiseEstimate
from rlscale.records import RunRecord, folder_name, read_run

from ..measuring import print_table, say_recorded, settings_of, write_result

GAMES = ("alien", "beam_rider", "breakout", "pong", "qbert", "seaquest", "space_invaders")  # the paper's seven
HEADS = ("policy", "value", "joint", "joint_policy_parameters")
SHOWN = {**{head: (head, "plain") for head in HEADS[:3]}, "preregistered": ("joint_policy_parameters", "adam")}  # in the table
METRICS = ("plain", "adam")
KIND = "rollout"


@dataclass(frozen=True)
class Options:
    """Measure the noise scale of one training run of each task."""

    tasks: tuple[str, ...] = tuple(f"atari/{game}" for game in GAMES)
    """The tasks, in this order."""
    settings: str = (
        "--network small_cnn --epochs 3 --learning-rate 4e-4 --no-anneal "
        "--policy-noise-period 8 --value-noise-period 8 --iteration-noise-period 8"
    )
    """Of each run, as typed after `rlscale train TASK`; write --settings='--network …'."""
    observations: int = 2_000_000
    """Of each run; a run that ended with fewer goes on."""
    jobs: int = usable_cpus()
    """Runs side by side, a core each."""
    runs: str = "runs/noise-without-sweep"
    """Where they are while they run."""
    out: Path = Path("results/noise-without-sweep.json")
    """Where the record goes."""


def main(options: Options) -> None:
    """Make the runs, or go on with them, and write the record after each."""
    try:
        if options.jobs < 1:
            raise UsageError("--jobs", f"{options.jobs} runs side by side make none", "Give 1 or more")
        for task in options.tasks:  # before the first of them takes its half hour
            find_task(task)
    except UsageError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"runs are in {options.runs}", flush=True)
    ended: dict[str, RunRecord] = {}
    found: list[dict[str, Any]] = []
    pool = ThreadPoolExecutor(options.jobs)
    try:
        jobs = {pool.submit(run, task, options): task for task in options.tasks}
        for job in as_completed(jobs):
            ended[jobs[job]] = job.result()
            found = [summary_of(task, ended[task]) for task in options.tasks if task in ended]
            write_result(options.out, {"options": settings_of(options), "tasks": found})
    except KeyboardInterrupt:
        sys.exit("stopped; the same command goes on")
    finally:
        pool.shutdown(cancel_futures=True)  # the runs that have begun got the signal too, and keep a checkpoint
    print_table("Noise scale of the iteration batch, averaged over the run", *table(found))


def run(task: str, options: Options) -> RunRecord:
    """The record of the task's run, which is begun, goes on, or is there already."""
    folder = Path(options.runs, folder_name(task))
    if not (folder / "manifest.json").exists():
        words = [task, *shlex.split(options.settings), "--threads", "1", "--run", str(folder)]
    elif (record := read_run(folder)).rows and record.rows[-1]["observations"] >= options.observations:
        return record
    else:
        words = [task, "--resume", str(folder)]
    typed = ["train", *words, "--observations", str(options.observations)]
    print(f"{task}: rlscale {shlex.join(typed)}", flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "rlscale", *typed], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{task}: {done.stderr.strip()[-2000:]}", file=sys.stderr)
        sys.exit(done.returncode)
    return read_run(folder)


def summary_of(task: str, record: RunRecord) -> dict[str, Any]:
    """What the committed record keeps of a run: its curve, and each head's noise in windows and over the whole run."""
    curve = [(point["observations"], point["return"]) for point in returns(record)]
    noise = []
    for head in HEADS:
        for metric in METRICS:
            windows = noise_windows(record, head, KIND, metric)
            if windows:
                over = noise_over_run(record, head, KIND, metric)
                noise.append(
                    {
                        "head": head,
                        "metric": metric,
                        "over_run": None if over is None else spelled(over),
                        "windows": [
                            {"observations": w.observations, "return": at(curve, w.observations), **spelled(w.noise)}
                            for w in windows
                        ],
                    }
                )
    return {
        "task": task,
        "observations": record.rows[-1]["observations"],
        "seconds": record.rows[-1]["seconds"],
        "command": record.manifest["command"],
        "commit": record.manifest["commit"],
        "seed": record.manifest["seed"],
        "curve": curve,
        "noise": noise,
    }


def spelled(noise: NoiseEstimate) -> dict[str, Any]:
    """A noise scale with its interval; None for a value that is not resolved. An open upper end is null in the file."""
    return {"value": noise.b_simple, "interval": list(noise.interval)}


def at(curve: list[tuple[int, float]], observations: float) -> float | None:
    """Mean return of the last 100 episodes when so many observations had been sampled; None before an episode had finished."""
    return next((mean for seen, mean in reversed(curve) if seen <= observations), None)


def table(found: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: each task's return at the end, and the noise scales, averaged over the run.

    Of each loss in the plain metric, and the preregistered one, of the joint loss on the policy's parameters in Adam's metric.
    """
    rows = []
    for task in found:
        over = {(one["head"], one["metric"]): say_recorded(**one["over_run"]) for one in task["noise"] if one["over_run"]}
        end = f"{task['curve'][-1][1]:,.1f}" if task["curve"] else "–"
        rows.append([task["task"], f"{task['observations'] / 1e6:.2f}", end, *(over.get(which, "–") for which in SHOWN.values())])
    return ["task", "observations, millions", "return at the end", *SHOWN], rows


if __name__ == "__main__":
    main(tyro.cli(Options))
