"""`rlscale play`: whole episodes by a run's policies, their returns, and a film.

Of the last checkpoint's policy by default; of all that the run has kept with `--kept`, which says what return is a good goal of a
sweep.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from rlscale.agents.checkpoints import read_state
from rlscale.agents.checks import require_not_negative
from rlscale.agents.config import config_of_run
from rlscale.agents.rollout.evaluate import Evaluator
from rlscale.cpus import usable_cpus
from rlscale.crossing import Evaluated, choose_goal, earliest_step
from rlscale.envs import find_task
from rlscale.envs.task import Task
from rlscale.errors import UsageError
from rlscale.records import RunRecord, read_run
from rlscale.text import format_quantity

from ..options import check_counts, parse

__all__ = ["PlayOptions", "draw", "run"]

_HEIGHT = 420  # pixels of the film, as near as whole multiples of the observation's come
_FRAMES_A_SECOND = 60  # of a simulator whose frames are skipped, as Atari's are
_STEPS_A_SECOND = 10  # of any other
# What MinAtar's planes of bits are drawn in: the colours of the charts, with the first, which is most often the player, in white.
_COLOURS = ["#FFFFFF", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#999933", "#44AA99", "#882255"]


@dataclass(frozen=True)
class PlayOptions:
    """Play whole episodes with the policy of a run's last checkpoint: their returns, and a film of the first one."""

    run: Annotated[str, tyro.conf.Positional]
    """Folder of the run, which may still be going on."""
    episodes: int = 16
    """Whole episodes, side by side; actions are drawn as in training."""
    seed: int = 0
    """Decides the episodes and the actions."""
    video: str | None = None
    """Film the first episode into this file, whose name ends in .mp4 (VP9, which browsers play); None: no film."""
    kept: bool = False
    """Play with every policy that the run has kept on its way (rlscale train --snapshot-growth), and say which return is a good
    goal of a sweep."""


def run(arguments: list[str]) -> int:
    """Play, and say what came of it.

    Raises:
        UsageError: a run, option or file that cannot be used, or a task that cannot be drawn.
    """
    options = parse(PlayOptions, "play", arguments)
    check_counts(options)
    if options.episodes < 2:
        raise UsageError("--episodes", f"{options.episodes} gives no interval", "Play at least 2")
    require_not_negative({"seed": options.seed})
    if options.kept and options.video:
        raise UsageError("--video", "films the last policy, --kept plays them all", "Leave one of them out")
    record = read_run(Path(options.run))
    config = config_of_run(record)
    task = find_task(config.task)
    if options.video and not options.video.endswith(".mp4"):
        raise UsageError("--video", f"{options.video} is no .mp4", f"For example: --video {Path(options.video).stem}.mp4")
    if options.video and len(task.observation_shape) != 3:
        problem = f"{task.id} cannot be drawn: it is observed as {task.observation_shape[0]} numbers, not as a picture"
        raise UsageError("--video", problem, "Leave it out")
    stored, update, threads = read_state(record, task), config.update, usable_cpus()
    evaluator = Evaluator(
        task, update.network, update.width, episodes=options.episodes, bfloat16=False, seed=options.seed, threads=threads
    )
    if options.kept:
        with contextlib.closing(evaluator):
            return _play_kept(record, evaluator, options)
    returns, lengths = np.zeros(options.episodes), np.zeros(options.episodes, dtype=np.int64)
    with contextlib.closing(evaluator), _film(options.video, task) as film:
        for moment in evaluator.play(stored["learner"]["parameters"].numpy(), 0):
            returns[moment.played] += moment.reward[moment.played]
            lengths += moment.played
            if film is not None and (moment.played[0] or not moment.played.any()):
                film.write(draw(task, moment.observation[0])[..., ::-1])  # OpenCV's order is blue, green, red
    progress = stored["progress"]
    print(f"{task.id} after {progress['observations']:,} observations: {_say(returns)}, over {options.episodes} episodes")
    print(f"of {format_quantity(lengths.mean())} steps in the mean, {lengths.min():,} to {lengths.max():,}")
    if unfinished := int(moment.going_on.sum()):
        print(f"note: episodes that were cut off at {lengths.max():,} steps and count with their return so far: {unfinished}")
    if options.video:
        print(f"wrote {options.video}, the first episode: a return of {returns[0]:g} in {lengths[0]:,} steps")
    return 0


def _play_kept(record: RunRecord, evaluator: Evaluator, options: PlayOptions) -> int:
    """Evaluate every policy that the run has kept, a line each, and name a goal. Ctrl-C ends it with what is known by then."""
    paths = {int(path.stem): path for path in sorted((record.folder / "snapshots").glob("*.npy")) if path.stem.isdecimal()}
    observations = {row["optimizer_steps"]: row["observations"] for row in record.rows}
    paths = {steps: path for steps, path in paths.items() if steps in observations}  # no later than the record goes
    if not paths:
        raise UsageError("--kept", f"{record.folder} has kept no policy on its way", "Train with --snapshot-growth 1.2")
    task = record.manifest["config"]["task"]
    print(f"{task}: {len(paths)} policies, {options.episodes} episodes of each")
    print(f"{'optimizer steps':>15} {'observations':>13} {'return':>10} {'± error':>8} {'steps an episode':>17}")
    points: list[Evaluated] = []
    with contextlib.suppress(KeyboardInterrupt):
        for steps, path in paths.items():
            evaluation = evaluator.evaluate(_read_policy(path, evaluator.parameters), steps)
            point = evaluation.at(steps)
            points.append(point)
            mean, error = format_quantity(point.return_mean), format_quantity(point.return_error)
            length = format_quantity(evaluation.steps / options.episodes)
            print(f"{steps:>15,} {observations[steps]:>13,} {mean:>10} {error:>8} {length:>17}", flush=True)
    first = record.rows[0]["optimizer_steps"]  # of one iteration
    chosen = choose_goal(points, earliest=earliest_step(first) * first)
    if chosen is None:
        print("No return is a good goal: none is passed after 50 optimizer steps or more, held, and told from those before it.")
        print("Train longer, keep more policies (--snapshot-growth 1.1), or play more --episodes.")
        return 0
    low, high = chosen.optimizer_steps.interval or (0.0, math.inf)
    print(
        f"A good goal is {chosen.goal:g}: of all returns its crossing is told best, after "
        f"{chosen.optimizer_steps.value:,.0f} [{low:,.0f}, {high:,.0f}] optimizer steps."
    )
    print(f"next: rlscale sweep {task} --goals {chosen.goal:g}")
    return 0


def _read_policy(path: Path, parameters: int) -> np.ndarray:
    """A kept policy's parameters, of which there must be so many."""
    try:
        weights: np.ndarray = np.load(path)
    except (ValueError, OSError, EOFError):
        weights = np.empty(0)
    if weights.shape != (parameters,) or weights.dtype != np.float32:
        raise UsageError("RUN", f"{path} is damaged", "Remove that file: the other policies are played without it")
    return weights


def draw(task: Task, observation: np.ndarray) -> np.ndarray:
    """One observation as people can look at it.

    Args:
        task: whose observations are images.
        observation: (*task.observation_shape), pixels of 8 bits in grey or colour, the last frame of a stack is drawn; or planes,
            each of which gets a colour, the earlier above the later.

    Returns:
        (height, width, 3) uint8, red, green and blue, with an even number of pixels on each side.
    """
    channels = len(observation)
    if task.pixels and len(task.frame_shape) == 3 and channels % 3 == 0:
        picture = np.moveaxis(observation[-3:], 0, -1)
    elif task.pixels or len(task.frame_shape) == 2 or channels == 1:
        picture = np.repeat(observation[-1][..., None], 3, axis=-1)
    else:
        picture = np.zeros((*observation.shape[1:], 3))
        for plane in reversed(range(channels)):
            colour = [int(_COLOURS[plane % len(_COLOURS)][i : i + 2], 16) for i in (1, 3, 5)]
            picture[observation[plane] > 0] = colour
    times = max(1, _HEIGHT // picture.shape[0])
    large = picture.astype(np.uint8).repeat(times, axis=0).repeat(times, axis=1)
    return np.pad(large, ((0, large.shape[0] % 2), (0, large.shape[1] % 2), (0, 0)))


@contextlib.contextmanager
def _film(path: str | None, task: Task) -> Iterator[Any]:
    """OpenCV's writer of that file; None where no film is wanted."""
    if path is None:
        yield None
        return
    import cv2

    height, width, _ = draw(task, np.zeros(task.observation_shape, dtype=np.uint8)).shape
    rate = _FRAMES_A_SECOND / task.frame_skip if task.frame_skip > 1 else _STEPS_A_SECOND
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    film = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"vp09"), rate, (width, height))
    if not film.isOpened():
        raise UsageError("--video", f"cannot write {path}", "Choose a folder that is there and that you may write to")
    try:
        yield film
    finally:
        film.release()


def _say(returns: np.ndarray) -> str:
    from scipy import stats

    count = len(returns)
    half = stats.t.ppf(0.975, count - 1) * returns.std(ddof=1) / math.sqrt(count)
    mean = returns.mean()
    return f"a return of {format_quantity(mean)} [{format_quantity(mean - half)}, {format_quantity(mean + half)}] in the mean"
