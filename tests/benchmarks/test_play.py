"""`rlscale play`: a real checkpoint is played, and the film read back."""

import contextlib
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from commands import COMMAND, SMALL

from rlscale.agents.checkpoints import load
from rlscale.agents.rollout.evaluate import Evaluator
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.commands.play import draw
from rlscale.crossing import choose_goal
from rlscale.envs import find_task
from rlscale.records.run import read_checkpoint, read_run
from rlscale.text import format_quantity

ROOT = Path(__file__).parents[2]


def rlscale(folder, *words):
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two short runs are."""
    made = tmp_path_factory.mktemp("played")
    for task, name in (("minatar/breakout", "breakout"), ("classic/cartpole", "cartpole")):
        with contextlib.chdir(made):
            assert main(["train", task, *SMALL, "--observations", "6000", "--run", name, "--snapshot-growth", "2"]) == 0
    shutil.copytree(made / "cartpole", made / "keeping-none", ignore=shutil.ignore_patterns("snapshots"))
    shutil.copytree(made / "cartpole", made / "damaged")
    (made / "damaged" / "snapshots" / "0000000004.npy").write_bytes(b"no policy")
    return made


def evaluation(run, episodes, seed):
    task = find_task("minatar/breakout")
    judge = Evaluator(task, "minatar_cnn", None, episodes=episodes, bfloat16=False, seed=seed, threads=1)
    return judge.evaluate(load(read_checkpoint(run))["learner"]["parameters"].numpy(), 0)


@pytest.mark.long
def test_it_says_what_an_evaluation_gives_and_films_the_first_episode(folder):
    done = rlscale(folder, "play", "breakout", "--episodes", "5", "--seed", "3", "--video", "film.mp4")
    assert (done.returncode, done.stderr) == (0, "")
    expected = evaluation(folder / "breakout", 5, 3)
    mean = expected.returns.mean()
    half = 2.776 * expected.returns.std(ddof=1) / 5**0.5  # Student's t, four degrees of freedom
    said = re.search(r"after ([\d,]+) observations: a return of (\S+) \[(\S+), (\S+)\] in the mean, over 5 episodes", done.stdout)
    assert said.group(1) == f"{read_run(folder / 'breakout').rows[-1]['observations']:,}"
    assert [float(said.group(i)) for i in (2, 3, 4)] == pytest.approx([mean, mean - half, mean + half], rel=0.01, abs=0.01)
    assert f"of {format_quantity(expected.steps / 5)} steps in the mean" in done.stdout
    said = re.search(r"wrote film.mp4, the first episode: a return of (\S+) in (\d+) steps", done.stdout)
    assert float(said.group(1)) == expected.returns[0]

    film = cv2.VideoCapture(str(folder / "film.mp4"))
    assert film.get(cv2.CAP_PROP_FPS) == 10
    frames = []
    while (read := film.read())[0]:
        frames.append(read[1][..., ::-1])
    assert len(frames) == int(said.group(2)) + 1
    task = find_task("minatar/breakout")
    judge = Evaluator(task, "minatar_cnn", None, episodes=5, bfloat16=False, seed=3, threads=1)
    moments = judge.play(load(read_checkpoint(folder / "breakout"))["learner"]["parameters"].numpy(), 0)
    for frame, moment in zip(frames, moments, strict=False):  # other episodes may be longer than the first
        middle = np.s_[21::42, 21::42]  # of each of MinAtar's ten by ten fields: compression blurs their borders
        assert np.abs(frame[middle].astype(int) - draw(task, moment.observation[0])[middle]).mean() < 12


def test_policies_kept_on_the_way_are_played_and_a_goal_is_named(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["play", "cartpole", "--kept", "--episodes", "8", "--seed", "3"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    heading, columns, *lines = said.out.splitlines()
    kept = sorted((folder / "cartpole" / "snapshots").glob("*.npy"))
    assert heading == f"classic/cartpole: {len(kept)} policies, 8 episodes of each"
    assert columns.split() == ["optimizer", "steps", "observations", "return", "±", "error", "steps", "an", "episode"]
    judge = Evaluator(find_task("classic/cartpole"), "mlp", None, episodes=8, bfloat16=False, seed=3, threads=1)
    observations = {row["optimizer_steps"]: row["observations"] for row in read_run(folder / "cartpole").rows}
    points = []
    for path, line in zip(kept, lines, strict=False):
        evaluation = judge.evaluate(np.load(path), int(path.stem))
        points.append(evaluation.at(int(path.stem)))
        numbers = [points[-1].return_mean, points[-1].return_error, evaluation.steps / 8]
        expected = [f"{int(path.stem):,}", f"{observations[int(path.stem)]:,}", *map(format_quantity, numbers)]
        assert line.split() == expected
    chosen = choose_goal(points, earliest=12)  # the third iteration of four optimizer steps
    if chosen is None:
        assert lines[len(kept)].startswith("No return is a good goal")
    else:
        assert lines[len(kept)].startswith(f"A good goal is {chosen.goal:g}: ")
        assert lines[-1] == f"next: rlscale sweep classic/cartpole --goals {chosen.goal:g}"


@pytest.mark.long
def test_an_atari_film_runs_at_the_games_own_speed(folder):
    done = rlscale(
        folder, "train", "atari/pong@42", *SMALL, "--environments", "2", "--observations", "32", "--mini-batch", "32",
        "--blocks", "2", "--run", "pong",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = rlscale(folder, "play", "pong", "--episodes", "2", "--video", "pong.mp4")
    assert (done.returncode, done.stderr) == (0, "")
    film = cv2.VideoCapture(str(folder / "pong.mp4"))
    assert film.get(cv2.CAP_PROP_FPS) == 15
    assert (film.get(cv2.CAP_PROP_FRAME_WIDTH), film.get(cv2.CAP_PROP_FRAME_HEIGHT)) == (420, 420)


def test_pictures():
    pong = find_task("atari/pong@42")
    stack = np.zeros((4, 42, 42), dtype=np.uint8)
    stack[3, 2, 5], stack[2] = 200, 100
    drawn = draw(pong, stack)
    assert drawn.shape == (420, 420, 3)
    assert (drawn[20:30, 50:60] == 200).all()
    assert drawn.sum() == 200 * 3 * 100, "only the last frame is seen"

    breakout = find_task("minatar/breakout")
    planes = np.zeros((4, 10, 10), dtype=np.uint8)
    planes[0, 9, 4] = planes[3, 9, 4] = planes[3, 1, 0] = 1
    drawn = draw(breakout, planes)
    assert (drawn[9 * 42, 4 * 42] == 255).all(), "the earlier plane is above"
    assert drawn[42, 0].tolist() == [0x00, 0x9E, 0x73]
    assert (drawn.reshape(-1, 3).any(-1)).sum() == 2 * 42**2

    colours = replace(breakout, frame_shape=(3, 7, 5), pixels=True)
    image = np.random.default_rng(0).integers(0, 256, (3, 7, 5), dtype=np.uint8)
    drawn = draw(colours, image)
    assert drawn.shape == (420, 300, 3)
    assert (drawn[59, 299] == image[:, 0, 4]).all()
    two = replace(colours, frame_shape=(6, 7, 5))
    assert (draw(two, np.concatenate([np.ones_like(image), image])) == drawn).all(), "the last of two frames in colour"
    stack = np.full((4, 84, 84), 87, dtype=np.uint8)
    stack[3, 10, 20] = 236
    drawn = draw(replace(colours, frame_shape=(4, 84, 84)), stack)
    assert (drawn[50:55, 100:105] == 236).all(), "the last of four grey frames, as EnvPool stacks them"
    assert drawn.min() == 87
    assert draw(colours, np.ones_like(image)).max() == 1, "a picture that is nearly black is no set of planes"
    assert draw(replace(breakout, frame_shape=(1, 421, 3)), np.ones((1, 421, 3), dtype=np.uint8)).shape == (422, 4, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cartpole", "--video", "film.mp4"], "classic/cartpole cannot be drawn: it is observed as 4 numbers"),
        (["breakout", "--video", "film.gif"], "film.gif is no .mp4"),
        (["breakout", "--video", "nowhere/film.mp4"], "cannot write nowhere/film.mp4"),
        (["breakout", "--episodes", "1"], "1 gives no interval"),
        (["breakout", "--seed", "-1"], "rlscale: --seed: -1 is not zero or more"),
        (["breakout", "--seed", str(2**64)], "rlscale: --seed: 18446744073709551616 is too large. Give one below 2**63"),
        (["nowhere"], "nowhere"),
        (["breakout", "--kept", "--video", "film.mp4"], "--video: films the last policy, --kept plays them all"),
        (["damaged", "--kept", "--episodes", "2"], "0000000004.npy is damaged. Remove that file"),
        (["keeping-none", "--kept"], "keeping-none has kept no policy on its way. Train with --snapshot-growth 1.2"),
        ([str(ROOT / "results" / "pong")], "checkpoint"),
        ([str(ROOT / "results" / "rllib-pong")], "the record of another library's job"),
    ],
)
def test_bad_input_is_one_line(folder, words, said, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["play", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert said in error
    assert not (folder / "film.gif").exists()
