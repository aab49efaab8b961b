"""The learner alone, on real Pong fragments.

    python -m rlscale.benchmarks.measurements.learner blocks        its speed against the size of blocks and chunks
    python -m rlscale.benchmarks.measurements.learner precision     what bfloat16 does to the noise that it measures
    python -m rlscale.benchmarks.measurements.learner noise-cost    what the noise measurement costs it
    python -m rlscale.benchmarks.measurements.learner several       what a second thread and a second learner bring

Each takes `--rounds N` and `--out FILE`; `--help` lists the rest. A pass over the whole batch is one optimizer step. All cases
take turns in each round and learn from the same fragments.
"""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tyro

from rlscale.agents.cluster import connected
from rlscale.agents.config import NoiseSettings, TrainConfig, default_config
from rlscale.agents.learning import Learner, RemoteLearners, arrange_slots, learn_batch
from rlscale.agents.rollout import Fragment, RolloutWorker, WorkerSettings
from rlscale.envs import find_task
from rlscale.noise import noise_scale

from .measuring import CPU, NATURE, median_and_spread, precisions, print_table, rounds_of, write_result

BATCH = 8192
BLOCK_SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
CHUNKS = (128, 256, 512, 1024, 2048)
USUAL = (256, 512)  # block and chunk
HEADS = ("joint", "policy", "value")
SUMS = 5  # timed in a row
JOINT = NoiseSettings(policy_noise_period=0, value_noise_period=0, entropy_noise_period=0, iteration_noise_period=0)
NOTHING = replace(JOINT, joint_noise_period=0)
ALL = replace(JOINT, policy_noise_period=1, value_noise_period=1, entropy_noise_period=1)


def make_config(batch: int, rollout_length: int, noise: NoiseSettings, **update: Any) -> TrainConfig:
    """Settings of an update from one batch of Pong, one optimizer step a pass."""
    config = default_config(find_task("atari/pong"))
    rollout = replace(config.rollout, environments=batch // rollout_length, rollout_length=rollout_length)
    usual = replace(config.update, network=NATURE, mini_batch=None, learning_rate=2.5e-4)
    return replace(config, rollout=rollout, update=replace(usual, **update), noise=noise)


def make_worker(environments: int, rollout_length: int, bfloat16: bool, groups: int = 1, first_steps: int = 0) -> RolloutWorker:
    """A rollout worker of Pong in this process."""
    task = find_task("atari/pong")
    settings = WorkerSettings(task, environments, rollout_length, NATURE, bfloat16, 0, True, first_steps, 0, groups=groups)
    return RolloutWorker(settings, 0)


def make_learner(config: TrainConfig, bfloat16: bool) -> Learner:
    """A learner in this process."""
    return Learner(config, find_task(config.task), CPU, bfloat16)


def updating(config: TrainConfig, bfloat16: bool, fragments: list[Fragment]) -> Callable[[], object]:
    """One update of a learner of its own, to be timed."""
    learner = make_learner(config, bfloat16)
    return lambda: learn_batch(learner, fragments, 0, 1e-5)


def measure_blocks(rounds: int = 7, out: Path = Path("results/learner-blocks.json")) -> None:
    """Measure the learner's speed for every block size, chunk and precision; the joint noise is measured.

    Args:
        rounds: Paired rounds.
        out: Where the record goes.
    """
    with closing(make_worker(BATCH // 64, 64, "bfloat16" in precisions())) as worker:
        fragments = [worker.sample(0)]
    sizes = [(size, USUAL[1]) for size in BLOCK_SIZES] + [(USUAL[0], size) for size in CHUNKS if size != USUAL[1]]
    cases = {(precision, *size): size for precision in precisions() for size in sizes}
    updates = {
        str(case): updating(
            make_config(BATCH, 64, replace(JOINT, blocks=BATCH // block), epochs=1, chunk=chunk),
            precisions()[case[0]],
            fragments,
        )
        for case, (block, chunk) in cases.items()
    }
    seconds = rounds_of(updates, rounds)
    rows, readings = [], []
    for precision, block, chunk in cases:
        found = seconds[str((precision, block, chunk))]
        usual = seconds[str((precision, *USUAL))]
        share = median_and_spread([100 * b / a for a, b in zip(found, usual, strict=True)])
        rows.append([precision, block, BATCH // block, chunk, f"{BATCH / statistics.median(found):,.0f}", share])
        readings.append({"precision": precision, "block_size": block, "chunk": chunk, "seconds": found})
    columns = ["precision", "block", "blocks", "chunk", "observations/s", "% of the rate at 256, 512"]
    print_table(f"Learning from {BATCH:,} observations of Pong: median [middle half]", columns, rows)
    write_result(out, readings)


def compare_precisions(rounds: int = 7, updates: int = 30, out: Path = Path("results/learner-precision.json")) -> None:
    """Compare the noise in float32 and bfloat16 at the same parameters on the same fragments, sampled with these parameters.

    Args:
        rounds: Fragments at each of two sets of parameters: the initial ones, and those after some updates in float32.
        updates: Updates before the second set.
        out: Where the record goes.
    """
    if "bfloat16" not in precisions():
        sys.exit("precision: this machine does not compute in bfloat16")
    worker = make_worker(BATCH // 64, 64, True)
    config = make_config(BATCH, 64, replace(JOINT, policy_noise_period=1, value_noise_period=1), epochs=1, chunk=256)
    learners = {precision: make_learner(config, bfloat16) for precision, bfloat16 in precisions().items()}
    trained = learners["float32"]
    readings: list[dict[str, Any]] = []
    for made in (0, updates):
        while trained.optimizer_steps < made:
            worker.set_weights(trained.weights())
            learn_batch(trained, [worker.sample(0)], 1, config.update.learning_rate)
        worker.set_weights(trained.weights())
        state = trained.get_state()
        for sample in range(rounds):
            fragment = worker.sample(0)
            for precision, learner in learners.items():
                learner.set_state(state)
                for record in learn_batch(learner, [fragment], 0, 0.0).noise:
                    if record.head in HEADS:
                        noise = noise_scale(record.statistics)
                        readings.append(
                            {
                                "updates": made,
                                "sample": sample,
                                "precision": precision,
                                "head": record.head,
                                "trace_cov": noise.trace_cov,
                                "grad_sq": noise.grad_sq,
                                "b_simple": noise.b_simple,
                                "low": noise.interval[0],
                                "high": noise.interval[1] if noise.b_simple is not None else None,
                                "blocks": noise.blocks,
                            }
                        )
            print(f"noise in both precisions after {made} updates: {sample + 1} of {rounds}", flush=True)
        trained.set_state(state)
    worker.close()
    rows = [[made, head, *differences(readings, made, head)] for made in (0, updates) for head in HEADS]
    columns = ["updates", "head", "tr Σ, %", "|G|², %", "noise scale, %", "resolved", "interval, %"]
    print_table("Noise in bfloat16 against float32, same parameters and fragments: median [middle half]", columns, rows)
    write_result(out, readings)


def differences(readings: list[dict[str, Any]], made: int, head: str) -> list[str]:
    """How far bfloat16 is from float32, beside the width of the interval that float32 itself has."""
    mine = [r for r in readings if (r["updates"], r["head"]) == (made, head)]
    exact, rough = ([r for r in mine if r["precision"] == precision] for precision in ("float32", "bfloat16"))
    cells = []
    for name in ("trace_cov", "grad_sq", "b_simple"):
        pairs = [(a[name], b[name]) for a, b in zip(exact, rough, strict=True) if a[name] is not None and b[name] is not None]
        cells.append(median_and_spread([round(100 * (b / a - 1), 2) for a, b in pairs]) if pairs else "")
    widths = [50 * (a["high"] - a["low"]) / a["b_simple"] for a in exact if a["b_simple"] is not None]
    return [*cells, f"{len(widths)} of {len(exact)}", f"± {statistics.median(widths):.0f}" if widths else ""]


def measure_noise_cost(
    rounds: int = 15, batch: int | None = None, blocks: int | None = None, out: Path = Path("results/noise-cost.json")
) -> None:
    """Measure what the noise measurement costs the learner.

    Per round the same update is made without any measurement, with the joint statistic of every optimizer step, and with all
    heads due as well. The cost of the heads is spread over their default period.

    Args:
        rounds: Paired rounds; where 8,192 observations are one case of several, a third of them there, at least five.
        batch: Only this optimization batch, with one epoch: a single case allows many rounds.
        blocks: Blocks of every step; None: as many as a run takes by itself.
        out: Where the record goes.
    """
    rollout_length = 128
    if batch is not None and (batch < 2 * rollout_length or batch % rollout_length):
        sys.exit(f"noise-cost: --batch: give a multiple of {rollout_length}, {2 * rollout_length} or more")
    if blocks is not None and blocks < 2:
        sys.exit("noise-cost: --blocks: give 2 or more, fewer cannot show noise")
    readings: list[dict[str, Any]] = []
    rows = []
    for precision, bfloat16 in precisions().items():
        for size, epochs in ((2048, 1), (2048, 4), (8192, 1)) if batch is None else ((batch, 1),):
            with closing(make_worker(size // rollout_length, rollout_length, bfloat16, first_steps=200)) as worker:
                fragments = [worker.sample(0)]
            updates = {
                name: updating(
                    make_config(size, rollout_length, replace(noise, blocks=blocks), epochs=epochs), bfloat16, fragments
                )
                for name, noise in (("nothing", NOTHING), ("joint", JOINT), ("all", ALL))
            }
            seconds = rounds_of(updates, rounds if size < 8192 or batch else max(5, rounds // 3))
            period = NoiseSettings().period("policy", epochs)
            used = replace(JOINT, blocks=blocks).step_blocks(size, size // rollout_length, equal=False)
            sizes = {"optimization_batch": size, "epochs": epochs, "period": period, "blocks": used}
            readings.append({"precision": precision, **sizes, "seconds": seconds})
            taken = list(zip(seconds["nothing"], seconds["joint"], seconds["all"], strict=True))
            joint = median_and_spread([100 * (b / a - 1) for a, b, _ in taken])
            heads = median_and_spread([100 * ((b - a) + (c - b) / period) / a for a, b, c in taken])
            rate = f"{epochs * size / statistics.median(seconds['nothing']):,.0f}"
            rows.append([precision, f"{size:,}", used, epochs, rate, joint, period, heads])
    columns = ["precision", "optimization batch", "blocks", "epochs", "observations/s"]
    columns += ["joint: +%", "period", "joint and heads: +%"]
    print_table("Cost of the noise measurement, % of the learner's time: median [middle half]", columns, rows)
    write_result(out, readings)


def measure_several(rounds: int = 5, out: Path = Path("results/learner-several.json")) -> None:
    """Measure one learner with one thread and with two, and two learners with a thread each.

    The time of the sum over all parameters is measured in the learners themselves, apart from an update.

    Args:
        rounds: Paired rounds.
        out: Where the record goes.
    """
    import ray

    precision, bfloat16 = list(precisions().items())[-1]
    with closing(make_worker(BATCH // 128 // 2, 128, bfloat16, groups=2)) as worker:
        fragments = [worker.sample(0, group) for group in range(2)]
    slots = arrange_slots([fragment.group for fragment in fragments], fragments[0].environments)
    config = make_config(BATCH, 128, JOINT, epochs=1)
    shared = replace(config, update=replace(config.update, learners=2))
    threads = torch.get_num_threads()
    sums: list[float] = []
    with connected(None, 2):
        references = [ray.put(fragment) for fragment in fragments]
        alone = make_learner(config, bfloat16)
        numbers = len(alone.parameters) + 1
        with closing(RemoteLearners(shared, find_task(config.task), CPU, bfloat16, 1)) as pair:

            def learn_alone(with_threads: int) -> None:
                torch.set_num_threads(with_threads)
                learn_batch(alone, fragments, 0, 1e-5, slots)

            def add() -> None:
                sums.append(max(ray.get([actor.__ray_call__.remote(sum_seconds, numbers) for actor in pair._actors])))

            tasks: dict[str, Callable[[], object]] = {
                "1 learner, 1 thread": lambda: learn_alone(1),
                "1 learner, 2 threads": lambda: learn_alone(2),
                "2 learners, 1 thread": lambda: learn_batch(pair, references, 0, 1e-5, slots),
                "sum": add,
            }
            seconds = rounds_of(tasks, rounds)
    torch.set_num_threads(threads)
    del seconds["sum"]  # it includes the call; `sums` does not
    sums = sums[1:]  # the first one warmed up
    rows = []
    for name, found in seconds.items():
        shares = [100 * s / f for s, f in zip(sums, found, strict=True)]
        gain = [b / f for b, f in zip(seconds["1 learner, 1 thread"], found, strict=True)]
        share = median_and_spread(shares) if name.startswith("2 learners") else ""
        rows.append([name, f"{BATCH / statistics.median(found):,.0f}", median_and_spread(gain), share])
    columns = ["", "observations/s", "× 1 learner, 1 thread", f"sum of {numbers:,} numbers, % of it"]
    print_table(f"Learning from {BATCH:,} observations of Pong a step: median [middle half]", columns, rows)
    write_result(out, {"precision": precision, "seconds": seconds, "sum_numbers": numbers, "sum_seconds": sums})


def sum_seconds(actor: Any, numbers: int) -> float:
    """In each learner: seconds of one sum of so many numbers over all of them."""
    total = torch.zeros(numbers)
    torch.distributed.all_reduce(total)  # not counted: all begin together
    started = time.perf_counter()
    for _ in range(SUMS):
        torch.distributed.all_reduce(total)
    return (time.perf_counter() - started) / SUMS


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict(
        {
            "blocks": measure_blocks,
            "precision": compare_precisions,
            "noise-cost": measure_noise_cost,
            "several": measure_several,
        },
        description="Measure the learner alone.",
    )
