"""Records of runs that were never made, and the charts of a page."""

import json
import re

import numpy as np
from altair.vegalite.v6.schema.core import Root

from rlscale.noise import BlockStatistics
from rlscale.records.noise import pack_statistics
from rlscale.records.run import Run, read_run

FACTS = {
    "task": {"id": "atari/pong", "preprocessing": "grey", "frame_skip": 4, "goals": [-19, 0]},
    "config": {"task": "atari/pong", "seed": 0, "rollout": {}, "update": {"epochs": 1, "note": "<script>alert(1)</script>"}},
    "command": ["rlscale", "train", "<b>"],
    "commit": None,
    "seed": 0,
    "machine": {"cores": 2, "accelerator": None},
    "device": "cpu",
    "precision": "float32",
    "threads": 2,
    "versions": {"torch": "2"},
    "parameters": 10,
    "segments": [{"first_iteration": 0, "environments": "as they were"}],
}


def make_run(folder, *, signal=0.8, iterations=40, episodes=3, transfer=0.1):
    run = Run.create(folder, FACTS)
    rng = np.random.default_rng(0)
    for i in range(iterations):
        g = rng.normal(size=(8, 20)) + signal
        statistics = BlockStatistics([16] * 8, (g * g).sum(1), g @ g.mean(0))
        run.append(
            {
                "iteration": i,
                "observations": 128 * (i + 1),
                "optimizer_steps": i + 1,
                "seconds": 2.0 * (i + 1),
                "batch_observations": 128,
                "episodes": episodes,
                "return_mean": float(i) if episodes else None,
                "episode_length_mean": None,
                "learning_rate": None,
                "sampling_seconds": 0.5,
                "transfer_seconds": transfer,
                "learning_seconds": 1.0,
                "noise_seconds": 0.1,
                "noise": [{"head": "policy", "kind": "rollout", "optimizer_step": i, **pack_statistics(statistics)}],
            }
        )
    run.set_state("finished")
    run.close()
    return read_run(folder)


def add_joint(run):
    """The same run with noise of the joint loss: ten early gradients nine times as large, of a signal twice as strong."""
    rng = np.random.default_rng(1)
    for i, row in enumerate(run.rows):
        g = 9 * (rng.normal(size=(8, 20)) + 0.8) if i < 10 else rng.normal(size=(8, 20)) + 0.4
        statistics = BlockStatistics([16] * 8, (g * g).sum(1), g @ g.mean(0))
        row["noise"].append({"head": "joint", "kind": "rollout", "optimizer_step": i, **pack_statistics(statistics)})
    return run


def charts_of(page) -> list[dict]:
    """The charts of a page, which must be what Vega-Lite takes."""
    text = page.read_text()
    found = list(json.loads(re.search(r"const charts = (\{.*?\});\n", text, re.DOTALL).group(1).replace("<\\/", "</")).values())
    for chart in found:
        Root.validate(chart)
    return found
