"""A family of tasks is known by its name in one table and in its own module; everybody else asks the `Task`."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import toys

from rlscale.agents.config import default_config
from rlscale.agents.train import train
from rlscale.benchmarks.sweep.options import SweepOptions, make_plan
from rlscale.benchmarks.workers.recommendation import to_measure
from rlscale.envs import find_task, list_tasks, make_env
from rlscale.envs.registry import FAMILIES
from rlscale.records.run import read_run

ROOT = Path(__file__).parent.parent.parent
NAMES = {*FAMILIES, "custom"}
OWN = {"envs/registry.py"}  # the table


def names_a_family(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split("/")[0] in NAMES


def choices(tree):
    """Constants that a module compares with, looks up, matches, or asks strings to begin with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from ast.walk(side)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("startswith", "endswith", "removeprefix", "removesuffix", "get", "partition", "split"):
                for argument in node.args:
                    yield from ast.walk(argument)
        elif isinstance(node, ast.Dict):
            yield from (key for key in node.keys if key is not None)
        elif isinstance(node, ast.Subscript):
            yield node.slice
        elif isinstance(node, ast.MatchValue):
            yield node.value


def test_no_other_code_asks_for_a_family_by_its_name():
    own = {path.removeprefix("rlscale.").replace(".", "/") for path in FAMILIES.values()} | {"envs/custom"}
    found, looked_at = [], 0
    for floor in ("rlscale", "envs", "agents", "benchmarks"):
        for path in sorted((ROOT / floor).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name in OWN or any(name == f"{family}.py" or name.startswith(f"{family}/") for family in own):
                continue
            looked_at += 1
            tree = ast.parse(path.read_text())
            found += [f"{name}:{node.lineno} {node.value!r}" for node in choices(tree) if names_a_family(node)]
    assert looked_at > 80
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'task.kind == "atari"',
        'task.kind in ("atari", "pool")',
        'task.id.startswith("atari/")',
        'task.id.startswith(("gym/", "pool/"))',
        'task.id.removeprefix("atari/")',
        '{"minatar": 16}[kind]',
        'table.get("classic")',
        'table["custom"]',
        'match kind:\n    case "gym":\n        pass',
    ],
)
def test_such_code_would_be_found(source):
    assert any(names_a_family(node) for node in choices(ast.parse(source)))


@pytest.fixture
def toy(monkeypatch):
    """A family that only this test knows, put into the table."""
    monkeypatch.setitem(FAMILIES, "toy", "toys")
    return find_task("toy/coin")


def test_a_new_family_is_found_and_listed(toy):
    assert toy == find_task("toy/coin")
    assert "toy/coin" in [listing.id for listing in list_tasks()]
    assert isinstance(make_env(toy, 3), toys.CoinEnv)


def test_a_new_family_is_trained_with_its_own_defaults(toy, tmp_path):
    config = default_config(toy)
    assert (config.rollout.environments, config.rollout.rollout_length) == (64, 8)
    update = config.update
    assert (update.epochs, update.learning_rate, update.entropy_coef, update.gae_lambda) == (3, 0.02, 0.03, 0.8)
    assert (update.discount, update.network) == (0.5, "mlp")
    config = replace(config, budget=replace(config.budget, observations=1024))
    train(config, tmp_path / "run", command=[])
    record = read_run(tmp_path / "run")
    assert len(record.rows) >= 2
    assert record.rows[-1]["observations"] >= 1024
    assert record.manifest["task"]["goals"] == [0.9]


def test_a_new_family_is_swept_and_sized_with_its_own_defaults(toy):
    plan = make_plan("toy/coin", SweepOptions(tasks=("toy/coin",), batch_sizes="80,320", jobs=1))
    assert (plan.config.rollout.rollout_length, plan.config.rollout.actors) == (4, 2)
    assert (plan.config.update.learning_rate, plan.rate_batch) == (0.01, 1024.0)
    assert (plan.episodes, plan.most_observations, plan.goals) == (20, 5000, (0.9,))
    assert make_plan("toy/coin", SweepOptions(tasks=("toy/coin",), batch_sizes="80", jobs=0)).config.rollout.actors == 0
    assert {shape.environments for shape in to_measure(toy, 2)} == {2, 4, 6}
