"""The ladder: what the rungs spell, and a rung that is climbed, interrupted by a new machine, and climbed on."""

import dataclasses
import gzip
import json
import math
import re
import shutil
import statistics
import subprocess
from functools import partial
from operator import mul
from pathlib import Path

import pytest
from rungs import comparison_of, row_of, skip_without_its_engine

from rlscale.analysis import compare
from rlscale.analysis.paper import score_paper
from rlscale.analysis.predictions import PRIMARY, at_crossings, pooled_noise
from rlscale.analysis.rungs import rungs_of
from rlscale.analysis.verdict import SUCCESS, score
from rlscale.benchmarks.measurements.ladder import climb as ladder
from rlscale.benchmarks.measurements.ladder import page as ladder_page
from rlscale.benchmarks.measurements.ladder import storage
from rlscale.benchmarks.measurements.ladder.afterwards import (
    FEWEST_LATER,
    JOINT,
    POLICY,
    THIRD,
    second_hypothesis,
)
from rlscale.benchmarks.measurements.ladder.again import SEED, Repetition, repetitions
from rlscale.benchmarks.measurements.ladder.forecasts import Moment, moments_of, within
from rlscale.benchmarks.measurements.ladder.page import PAGE, PUBLISHED, read_ladder, rewritten, what_is_published
from rlscale.benchmarks.measurements.ladder.readings import doubtful_crossings, for_mini_batches, iterations_or_mini_batches
from rlscale.benchmarks.measurements.ladder.rungs import Rung, read_rungs
from rlscale.benchmarks.measurements.ladder.storage import folder_in, keep_record, restore_record
from rlscale.benchmarks.options import parse
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.estimate import Estimate
from rlscale.records import read_sweep
from rlscale.text import format_quantity

ROOT = Path(__file__).parent.parent.parent.parent
RUNGS = read_rungs()[1]
# Where the sweep lies and runs is no part of its protocol; data are supervised tasks', of which no rung is;
# no rung is quick, and none has an averaged policy, which is younger than their code.
OUTSIDE = {"tasks", "out", "report", "ray-address", "data", "quick", "proximal-average"}
MADE = "<!-- made: {} -->\n<!-- end -->"


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_a_rung_spells_every_option_of_a_sweep_that_can_run(rung):
    assert set(rung.options) == {field.name.replace("_", "-") for field in dataclasses.fields(SweepOptions)} - OUTSIDE
    options = parse(SweepOptions, "sweep", rung.command("sweeps")[1:])
    assert options.tasks == (rung.task,)
    assert options.hours is not None, "every rung has a budget"
    assert options.network is not None
    assert options.width is not None, "the network's own might become another one"
    skip_without_its_engine(rung)
    make_plan(rung.task, options)
    assert rung.role in ("task", "development", "control", "intervention")


def test_a_file_of_rungs_that_contradicts_itself_is_not_read(tmp_path):
    text = 'code = "HEAD"\n[protocol.p]\nseed = "0"\n[[rung]]\nname = "a"\ntask = "t"\nrole = "task"\nprotocol = "p"\n'
    path = tmp_path / "rungs.toml"
    for wrong, message in (
        (text.replace('protocol = "p"', 'protocol = "q"'), "there is no protocol 'q'"),
        (text + 'seed = "1"\n', "seed is its protocol's"),
        (text + text[text.index("[[rung]]") :], "rung a is there twice"),
        (text + 'base = "b"\n', "there is no rung 'b' before it"),
    ):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=message):
            read_rungs(path)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A clone of this checkout's last commit with one tiny rung."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    here = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(here)], check=True)
    (here / "results" / "ladder").mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(here)
    file = tmp_path / "rungs.toml"
    options = {"goals": "20", "pilot-batch": "160", "hours": "1e-4", "noise-runs": "0", "jobs": "0"}
    lines = "".join(f'{name} = "{value}"\n' for name, value in options.items())
    rung = '[[rung]]\nname = "tiny"\ntask = "classic/cartpole"\nrole = "control"\nprotocol = "p"\n'
    file.write_text(f'code = "HEAD"\n[protocol.p]\n{lines}{rung}')
    monkeypatch.setattr(ladder, "read_rungs", lambda: read_rungs(file))
    monkeypatch.setattr(ladder, "NICENESS", 0)  # beside other tests the sweep would hardly move
    return here


@pytest.mark.long
def test_a_rung_is_climbed_and_goes_on_from_its_compact_record(checkout, capfd):
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert ladder.main(["climb"]) == 0
    record = Path("results/ladder/tiny")
    assert sorted(path.name for path in record.iterdir()) == ["ladder.json", "results.jsonl.gz", "sweep.json"]
    kept = json.loads((record / "ladder.json").read_text())
    assert (kept["code"], kept["state"], kept["role"]) == (commit, "finished", "control")
    assert kept["finished"].endswith("+00:00")
    results = read_sweep(record).results
    assert len(results) == 3, "the pilot spends so short a budget"
    assert {result.commit for result in results.values()} == {commit}

    # Another machine has the first result alone: the others are made again, by the recorded command.
    shutil.rmtree("runs/ladder")
    lines = gzip.decompress((record / "results.jsonl.gz").read_bytes()).splitlines(keepends=True)
    (record / "results.jsonl.gz").write_bytes(gzip.compress(lines[0]))
    (record / "ladder.json").write_text(json.dumps({**kept, "state": "begun"}))
    assert ladder.main(["climb", "tiny"]) == 0
    again = read_sweep(record).results
    assert gzip.decompress((record / "results.jsonl.gz").read_bytes()).splitlines(keepends=True)[0] == lines[0]
    assert again.keys() == results.keys()
    assert all(again[name].goals == results[name].goals for name in results)

    capfd.readouterr()
    assert ladder.main(["climb"]) == 0
    out = capfd.readouterr().out
    assert "==" not in out, "what is finished is not begun again"
    assert "ended after 0.0 hours" in out
    assert ladder.main(["status"]) == 0
    assert "finished" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("state", "hours", "goes_on_with"),
    [
        ("finished", "10", "10"),
        ("begun", "10", "10"),
        ("finished", "8.0", None),
        ("finished", "6", None),
        ("given up: why", "10", None),
    ],
)
def test_more_hours_reopen_a_rung(tmp_path, monkeypatch, state, hours, goes_on_with):
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "classic/cartpole", "--hours", "8", "--seed", "0"]
    ladder.Progress("task", None, "abc", command, state, "2026-11-30").write("a")
    rung = Rung("a", "classic/cartpole", "task", None, {"seed": "1", "hours": hours})
    monkeypatch.setattr(ladder, "read_rungs", lambda: ("HEAD", [rung]))
    ran = []
    monkeypatch.setattr(ladder, "_run", lambda _, progress: ran.append(progress) or 0)
    assert ladder.climb() == 0
    if goes_on_with is None:
        assert ran == []
    else:
        (progress,) = ran
        assert progress.command == ["sweep", "classic/cartpole", "--hours", goes_on_with, "--seed", "0"]
        assert (progress.state, progress.code, progress.finished) == ("begun", "abc", None)


@pytest.mark.long
def test_a_rung_that_fails_is_said_and_can_be_tried_again(checkout, capfd):
    record = Path("results/ladder/tiny/ladder.json")
    file = checkout.parent / "rungs.toml"
    right = file.read_text()
    file.write_text(right.replace('goals = "20"', 'goals = "wrong"'))
    assert ladder.main(["climb"]) == 1
    assert "rung tiny ended with exit code 2" in capfd.readouterr().err
    failed = json.loads(record.read_text())
    assert (failed["state"], failed["finished"]) == ("failed with exit code 2", None)
    failed["command"] = [word if word != "wrong" else "20" for word in failed["command"]]
    record.write_text(json.dumps(failed))
    assert ladder.main(["climb"]) == 0
    assert json.loads(record.read_text())["state"] == "finished"


def test_a_clone_that_was_killed_before_its_checkout_is_made_again(checkout, monkeypatch):
    """An empty folder would have the rung run from the code that is installed."""
    run = subprocess.run

    def killed(words, **settings):
        if words[:2] == ["git", "checkout"]:
            raise KeyboardInterrupt
        return run(words, **settings)

    commit = run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setattr(subprocess, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        ladder._clone(commit)
    monkeypatch.setattr(subprocess, "run", run)
    code = ladder._clone(commit)
    assert (code / "rlscale" / "__init__.py").exists()
    assert run(["git", "status", "--porcelain"], cwd=code, capture_output=True, text=True, check=True).stdout == ""
    assert [path.name for path in code.parent.iterdir()] == [code.name]


def test_a_record_that_was_restored_by_half_is_restored_again(tmp_path, monkeypatch):
    """Killed between two files, the sweep would begin anew, and its record would take the place of the whole one."""
    record = ROOT / "results" / "ladder" / "digits"

    write = storage.write_atomically
    for file in ("results.jsonl", "sweep.json"):

        def killed(path, content, file=file):
            if path.name == file:
                raise KeyboardInterrupt
            write(path, content)

        with monkeypatch.context() as patch:
            patch.setattr(storage, "write_atomically", killed)
            with pytest.raises(KeyboardInterrupt):
                restore_record(record, tmp_path)
        assert folder_in(tmp_path) is None, file
    restore_record(record, tmp_path)
    assert read_sweep(folder_in(tmp_path)).results == read_sweep(record).results


def test_a_record_that_went_on_elsewhere_is_never_overwritten_by_an_older_sweep(tmp_path):
    """The machine on which a rung began still has its sweep, after another one has finished it and its record was pulled."""
    record, home = tmp_path / "record", tmp_path / "home"
    shutil.copytree(ROOT / "results" / "ladder" / "digits", record)
    whole = gzip.decompress((record / "results.jsonl.gz").read_bytes())
    restore_record(record, home)
    results = folder_in(home) / "results.jsonl"
    rows = whole.splitlines(keepends=True)
    results.write_bytes(b"".join(rows[:10]) + rows[10][:40])  # the eleventh row is being written
    assert not keep_record(folder_in(home), record)
    assert gzip.decompress((record / "results.jsonl.gz").read_bytes()) == whole
    restore_record(record, home)
    assert results.read_bytes() == whole
    results.write_bytes(whole + b'{"one": "more"}\n' + b'{"half')
    restore_record(record, home)
    assert results.read_bytes().endswith(b"half"), "what is newer here stays"
    assert keep_record(folder_in(home), record)
    assert gzip.decompress((record / "results.jsonl.gz").read_bytes()) == whole + b'{"one": "more"}\n'
    results.write_bytes(b"".join(rows[:10]) + b'{"another": "run"}\n')
    with pytest.raises(SystemExit, match="each hold runs that the other lacks"):
        restore_record(record, home)


def test_a_repetition_without_a_figure_is_neither_alike_nor_not(tmp_path, monkeypatch):
    open_one = Repetition("a", 1.0, Estimate(1000.0, (800.0, 1250.0)), Estimate(None, None, "unknown"))
    monkeypatch.setattr(ladder_page, "repetitions", lambda records, again: [open_one])
    said = rewritten(MADE.format("again"), comparison_of(row_of("classic/a", 100.0, 50.0)))
    (line,) = (line for line in said.splitlines() if "`a`" in line)
    assert [cell.strip() for cell in line.split("|")][-2] == "–"


def test_a_rung_that_nobody_knows_is_named(checkout):
    with pytest.raises(SystemExit, match=r"there is no rung big; rungs\.toml has tiny"):
        ladder.main(["climb", "big"])


def test_a_ladder_that_was_stopped_says_so(checkout, monkeypatch, capsys):
    monkeypatch.setattr(ladder, "climb", lambda rungs: 130)
    assert ladder.main(["climb"]) == 130
    assert capsys.readouterr().out.startswith("stopped after 0.0 hours")


@pytest.mark.long
def test_a_rung_is_run_again_with_other_seeds_and_goes_on_from_its_compact_record(checkout, capfd):
    assert ladder.main(["again", "tiny"]) == 0
    record = Path("results/ladder-again/tiny")
    assert sorted(path.name for path in record.iterdir()) == ["ladder.json", "results.jsonl.gz", "sweep.json"]
    first = read_sweep(record)
    assert {result.seed for result in first.results.values()} <= set(range(SEED, SEED + 100))
    assert not Path("results/ladder/tiny").exists(), "the rung itself is not touched"
    shutil.rmtree("runs")
    assert ladder.main(["again", "tiny"]) == 0
    assert read_sweep(record).results == first.results
    assert ladder.main(["again"]) == 2
    assert "no rung was named" in capfd.readouterr().err


@pytest.mark.parametrize(("code", "made", "said"), [(130, 1, 130), (-9, 1, 130), (1, 3, 1), (0, 3, 0)])
def test_where_one_repetition_was_stopped_the_next_does_not_begin(monkeypatch, code, made, said):
    begun = []
    monkeypatch.setattr(ladder, "run_again", lambda rung: begun.append(rung.name) or code)
    assert ladder.again(("digits", "snake", "umbrella")) == said
    assert len(begun) == made


def test_a_repetition_counts_once_it_has_ended_and_the_rung_has_a_figure(tmp_path):
    for name in ("digits", "cliffwalking"):  # the second one was given up and has no B_crit
        shutil.copytree(ROOT / "results" / "ladder-again" / "digits", tmp_path / name)
    records = ROOT / "results" / "ladder"
    assert [one.name for one in repetitions(records, tmp_path)] == ["digits"]
    (tmp_path / "digits" / "ladder.json").write_text('{"state": "begun"}')
    assert repetitions(records, tmp_path) == []
    assert Repetition("a", 1.0, Estimate(1000.0, (800.0, 1250.0)), Estimate(None, None, "unknown")).agrees is None


@pytest.mark.parametrize(("second", "alike"), [((900.0, 1300.0), True), ((1900.0, 2700.0), False)])
def test_two_sweeps_of_a_rung_are_alike_within_their_combined_error(second, alike):
    """1,000 [800, 1,250] and another one: half-widths in logs are ln 1.25 and about ln 1.2, together a factor of 1.33."""
    middle = (second[0] * second[1]) ** 0.5
    repetition = Repetition("a", 1.0, Estimate(1000.0, (800.0, 1250.0)), Estimate(middle, second))
    assert repetition.agrees == alike


@pytest.fixture(scope="module")
def records():
    """The published rungs, fitted: that takes some twenty seconds."""
    return read_ladder(ROOT / "results" / "ladder")


@pytest.mark.long
def test_the_page_says_what_the_records_say(records):
    """Every figure of docs/ladder.md is what `page` would write now."""
    text = (ROOT / PAGE).read_text()
    assert rewritten(text, records) == text, "run: python -m rlscale.benchmarks.measurements.ladder page"
    assert sorted(re.findall(r"<!-- made: (\w+) -->", text)) == sorted(ladder_page._PARTS), "every part once"


def test_without_tasks_whose_noise_scale_was_seen_the_verdict_is_said_again():
    """Eight tasks that the noise scale predicts, and two of Atari where it is off by a factor of a thousand."""
    rows = [row_of(f"classic/{i}", 10 ** (2 + i / 4), 10 ** (2 + i / 4)) for i in range(8)]
    pong, invaders = row_of("atari/pong", 1e5, 100.0), row_of("atari/space_invaders", 1e5, 100.0)
    for seen, name in (((pong,), "atari/pong"), ((invaders, pong), "atari/pong and atari/space_invaders")):
        said = rewritten(MADE.format("verdict"), comparison_of(*rows, *seen))
        assert "does not predict" in said
        assert "This verdict is [not settled](#how-sure-the-verdict-is)." in said
        sure = rewritten(MADE.format("sure"), comparison_of(*rows, *seen))
        assert f"Without {name}: Verdict: undecided. Over 8 scored tasks" in sure
    assert "settled" not in rewritten(MADE.format("verdict"), comparison_of(*rows))
    assert "No other reading of the rule changes the verdict." in rewritten(MADE.format("sure"), comparison_of(*rows))


@pytest.mark.long
def test_a_noise_scale_may_be_that_of_a_mini_batch(records):
    """Four times the scale of a quarter of an iteration: a ratio of sums is four times as large, a mean over steps less.

    Rungs of one step are as they were.
    """
    rungs = rungs_of(records)
    by_mini_batch = {rung.folder: rung.row for rung in for_mini_batches(records, rungs)}
    for rung in rungs:
        several = rung.row.inner_steps > 1
        for before, after in zip(rung.row.predictions, by_mini_batch[rung.folder].predictions, strict=True):
            if not several or before.quantity.startswith("sums"):
                times = 4.0 if several else 1.0
                assert after.scale == before.scale.map(partial(mul, times))
            elif before.quantity == "cumulative" and None not in (before.scale.value, after.scale.value):
                assert before.scale.value < after.scale.value <= 4 * before.scale.value
    said = iterations_or_mini_batches(records, rungs)
    assert "`atari-breakout` | task | 4,830 [3,330, 7,270] | 5,370 [3,670, 7,950]" in said
    assert "| 14,800 [9,220, 25,700] | 0.326 [0.168, 0.610] |" in said
    assert said.endswith("undecided.")


def test_a_task_without_an_interval_at_its_last_goal_is_shown_at_the_one_before():
    """Not one whose last goal has too few steps, and not one that would not be scored at any."""
    nothing = {"measured": Estimate(None, None, "open")}
    tasks = [row_of(f"classic/{i}", 10 ** (2 + i / 4), 10 ** (2 + i / 4)) for i in range(8)]
    early = row_of("classic/late", 30.0, None)
    open_one = [early, dataclasses.replace(early, goal=2.0, **nothing)]
    short = row_of("classic/short", 30.0, 30.0)
    few = [short, dataclasses.replace(short, goal=2.0, s_min=Estimate(20.0, (19.0, 21.0)))]
    wide = row_of("classic/never", 30.0, 30.0, ratio=5.0)
    never = [wide, dataclasses.replace(wide, goal=2.0, **nothing)]
    assert "No task that is left out" in rewritten(MADE.format("earlier"), comparison_of(*tasks, few, never))
    said = rewritten(MADE.format("earlier"), comparison_of(*tasks, open_one, few, never))
    assert "`late` to 1: 30.0 [21.2, 42.4], predicted not resolved, above 5.00." in said
    assert "| as published | 0.333 [" in said


def test_an_intervention_without_a_scored_task_has_no_span():
    base, moved = row_of("classic/a", 100.0, 50.0, s_min=10.0), row_of("classic/b", 400.0, 200.0)
    ladder = {"classic/b": {"role": "intervention", "base": "a"}}
    assert "spans – decades, with the interventions 0.00" in rewritten(
        MADE.format("interventions"), comparison_of(base, moved, ladder=ladder)
    )


@pytest.mark.long
def test_the_pages_own_sentences_say_what_the_records_say(records):
    """Figures that stand in prose, not between marks."""
    text = " ".join((ROOT / PAGE).read_text().split())
    tasks = [rung for rung in rungs_of(records) if rung.role == "task"]
    # Those that the third hypothesis was seen on.
    eight = [rung for rung in tasks if not rung.row.task.startswith(("gym/", "atari/"))]
    seven = [rung for rung in eight if rung.row.task != "toy/frozenlake8x8"]
    joint, primary = (score(seven, *which).rms.value for which in (JOINT, PRIMARY))
    assert f"({joint:.3f} decades against {primary:.3f})" in text
    ratios = [rung.row.ratio(*JOINT).value for rung in eight if rung.left_out is None]
    assert f"B_crit is {min(ratios):.2f} to {max(ratios):.2f} times the joint loss's noise scale" in text
    ladder = ROOT / "results" / "ladder"
    people = compare([read_sweep(ladder / "minatar-breakout-people-3")], []).rows[-1]
    named = {rung.folder: rung for rung in rungs_of(records)}
    of = {sweep.name: sweep.record for sweep in records.sweeps}

    def of_steps(folder, which):
        """Averaged over full-batch steps of optimizer steps, of which an iteration has twelve; and B_crit by it."""
        rung = named[folder]
        runs = [r for r in of[rung.name].results.values() if r.stage == "noise" and r.batch_size == rung.row.prediction_batch]
        scale = pooled_noise(*at_crossings(runs, rung.row.goal), *which, 12)
        return scale, None if scale.value is None else rung.row.measured.value / scale.value

    (policy, of_policy), (joint_loss, of_joint) = (of_steps("atari-breakout", which) for which in (POLICY, JOINT))
    assert f"give {policy.say()} for the policy's loss and {joint_loss.say()} for the joint loss" in text
    assert f"so B_crit is {of_policy:.2f} and {of_joint:.1f} times these." in text
    (_, of_policy), (_, of_joint) = (of_steps("minatar-breakout-people-3", which) for which in (POLICY, JOINT))
    assert f"`minatar-breakout-people-3`, it is {of_policy:.1f} and {of_joint:.0f} times." in text
    _, least = of_steps("atari-road-runner", JOINT)
    assert f"On Road Runner it is {least:.1f} times that of the joint loss" in text
    assert of_steps("atari-kung-fu-master", JOINT)[0].value is None
    assert round(of_joint / least) == 17
    assert f"it was {people.ratio(*PRIMARY).value:.1f} times too small" in text
    measured = [rung.row.measured.value for rung in tasks if rung.left_out is None and rung.row.inner_steps == 1]
    low, high = map(format_quantity, (min(measured), max(measured)))
    assert f"lies between {low} and {high}, a factor of {max(measured) / min(measured):.0f}." in text
    assert len(measured) == 11
    papers = [score_paper(autoencoders=which).rms.value for which in (True, False)]
    assert f"{papers[0]:.2f} decades about one offset, {papers[1]:.2f} without its two autoencoders" in text


@pytest.mark.long
def test_what_a_buyer_reads_is_what_the_records_say(records):
    text = " ".join((ROOT / PAGE).read_text().split())
    scored = [rung for rung in rungs_of(records) if rung.role == "task" and rung.left_out is None]
    small = [rung for rung in scored if rung.row.inner_steps == 1]
    games = [rung for rung in scored if rung.row.inner_steps > 1]
    hours = {
        sweep.name: sum(result.seconds for result in sweep.record.results.values()) / 3600 / sweep.record.plan["jobs"]
        for sweep in records.sweeps
    }

    def numbers(pattern, text=text):
        """What stands in the sentence in the places of #."""
        found = re.search(re.escape(pattern).replace(r"\#", r"([\d.,]*\d)"), text)
        assert found, pattern
        return [float(number.replace(",", "")) for number in found.groups()]

    ends = [end for those in (small, games) for end in _ends(rung.row.measured.value for rung in those)]
    said = "B_crit was # to # observations an optimizer step on eleven small tasks and # to # an iteration on four Atari games"
    assert numbers(said) == pytest.approx(ends, rel=0.006)
    assert (len(small), len(games)) == (11, 4)
    ends = [end for those in (small, games) for end in _ends(hours[rung.name] for rung in those)]
    said = "A sweep took # to # hours of two cores on a small task and # to # on an Atari game"
    assert numbers(said) == pytest.approx(ends, abs=0.05)
    resolved = [rung for rung in small if math.isfinite(rung.row.predicted(*PRIMARY).interval[1])]
    times = sorted(rung.row.predicted(*PRIMARY).value / rung.row.measured.value for rung in resolved)
    said = "was # to # times too large on eight of the small tasks, # times on one, and not resolved on two"
    assert numbers(said) == pytest.approx([times[0], times[-2], times[-1]], rel=0.06)
    assert (len(times), len(small)) == (9, 11)
    eight = score([rung for rung in small if not rung.row.task.startswith("gym/")], *PRIMARY)
    said = "over the first eight the verdict was the same (off by a factor of #, the mean of the others by #)"
    assert numbers(said) == pytest.approx([10**error.value for error in (eight.left_out, eight.constant)], abs=0.05)
    readme = " ".join((ROOT / "README.md").read_text().split())
    least, *_, most = sorted(scored, key=lambda rung: rung.row.measured.value)
    assert (least.folder, most.folder) == ("inverted-pendulum", "atari-breakout")
    said = "from # observations an optimizer step on InvertedPendulum to # an iteration on Atari Breakout"
    assert numbers(said, readme) == pytest.approx([least.row.measured.value, most.row.measured.value], rel=0.005)
    assert "fifteen tasks" in readme
    assert len(scored) == 15


def _ends(values):
    values = list(values)
    return min(values), max(values)


@pytest.mark.long
def test_what_the_page_says_of_the_hypotheses_is_what_the_records_say(records):
    text = " ".join((ROOT / PAGE).read_text().split())
    rungs = rungs_of(records)
    first_six = second_hypothesis(records, [rung for rung in rungs if not rung.folder.startswith("inverted-")])
    assert first_six.startswith("Refuted. The prediction errs by 0.633 decades, the mean B_crit of the other tasks by 0.080.")
    assert "over its first six (off by 0.633 decades, a factor of 4.3, against 0.080 for the mean of the others)" in text
    assert second_hypothesis(records, rungs).startswith("Refuted.")
    factor, _ = THIRD
    tested = [rung.row for rung in rungs if rung.folder in ("lunar-lander", "inverted-pendulum")]
    off = sorted(abs(math.log10(row.measured.value / factor / row.predicted(*JOINT).value)) for row in tested)
    assert f"what it predicts, {off[1]:.2f} decades off, and so does the second, InvertedPendulum, {off[0]:.2f} off." in text
    assert sum(one**2 for one in off) / FEWEST_LATER > SUCCESS**2, "whatever the other three are"
    (third,) = (rung.row for rung in rungs if rung.folder == "inverted-double-pendulum")
    gap = math.log10(third.measured.value / factor / third.predicted(*JOINT).value)
    assert f"The third, InvertedDoublePendulum, is {gap:.2f} off, the same way." in text
    all_tasks = score([rung for rung in rungs if rung.role == "task"], *JOINT)
    now, errs, constant = (10**one.value for one in (all_tasks.offset, all_tasks.left_out, all_tasks.constant))
    assert f"now, {now:.2f} in place of {factor:.2f}, this noise scale predicts to a factor of {errs:.1f}" in text
    assert f"the mean of the other tasks to {constant:.1f}; but that was seen afterwards" in text


@pytest.mark.long
def test_doubtful_crossings_are_those_without_an_upper_end(records):
    """Counted from the lines of a record; without them, or as steps that were not enough, B_crit is another one."""
    with gzip.open(ROOT / "results" / "ladder" / "lunar-lander" / "results.jsonl.gz", "rt") as lines:
        last = [
            goal for run in map(json.loads, lines) for goal in run["goals"] if goal["goal"] == 0.0 and goal["optimizer_steps"]
        ]
    doubtful = sum(goal["interval"][1] is None for goal in last)
    (line,) = [row for row in doubtful_crossings(records, rungs_of(records)).splitlines() if "`lunar-lander`" in row]
    _, _, counts, published, without, as_more, _ = (cell.strip() for cell in line.split("|"))
    assert counts == f"{doubtful} of {len(last)}"
    assert len({published, without, as_more}) == 3


def test_forecasts_are_of_what_a_sweep_knew_then():
    """Snake after 33 and 60 runs: the sweep's own factor, and the hours of its later runs, two side by side, noise apart."""
    record = read_sweep(ROOT / "results" / "ladder" / "snake")
    moments = {moment.runs: moment for moment in moments_of(record)}
    runs = [result for name, result in sorted(record.results.items()) if name.startswith("run-")]
    for count in (33, 60):
        took = sum(result.seconds for result in runs[count:]) / 3600 / 2
        spent = sum(result.seconds for result in runs[:count]) / 3600 / 2
        assert moments[count].took == pytest.approx(took)
        widths = math.log(moments[count].factor), math.log(1.9)  # it ended with a factor of 1.90
        assert moments[count].foretold == pytest.approx(spent * (widths[0] / widths[1] - 1), rel=0.03)
    assert max(moments) < len(runs)


def test_what_the_docs_say_of_forecasts_is_what_their_record_says():
    moments = [Moment(**row) for row in json.loads((ROOT / "results" / "sweep-forecasts.json").read_text())["readings"]]
    said = " ".join((ROOT / "docs" / "frontier.md").read_text().split())
    rungs = len({moment.rung for moment in moments})
    assert f"Put to the {rungs} sweeps of the ladder that had finished by 1 December ({len(moments)} moments" in said
    assert f"between half and twice the true ones at {within(moments, 2):.0%} of the moments" in said
    assert f"between a third and three times at {within(moments, 3):.0%}" in said
    ratio = statistics.median(moment.took / moment.foretold for moment in moments)
    assert f"in the median the sweeps took {ratio:.2f} times the forecast" in said


@pytest.mark.long
def test_what_advise_says_of_published_tasks_is_what_the_records_say(records, monkeypatch):
    monkeypatch.chdir(ROOT)
    published = json.loads(PUBLISHED.read_text())
    assert published == what_is_published(records), "run: … measurements.ladder page"
    off = published["measured_over_predicted"].values()
    assert f"B_crit was {min(off):.2f} to {max(off):.1f} times this figure" in Path("docs/noise.md").read_text()
    least, low, high, most = published["sweep_cost"]
    page = " ".join(PAGE.read_text().split())
    assert f"half took {low} to {high} times E_min in training, all {least} to {most:,} times." in page


def test_the_page_holds_the_records_of_every_rung():
    text = (ROOT / PAGE).read_text()
    tables = "".join(text.split(f"<!-- made: {name} -->")[1].split("<!-- end -->")[0] for name in ("ranking", "uncounted"))
    for folder in (ROOT / "results" / "ladder").iterdir():
        record = read_sweep(folder)
        assert text.count(f"| `{folder.name}` | {len(record.results)} | ") == 1, "what it cost"
        goal = max(goal for goal in record.plan["goals"] for result in record.results.values() if result.steps_to(goal))
        ranked = f"| `{folder.name}` | {goal:g} |" in tables
        assert ranked != record.ladder["state"].startswith("given up")
