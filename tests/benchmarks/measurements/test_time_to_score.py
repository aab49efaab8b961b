"""Time to a stated return, and where a second goes: exact cases, real runs of both libraries, the numbers of docs/speed.md."""

import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rlscale.benchmarks.measurements.learning import time_to_score
from rlscale.benchmarks.measurements.learning.time_to_score import CASES, Case, crossings, reached, table, thinned
from rlscale.benchmarks.measurements.limits import STAGES, matrix_rate, nearness, operations_of, shares_of
from rlscale.benchmarks.measurements.measuring import median_and_spread
from rlscale.benchmarks.measurements.sampling import ask, atari_task
from rlscale.benchmarks.options import parse_train

ROOT = Path(__file__).parents[3]
CURVE = [(1.0, 100, None), (2.0, 200, -20.0), (4.0, 300, -17.5), (5.0, 400, -18.5), (9.0, 500, 18.0)]


def test_a_goal_is_reached_at_the_first_iteration_whose_mean_is_not_below_it() -> None:
    assert crossings(CURVE, (-18.0, 18.0, 18.5)) == {
        "-18": {"seconds": 4.0, "observations": 300},
        "18": {"seconds": 9.0, "observations": 500},
        "18.5": None,
    }


def test_the_defaults_of_pong_are_the_settings_that_won_it_soonest() -> None:
    case = CASES["pong"]
    won = parse_train([case.task, *case.settings.split(), "--observations", str(case.observations)])
    assert parse_train(["atari/pong", "--actors", "2"]) == won
    published = json.loads((ROOT / "results" / "time-to-score.json").read_text())["readings"]["runs"]
    assert sum(run["case"] == "pong" and run["settings"] == case.settings and bool(run["goals"]["18"]) for run in published) == 2


def test_a_thinned_curve_keeps_its_ends() -> None:
    curve = [(float(i), i, None) for i in range(1001)]
    kept = thinned(curve)
    assert kept[0] == curve[0]
    assert kept[-1] == curve[-1]
    assert 200 <= len(kept) <= 252
    assert thinned(CURVE) == CURVE


def test_the_table_counts_the_runs_that_missed_a_goal_and_what_the_machine_samples_meanwhile() -> None:
    runs = [
        {"case": "pong", "settings": "", "sampling": rate, "goals": {"18": at}}
        for rate, at in (
            (2000.0, {"seconds": 600.0, "observations": 1_000_000}),
            (1000.0, {"seconds": 1200.0, "observations": 2_000_000}),
            (1000.0, None),
        )
    ]
    columns, rows = table(runs)
    row = dict(zip(columns, rows[0], strict=True))
    assert row["reached"] == "2 of 3"
    assert row["minutes"] == "15.00 [10.00, 20.00]"
    assert row["observations, millions"] == "1.50 [1.00, 2.00]"
    assert row["the machine samples meanwhile, millions"] == "1.20 [1.20, 1.20]"


@pytest.mark.long
@pytest.mark.parametrize("zoo", [None, "CartPole-v1"])
def test_a_real_run_ends_at_its_goal(zoo: str | None) -> None:
    case = Case("classic/cartpole", (20.0, 80.0), 1, 100_000, zoo=zoo)
    curve = time_to_score.ours(case, 0) if zoo is None else time_to_score.with_stable_baselines3(case, 0)
    crossed = crossings(curve, case.goals)
    assert crossed["20"] is not None
    assert crossed["80"] is not None
    assert crossed["20"]["observations"] < crossed["80"]["observations"] == curve[-1][1] < case.observations
    assert 0 < crossed["20"]["seconds"] < crossed["80"]["seconds"] == curve[-1][0]


def test_an_unknown_case_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        time_to_score.main(time_to_score.Options(cases=("tetris",)))
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "'tetris'" in said
    assert "pong" in said


def test_every_case_names_a_task_and_rising_goals() -> None:
    from rlscale.envs import find_task

    for case in CASES.values():
        assert find_task(case.task).id == case.task
        assert list(case.goals) == sorted(case.goals)


def test_the_page_of_speed_holds_the_records_numbers() -> None:
    page = (ROOT / "docs" / "speed.md").read_text()
    columns, rows = table(readings("time-to-score")["runs"])
    assert f"| {' | '.join(name for name in columns if name != 'settings')} |" in page
    for name, settings, *cells in rows:
        if "5e-4" not in settings:  # the slower Pong is a line of the picture, and its figures are in the log
            assert f"| {name} | {' | '.join(cells)} |" in page
    shares = [[shares_of(rates) for rates in readings(name)["rounds"]["float32"]] for name in ("limits", "limits-small-cnn")]
    for stage in STAGES:
        cells = [median_and_spread([100 * share[stage] for share in of]) for of in shares]
        assert f"| {stage} | {' | '.join(cells)} |" in page
    rounds = readings("limits")["rounds"]["float32"]
    said = " ".join(page.split())
    assert f"at {100 * statistics.median(map(nearness, rounds)):.0f}% of the rate of one large matrix product" in said
    assert f"{rounds[0]['operations'] / 1e6:.0f} million floating-point operations an observation" in said
    small, large = (
        statistics.median(r["end to end"] for r in of) for of in (readings("limits-small-cnn")["rounds"]["float32"], rounds)
    )
    assert f"{small:.0f} observations a second in place of {large:.0f}" in said


def readings(record: str) -> Any:
    return json.loads((ROOT / "results" / f"{record}.json").read_text())["readings"]


def test_shares_of_an_end_to_end_second_are_of_the_time_that_an_observation_takes() -> None:
    rates = {
        "emulator": 1000.0,  # 1 ms
        "with inference": 500.0,  # 2 ms
        "by Ray actors": 400.0,  # 2.5 ms
        "learner": 200.0,  # 5 ms
        "learner, noise measured": 1 / 0.0055,  # 5.5 ms
        "end to end": 100.0,  # 10 ms, of which 8 are accounted for
        "operations": 7.0,
        "matrix product": 9.0,
    }
    assert list(shares_of(rates).values()) == pytest.approx([0.1, 0.1, 0.05, 0.5, 0.05, 0.2])


def test_operations_are_counted_as_two_for_a_product_and_a_sum() -> None:
    one, two = torch.ones(3, 5), torch.ones(5, 7)
    assert operations_of(lambda: one @ two) == 2 * 3 * 5 * 7


def test_the_rate_of_a_matrix_product_is_its_operations_by_the_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 3.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert matrix_rate(size=8, times=5) == 5 * 2 * 8**3 / 2
    rates = {"learner": 10.0, "operations": 4.0, "matrix product": 50.0}
    assert nearness(rates) == pytest.approx(0.8)


def test_bare_processes_are_asked_together() -> None:
    class Pipe:
        def __init__(self, rate: float) -> None:
            self.rate, self.asked = rate, ()

        def send(self, asked: tuple[float, bool]) -> None:
            self.asked = asked

        def recv(self) -> float:
            return self.rate

    pipes = [Pipe(100.0), Pipe(150.0)]
    assert ask(pipes, 2.0, infer=False) == 250.0
    assert [pipe.asked for pipe in pipes] == [(2.0, False)] * 2


@pytest.mark.parametrize("task", ["minatar/breakout", "atari/no_such_game"])
def test_another_task_than_an_atari_game_has_no_limits(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        atari_task(task)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert task in said
    assert said.count("\n") == 1


def test_a_mean_of_zero_reaches_a_goal_below_it() -> None:
    assert reached([(1.0, 10, None), (2.0, 20, 0.0)], -18.0) == (2.0, 20, 0.0)
    assert reached([(2.0, 20, 0.0)], 0.5) is None
