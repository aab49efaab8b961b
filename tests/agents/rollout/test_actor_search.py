"""How many actors a run keeps: the best of planted rates, in few trials, whatever disturbs an iteration."""

import math
import signal
from itertools import pairwise

import numpy as np
import pytest
from commands import fragments_of, rows_of, start, wait_for

from rlscale.agents.rollout.actor_search import WINDOW, ActorSearch, useful_counts
from rlscale.benchmarks.commands.train_display import say_trial
from rlscale.records import read_run


class PlantedFleet:
    """A fleet that has the wanted actors after `delay` more iterations, as far as there is room."""

    def __init__(self, room=1000, delay=0):
        self.room, self.delay = room, delay
        self.actors, self.short, self.left, self.wanted, self.history = 1, False, 0, 1, []

    def resize(self, actors):
        self.wanted, self.left, self.short = actors, self.delay, False
        self.history.append(actors)

    def iterate(self):
        self.left -= 1
        if self.left < 0:
            self.actors = min(self.wanted, self.room)
            self.short = self.actors < self.wanted


def seconds_of(actors, groups, work=1.0, learning=0.1):
    """Of an iteration: the fullest actor's groups one after another, then the learner."""
    return work * math.ceil(groups / actors) / groups + learning


def search(fleet, price, groups, seconds=seconds_of, settle=1, most=2000):
    """The trials until it settles."""
    found = ActorSearch(fleet, price, groups, settle)
    trials = []
    for _ in range(most):
        fleet.iterate()
        trial = found.add(1000, seconds(fleet.actors, groups))
        if trial is not None:
            trials.append(trial)
            if trial.settled:
                return trials
    raise AssertionError(f"not settled after {most} iterations: {trials}")


@pytest.mark.parametrize(("groups", "counts"), [(1, [1]), (8, [1, 2, 3, 4, 8]), (12, [1, 2, 3, 4, 6, 12]), (7, [1, 2, 3, 4, 7])])
def test_only_numbers_that_shorten_an_iteration_are_useful(groups, counts):
    assert useful_counts(groups) == counts
    shortest = [math.ceil(groups / n) for n in range(1, groups + 1)]
    assert counts == [n for n in range(1, groups + 1) if n == 1 or shortest[n - 1] < shortest[n - 2]]


@pytest.mark.parametrize("groups", [1, 2, 8, 12, 64, 360])
@pytest.mark.parametrize("price", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("learning", [1e-4, 0.03, 0.5, 20.0])
def test_the_cheapest_number_is_kept(groups, price, learning):
    """Against the best of all numbers, where the planted rates make the cost smooth enough to have one peak; else within 10%."""

    def seconds(actors, groups):
        return seconds_of(actors, groups, learning=learning)

    def worth(actors):
        return 1 / seconds(actors, groups) / (1 + price * actors)

    trials = search(PlantedFleet(), price, groups, seconds)
    kept, best = trials[-1].next, max(range(1, groups + 1), key=worth)
    assert worth(kept) > 0.9 * worth(best)
    tried = {trial.actors for trial in trials}
    assert worth(kept) == max(map(worth, tried))
    assert len(trials) == len(tried) <= 4 * math.log2(groups) + 1
    worths = [worth(n) for n in useful_counts(groups)]
    peaks = sum(a < b > c for a, b, c in zip([0, *worths], worths, [*worths[1:], 0], strict=False))
    if peaks == 1:
        assert kept == best


def test_a_price_by_hand():
    """8 groups, no learner: 8 actors give 8 times the rate of one for (1 + 8 p) / (1 + p) times the cost, always worth it. With
    a learner of 7/8 of the work 8 actors take an iteration of 1, 4 of 1.125, 2 of 1.375, 1 of 1.875."""

    def kept(price, learning):
        return search(PlantedFleet(), price, 8, lambda n, g: seconds_of(n, g, learning=learning))[-1].next

    assert kept(10.0, 0.0) == 8
    # cost per observation at price 0.1: 1.875 · 1.1 = 2.06, 1.375 · 1.2 = 1.65, (3) 1.25 · 1.3 = 1.625, 1.125 · 1.4 = 1.575, 1.8
    assert kept(0.1, 0.875) == 4
    # at 0.3: 2.44, 2.2, (3) 2.375, 2.475, 3.4
    assert kept(0.3, 0.875) == 2
    assert kept(1.0, 0.875) == 1  # 3.75, 4.125, ...
    assert kept(0.0, 0.875) == 8


def test_equal_rates_keep_the_fewer():
    assert search(PlantedFleet(), 0.0, 8, lambda n, g: 1.0)[-1].next == 1


def test_what_is_measured_and_when():
    """Nothing until the actors are there, then `settle` iterations that are not counted, then the median of the next eight."""
    fleet = PlantedFleet(delay=3)
    found = ActorSearch(fleet, 0.1, 8, settle=2)
    for tried, late in ((1, 0), (2, 3)):  # the first actor is there already
        count = 0
        while True:
            fleet.iterate()
            count += 1
            disturbed = count - late - 2 in (4, 6)
            seconds = 100.0 if count <= late + 2 or disturbed else 1.0 / tried
            if (trial := found.add(500, seconds)) is not None:
                break
        assert (trial.actors, count) == (tried, late + 2 + WINDOW)
        assert trial.observations_per_second == pytest.approx(500 * tried)
    assert fleet.history[:3] == [1, 2, 4]


@pytest.mark.parametrize("room", [1, 2, 3, 5, 6])
def test_no_room_for_more(room):
    """With room for fewer than are wanted, those there are the most; five are no faster than four."""
    fleet = PlantedFleet(room)
    trials = search(fleet, 0.0, 8)
    assert trials[-1].next == max(n for n in useful_counts(8) if n <= room)
    assert fleet.wanted == trials[-1].next
    assert all(trial.actors <= room for trial in trials)


def test_settled_is_the_end():
    fleet = PlantedFleet()
    found = ActorSearch(fleet, 0.5, 4, settle=1)
    trials = []
    for _ in range(200):
        fleet.iterate()
        trials.append(found.add(1000, seconds_of(fleet.actors, 4)))
    given = [trial for trial in trials if trial is not None]
    assert [trial.settled for trial in given] == [False] * (len(given) - 1) + [True]
    assert fleet.history[-1] == given[-1].next == fleet.actors


def test_noise_of_a_tenth_costs_little():
    """With iterations that scatter by 10% the kept number is within 10% of the cheapest, in the mean of many runs."""
    rng = np.random.default_rng(3)
    losses = []
    for _ in range(200):
        trials = search(PlantedFleet(), 0.05, 64, lambda n, g: seconds_of(n, g) * math.exp(rng.normal(0, 0.1)))
        worth = {n: 1 / seconds_of(n, 64) / (1 + 0.05 * n) for n in range(1, 65)}
        losses.append(1 - worth[trials[-1].next] / max(worth.values()))
    assert np.mean(losses) < 0.1


@pytest.mark.long
@pytest.mark.timed
def test_a_run_searches_and_stays(tmp_path):
    """Real actors: each trial is told and recorded, the batch keeps its size, and the number stays once it is found."""
    words = ["--environments", "8", "--rollout-length", "16", "--fragment-environments", "2", "--epochs", "1"]
    words += ["--mini-batch", "None", "--actors", "auto", "--actor-price", "0.2", "--observations", "100000000"]
    with start(tmp_path, "classic/cartpole", *words, "--run", "mine") as process:
        folder = tmp_path / "mine"

        def settled():
            trials = [row["actor_trial"] for row in read_run(folder).rows if "actor_trial" in row] if rows_of(folder) else []
            return trials and trials[-1]["settled"]

        wait_for(settled, process)
        before = rows_of(folder)
        wait_for(lambda: rows_of(folder) > before + 20, process)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    record = read_run(folder)
    trials = [row["actor_trial"] for row in record.rows if "actor_trial" in row]
    assert trials[0]["actors"] == 1
    assert [trial["settled"] for trial in trials] == [False] * (len(trials) - 1) + [True]
    # Where there is no room for the next number, those there are follow again.
    assert all(after["actors"] <= before["next"] for before, after in pairwise(trials))
    best = max(trials, key=lambda trial: trial["observations_per_second"] / (1 + 0.2 * trial["actors"]))
    assert trials[-1]["next"] == best["actors"] == record.rows[-1]["actors"]
    assert {row["batch_observations"] for row in record.rows} <= set(range(64, 129))  # but for masked steps 8 x 16
    entered = fragments_of(record.rows)
    assert len(entered) == len(set(entered)) == 4 * len(record.rows)
    assert [loss for row in record.rows for loss in row["losses"]] == []
    shown = (tmp_path / "shown").read_text()
    assert "as many Ray actors as are worth their price" in shown
    for trial in trials:
        assert say_trial(**trial) in shown
