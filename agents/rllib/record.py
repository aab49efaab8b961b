"""The record of an RLlib job: a callback that names episodes, counts returns and writes a row after every `train()`."""

import math
from pathlib import Path
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rlscale.errors import UsageError
from rlscale.records.files import make_folder
from rlscale.records.run import Run, read_run

from ..job_record import job_config, job_facts, open_job, refuse_existing

__all__ = ["SETTINGS", "KeepsRecord", "environments_of"]

SETTINGS = "rlscale"
"""The key of our settings in `learner_config_dict`, and of our figures in what environment runners report."""


def environments_of(config: Any) -> int:
    """How many environments a job samples from, each as many steps; 0 where each gives whole episodes, however long they are."""
    if config.batch_mode != "truncate_episodes":
        return 0
    return int(max(config.num_env_runners, 1) * config.num_envs_per_env_runner)


class KeepsRecord(RLlibCallback):  # type: ignore[misc]  # RLlib is untyped
    """Names episodes by their environment, counts returns, and writes a row of the record after every `train()`."""

    def __init__(self) -> None:
        super().__init__()
        self._run: Run | None = None
        self._before = 0.0  # seconds of the sessions before, which a restored algorithm does not count

    def on_episode_created(self, *, episode: Any, env_runner: Any, env_index: int, **_: Any) -> None:
        """On an environment runner: put the number of the episode's environment, over the whole job, into its id."""
        number = max((env_runner.worker_index or 0) - 1, 0) * env_runner.num_envs + env_index
        episode.id_ = f"{episode.id_}@{number}"

    def on_episode_end(self, *, episode: Any, prev_episode_chunks: Any, metrics_logger: Any, **_: Any) -> None:
        """On an environment runner: report the return and length of an episode, all its pieces together."""
        total = sum(piece.get_return() for piece in [*prev_episode_chunks, episode])
        # The last piece counts all steps. A learner in this process lengthens the others by a masked step without reward.
        figures = {"episodes": 1, "return_sum": total, "length_sum": episode.t}
        metrics_logger.log_dict(figures, key=SETTINGS, reduce="sum")
        metrics_logger.log_value((SETTINGS, "return_min"), total, reduce="min")
        metrics_logger.log_value((SETTINGS, "return_max"), total, reduce="max")

    def on_algorithm_init(self, *, algorithm: Any, **_: Any) -> None:
        """See to it that the first iteration begins by asking whether a record can be written, and that it is closed when the
        algorithm ends.

        RLlib has no callback for either, so its methods are extended. A checkpoint that is only evaluated needs no record, and
        its folder may be one of another machine.
        """
        folder, step = Path(algorithm.config.learner_config_dict[SETTINGS]["run"]), algorithm.training_step

        def first_step() -> Any:
            make_folder(folder.parent, "run")
            if algorithm.iteration == 0:
                refuse_existing(folder)
            algorithm.training_step = step
            return step()

        algorithm.training_step = first_step
        clean_up = algorithm.cleanup

        def close() -> None:
            clean_up()
            if self._run is not None:
                self._run.set_state("finished")
                self._run.close()
                self._run = None

        algorithm.cleanup = close

    def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **_: Any) -> None:
        """In the algorithm's process: write one row; none where no environment runner gave anything, as RLlib only warns then."""
        if math.isnan(result.get("env_runners", {}).get("num_env_steps_sampled", math.nan)):
            return
        report, learned = _first_report(algorithm)
        iteration = int(result["training_iteration"]) - 1
        if self._run is None:
            self._open(algorithm.config, report, iteration, float(result["time_total_s"]))
        assert self._run is not None
        sampled, seconds = result["env_runners"], float(result["time_this_iter_s"])
        # Of whole episodes RLlib samples more than it learns from: it drops those that have not ended.
        whole = algorithm.config.batch_mode == "complete_episodes"
        observations = learned if whole else int(sampled["num_env_steps_sampled"])
        learning = report["learning_seconds"]
        self._run.append(
            {
                "iteration": iteration,
                "observations": int(sampled["num_env_steps_sampled_lifetime"]),
                "optimizer_steps": report["optimizer_steps"],
                "seconds": self._before + float(result["time_total_s"]),
                "batch_observations": observations,
                **_episodes(sampled.get(SETTINGS, {})),
                "learning_rate": report["learning_rate"],
                "sampling_seconds": seconds - learning,
                "transfer_seconds": None,
                "learning_seconds": learning,
                "noise_seconds": report["noise_seconds"],
                "observations_per_second": int(sampled["num_env_steps_sampled"]) / seconds,
                "noise": [record.entry() for record in report["noise"]],
            }
        )

    def _open(self, config: Any, report: dict[str, Any], iteration: int, seconds: float) -> None:
        """Begin the record, or continue it where the algorithm was restored from a checkpoint."""
        settings = config.learner_config_dict[SETTINGS]
        folder = Path(settings["run"])
        facts = _facts(config, report, settings)
        self._run = open_job(folder, facts, go_on=iteration > 0 and folder.exists())
        earlier = [row["seconds"] for row in read_run(folder).rows if row["iteration"] < iteration]
        self._before = earlier[-1] if earlier and seconds < earlier[-1] else 0.0
        # A checkpoint of RLlib does not hold the environments.
        self._run.begin_segment(facts, iteration, "new" if iteration == 0 else "seeded afresh")


def _first_report(algorithm: Any) -> tuple[dict[str, Any], int]:
    """The report of the first learner, since all know the same statistics, and how many observations all have learned from.

    Raises:
        UsageError: the learners do not measure.
    """
    if not hasattr(algorithm.config.learner_class, "take_report"):
        raise UsageError("config.learners(learner_class=…)", "it was set after measure_noise", "Call measure_noise last")
    reports = list(algorithm.learner_group.foreach_learner(lambda learner, **_: learner.take_report()))
    report: dict[str, Any] = reports[0].get()
    if not reports[0].ok:
        raise RuntimeError("a learner did not report") from reports[0].get()
    return report, sum(one.get()["learned"] for one in reports if one.ok)


def _episodes(figures: dict[str, Any]) -> dict[str, Any]:
    """Returns and lengths of the episodes that finished, as environment runners counted them; None where none finished."""
    count = figures.get("episodes", 0)
    count = 0 if math.isnan(count) else int(count)
    return {
        "episodes": count,
        "return_mean": float(figures["return_sum"]) / count if count else None,
        "return_min": float(figures["return_min"]) if count else None,
        "return_max": float(figures["return_max"]) if count else None,
        "episode_length_mean": float(figures["length_sum"]) / count if count else None,
    }


def _facts(config: Any, report: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Task, settings, versions and machine of the job, for the manifest."""
    return job_facts(
        task=config.env if isinstance(config.env, str) else getattr(config.env, "__name__", str(config.env)),
        preprocessing="RLlib's environment and connectors",
        config=job_config("rllib", config.to_dict(), settings["every"], settings["blocks"], environments_of(config)),
        seed=config.seed,
        command=settings["command"],
        machine=report["machine"],
        device=report["device"],
        threads=report["threads"],
        parameters=report["parameters"],
    )
