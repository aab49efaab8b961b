"""A discrete-event simulation of clusters (workers, network, learner), to test the recommendations of `rlscale workers`.

    python -m rlscale.benchmarks.measurements.cluster_simulation [--draws N] [--record FILE] [--out FILE]

A draw is a cluster of 4 to 1,024 workers with random speeds, stragglers, neighbours on a node, links, learner, prices, batch and
lag. Every fragment takes a step time that `rlscale workers --validate` recorded; no fitted law enters the simulation. The
simulated cluster is then treated as a real one: a few fleets are measured for a few rounds, the law is fitted (`fit_fleet`), and
the number of workers at which an observation costs least is recommended. Its true cost is compared with that of the best number.
"""

import heapq
import itertools
import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from rlscale.sizing import LearnerTime, Price, fit_learner, iteration

from ..workers.calibration import ROLLOUT, FleetReading, Shape, fit_fleet
from .measuring import print_table, write_result

__all__ = ["Cluster", "StepTimes", "draw_cluster", "read_step_times", "recommend_workers", "simulate", "true_cost"]

MEASURED = (8, 64, 128)  # environments of an actor, as on a real cluster
RECORDED = (8, 128)  # from where to where step times are known
ROUNDS, SECONDS = 4, 10.0  # of a measurement, at least: `--seconds 10`, as is advised for clusters
LONG = 24  # iterations of the truth at least, and so many fragments
MANY = 1500
OBSERVATION_BYTES = 7100.0
PARAMETER_BYTES = 6.75e6


@dataclass(frozen=True)
class StepTimes:
    """Recorded seconds per step of one worker on one thread, by its number of environments.

    Attributes:
        environments: ascending.
        median: seconds of a step, for each.
        relative: all recorded fragments, each relative to its median.
    """

    environments: np.ndarray
    median: np.ndarray
    relative: np.ndarray

    def of(self, environments: float) -> float:
        """Between recorded numbers on the line that joins them; beyond them on the line of the last two."""
        x, y = self.environments, self.median
        i = int(np.clip(np.searchsorted(x, environments) - 1, 0, len(x) - 2))
        return float(y[i] + (y[i + 1] - y[i]) * (environments - x[i]) / (x[i + 1] - x[i]))


@dataclass(frozen=True)
class Cluster:
    """The truth of one draw.

    Attributes:
        speeds: (N,) how much longer each worker takes than the recorded one.
        straggling, straggle_factor: share of fragments that take so many times as long.
        per_node: workers of a node; `crowding` more seconds when all of them are busy.
        bandwidth: bytes per second into the learner's machine, and out of it.
        message: seconds that each fragment costs the learner's machine besides.
        learner: seconds per observation.
        learner_fixed: seconds per iteration.
        batch_size, rollout_length, lag: of the run.
        price: of an hour.
    """

    speeds: np.ndarray
    straggling: float
    straggle_factor: float
    per_node: int
    crowding: float
    bandwidth: float
    message: float
    learner: float
    learner_fixed: float
    batch_size: int
    rollout_length: int
    lag: int
    price: Price

    @property
    def counts(self) -> list[int]:
        """Numbers of workers to choose from: those that leave each as many environments as there are recorded times for."""
        least, most = workers_of(self.batch_size, self.rollout_length)
        most = min(most, len(self.speeds))
        grid = {round(2 ** (k / 2)) for k in range(21)} | {least, most}
        return sorted(n for n in grid if least <= n <= most)


def read_step_times(path: Path) -> StepTimes:
    """From a record of `rlscale workers --validate`."""
    record = json.loads(path.read_text(encoding="utf-8"))
    found: dict[int, list[float]] = {}
    for reading in (*record["fleets"], *record["validation"]["held_out"]):
        if (reading["shape"]["actors"], reading["shape"]["threads"]) == (1, 1):
            steps = [seconds / reading["rollout_length"] for (seconds,) in reading["fragments"]]
            found.setdefault(reading["shape"]["environments"], []).extend(steps)
    sizes = sorted(found)
    relative = [value / statistics.median(found[size]) for size in sizes for value in found[size]]
    return StepTimes(np.array(sizes, float), np.array([statistics.median(found[size]) for size in sizes]), np.array(relative))


def draw_cluster(generator: np.random.Generator) -> Cluster:
    """One cluster, and a run on it."""

    def between(low: float, high: float) -> float:
        return math.exp(generator.uniform(math.log(low), math.log(high)))

    workers = round(between(4, 1024))
    rollout = int(generator.choice([16, 32, 64, 128]))
    sizes = [b for b in (2**k for k in range(12, 21)) if workers_of(b, rollout)[0] <= workers / 2]
    batch = int(generator.choice(sizes))
    learner_hour = between(1, 100)
    return Cluster(
        speeds=np.exp(generator.normal(0, generator.uniform(0, 0.05), size=workers)),
        straggling=generator.uniform(0, 0.02),
        straggle_factor=generator.uniform(1.5, 4),
        per_node=int(generator.choice([8, 16, 32, 64])),
        crowding=generator.uniform(0, 0.4),
        bandwidth=between(3e8, 1e10),
        message=between(1e-4, 2e-3),
        learner=1 / between(5e3, 1.5e6),
        learner_fixed=between(1e-3, 5e-2),
        batch_size=batch,
        rollout_length=rollout,
        lag=int(generator.integers(0, 2)),
        price=Price(cpu_hour=1.0, learner_cpus=0.0, gpu_hour=learner_hour, learner_gpus=1.0),
    )


def workers_of(batch_size: int, rollout_length: int) -> tuple[int, int]:
    """The fewest and the most workers that can share a batch with so many environments each as were recorded."""
    return math.ceil(batch_size / (rollout_length * RECORDED[1])), batch_size // (rollout_length * RECORDED[0])


def simulate(
    cluster: Cluster,
    times: StepTimes,
    generator: np.random.Generator,
    workers: int,
    environments: float,
    rollout_length: int,
    iterations: int,
    *,
    learn: bool = True,
    lag: int = 0,
) -> tuple[list[float], list[tuple[float, ...]]]:
    """Run a fleet, event by event.

    Parameters leave the learner's machine node by node. A worker begins when it has them and is free. Finished fragments queue
    for the link into the learner's machine, first come, first served. The learner begins when a batch is complete; at lag 1 the
    next parameters go out at that moment, at lag 0 when it is done.

    Args:
        cluster, times: the truth.
        generator: for service times.
        workers, environments, rollout_length: of the fleet; every worker makes one fragment an iteration.
        iterations: to simulate.
        learn: whether the learner takes any time.
        lag: 0 or 1.

    Returns:
        Seconds from each batch's end to the next one's, and those that each worker took for its fragment.
    """
    bytes_each = environments * rollout_length * OBSERVATION_BYTES
    batch = workers * environments * rollout_length
    step = rollout_length * times.of(environments)
    busy = np.bincount(np.arange(workers) // cluster.per_node)
    crowded = 1 + cluster.crowding * (busy[np.arange(workers) // cluster.per_node] - 1) / max(cluster.per_node - 1, 1)
    events: list[tuple[float, int, str, int, int]] = []  # time, order, what, iteration, worker
    free = np.zeros(workers)
    arrived = [0] * iterations
    ends: list[float] = []
    services: list[list[float]] = [[] for _ in range(iterations)]
    link_free = learner_free = 0.0
    order = itertools.count()

    def at(time: float, what: str, number: int, worker: int = 0) -> None:
        heapq.heappush(events, (time, next(order), what, number, worker))

    def send(time: float, number: int) -> None:
        for node in range(len(busy)):
            at(time + (node + 1) * PARAMETER_BYTES / cluster.bandwidth, "parameters", number, node)

    send(0.0, 0)
    while events:
        now, _, what, number, worker = heapq.heappop(events)
        if what == "parameters":
            mine = np.arange(worker * cluster.per_node, min((worker + 1) * cluster.per_node, workers))
            drawn = times.relative[generator.integers(len(times.relative), size=len(mine))]
            drawn = np.where(generator.random(len(mine)) < cluster.straggling, cluster.straggle_factor * drawn, drawn)
            service = step * drawn * cluster.speeds[mine] * crowded[mine]
            services[number] += service.tolist()
            free[mine] = np.maximum(free[mine], now) + service
            for one in mine:
                at(float(free[one]), "finished", number, int(one))
        elif what == "finished":
            link_free = max(link_free, now) + cluster.message + bytes_each / cluster.bandwidth
            at(link_free, "arrived", number, worker)
        elif what == "arrived":
            arrived[number] += 1
            if arrived[number] == workers:
                at(max(now, learner_free), "complete", number)
        elif what == "complete":
            learner_free = now + (cluster.learner_fixed + batch * cluster.learner if learn else 0.0)
            at(learner_free, "learned", number)
            if lag and number + 1 < iterations:
                send(now, number + 1)
        else:
            ends.append(now)
            if not lag and number + 1 < iterations:
                send(now, number + 1)
    return [after - before for before, after in zip([0.0, *ends], ends, strict=False)], [tuple(row) for row in services]


def recommend_workers(cluster: Cluster, times: StepTimes, generator: np.random.Generator) -> int:
    """What the tool would recommend: it measures a few fleets for a few rounds, fits, and takes the cheapest prediction."""
    most = len(cluster.speeds)
    counts = sorted({2**k for k in range(1, 11)} | {most} | ({3} if most < 8 else set()))
    shapes = [Shape(1, 1, e) for e in MEASURED] + [Shape(n, 1, MEASURED[1]) for n in counts if 1 < n <= most]
    shapes.append(Shape(most, 1, MEASURED[0]))
    readings = []
    for shape in shapes:
        rounds = 1 + max(ROUNDS, math.ceil(SECONDS / (ROLLOUT * times.of(shape.environments))))
        seconds, fragments = simulate(cluster, times, generator, shape.actors, shape.environments, ROLLOUT, rounds, learn=False)
        size = round(shape.actors * shape.environments * ROLLOUT * OBSERVATION_BYTES)
        readings.append(FleetReading(shape, ROLLOUT, tuple(seconds[1:]), tuple(fragments[1:]), size))
    law = fit_fleet(readings, cluster.rollout_length)
    sizes = [2048, 2048, 4096, 4096]
    updates = [(cluster.learner_fixed + b * cluster.learner) * math.exp(generator.normal(0, 0.02)) for b in sizes]
    learner = fit_learner(sizes, [8] * 4, updates)
    predicted = {n: _predicted_cost(cluster, law, learner, n) for n in cluster.counts}
    return min(predicted, key=lambda n: predicted[n])


def _predicted_cost(cluster: Cluster, law: Any, learner: LearnerTime, workers: int) -> float:
    rate = law.rate(workers, cluster.batch_size / (workers * cluster.rollout_length)).value
    one = iteration(cluster.batch_size, rate, learner.seconds(cluster.batch_size, 8), lag=cluster.lag)
    return cluster.price.of_hour(workers) * one.seconds / cluster.batch_size


def true_cost(cluster: Cluster, times: StepTimes, seed: int, workers: int) -> float:
    """Price of an observation, from a long simulation; the same seed for every number of workers."""
    environments = cluster.batch_size / (workers * cluster.rollout_length)
    iterations = max(LONG, MANY // workers)
    generator = np.random.default_rng(seed)
    seconds, _ = simulate(cluster, times, generator, workers, environments, cluster.rollout_length, iterations, lag=cluster.lag)
    return cluster.price.of_hour(workers) * statistics.fmean(seconds[1:]) / cluster.batch_size


def run_draw(times: StepTimes, seed: int) -> dict[str, Any]:
    """One cluster: the recommended number of workers, and the best one."""
    generator = np.random.default_rng([seed, 0xC1])
    cluster = draw_cluster(generator)
    chosen = recommend_workers(cluster, times, generator)
    costs = {n: true_cost(cluster, times, seed, n) for n in cluster.counts}
    best = min(costs, key=lambda n: costs[n])
    facts = asdict(cluster)
    del facts["speeds"]
    return {
        "seed": seed,
        "workers": len(cluster.speeds),
        "cluster": facts,
        "recommended": chosen,
        "best": best,
        "above_optimum": costs[chosen] / costs[best] - 1,
        "costs": {str(n): cost for n, cost in costs.items()},
    }


def main(
    draws: int = 100,
    record: Path = Path("results/workers-pong.json"),
    seed: int = 0,
    out: Path = Path("results/cluster-simulation.json"),
) -> None:
    """Compare recommendations with the optimum in simulated clusters.

    Args:
        draws: Clusters.
        record: Recorded step times: what `rlscale workers --validate` wrote.
        seed: Seed of the first cluster; the next ones follow.
        out: Where the record goes.
    """
    times = read_step_times(record)
    done = []
    for number in range(seed, seed + draws):
        last = run_draw(times, number)
        done.append(last)
        print(
            f"{len(done)} of {draws}: {last['workers']} workers, recommended {last['recommended']}, "
            f"best {last['best']}: {100 * last['above_optimum']:.1f}% above",
            flush=True,
        )
    above = [draw["above_optimum"] for draw in done]
    within = sum(value <= 0.05 for value in above)
    rows = [[draws, within, f"{100 * statistics.median(above):.1f}", f"{100 * max(above):.1f}"]]
    columns = ["clusters", "within 5% of the optimum", "median above it, %", "worst, %"]
    print_table("Price of an observation at the recommended number of workers", columns, rows)
    write_result(out, {"step_times": str(record), "within": within, "draws": done})


if __name__ == "__main__":
    tyro.cli(main)
