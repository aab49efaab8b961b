"""The house: imports run down only, every flag reaches the configuration, every logged metric is in the glossary."""

import ast
import inspect
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from agents.config import TrainConfig, config_to_dict, default_config
from agents.fleet import Loss
from agents.fragments import Fragment
from agents.train import train
from benchmarks.options import parse_train
from benchmarks.sweep import run_sweeps
from benchmarks.sweep_options import SweepOptions
from envs import find_task
from rlscale.events import _NAMES
from rlscale.runs import read_run
from rlscale.sweeps import read_sweep

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "rlscale": {"rlscale"},
    "envs": {"envs", "rlscale"},
    "agents": {"agents", "envs", "rlscale"},
    "benchmarks": {"benchmarks", "agents", "envs", "rlscale"},
}
MODULES = [path for package in MAY_IMPORT for path in sorted((ROOT / package).glob("**/*.py"))]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_down_only(path):
    package = path.relative_to(ROOT).parts[0]
    ours = {name for name in imported(path) if name in MAY_IMPORT or name == "tests"}
    assert ours <= MAY_IMPORT[package]


def test_the_mathematics_needs_neither_ray_nor_environments_nor_files():
    for name in ("noise", "estimate", "frontier", "crossing", "agreement"):
        path = ROOT / "rlscale" / f"{name}.py"
        assert not set(imported(path)) & {"ray", "gymnasium", "ale_py", "pathlib", "os", "io"}
        assert "open(" not in path.read_text()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_say_what_lives_there(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    public = next(
        (
            ast.literal_eval(n.value)
            for n in tree.body
            if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "__all__"
        ),
        [],
    )
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in public:
            assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"


def leaves(config, prefix=()):
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from leaves(value, (*prefix, field.name))
        else:
            yield (*prefix, field.name), value


def other(path, value):
    """Another legal value for a setting, as typed, and as it should arrive."""
    words = {
        "algorithm": "a2c",
        "shuffle": "transitions",
        "optimizer": "rmsprop",
        "advantage_scale": "running",
        "network": "small_cnn",
        "lr_rule": "sqrt",
        "memory": "2GiB",
        "actor_device": "cuda",
    }
    words |= {"precision": "float32", "device": "cpu", "ray_address": "auto", "run": "somewhere"}
    name = path[-1]
    if name == "lag":
        return ["1"], 1
    if name in words:
        return [words[name]], words[name]
    if isinstance(value, bool):
        return [], not value
    if value is None or isinstance(value, int):
        return ["7"], 7
    return ["0.125"], 0.125


SETTINGS = [
    (path, value) for path, value in leaves(default_config(find_task("atari/pong"))) if path not in (("task",), ("resume",))
]


@pytest.mark.parametrize(("path", "value"), SETTINGS, ids=lambda x: ".".join(x) if isinstance(x, tuple) else "")
def test_every_flag_reaches_the_configuration(path, value):
    typed, expected = other(path, value)
    flag = path[-1].replace("_", "-")
    word = f"--no-{flag}" if value is True else f"--{flag}"
    arrived = config_to_dict(parse_train(["atari/pong", word, *typed]))
    for key in path:
        arrived = arrived[key]
    assert arrived == expected
    assert arrived != value


def test_every_setting_has_a_help_text():
    source = inspect.getsource(inspect.getmodule(TrainConfig))
    for path, _ in leaves(default_config(find_task("atari/pong"))):
        assert re.search(rf'^    {path[-1]}:[^\n]*\n    """', source, re.MULTILINE), path


def test_the_a2c_preset_is_the_papers():
    config = parse_train(["atari/pong", "--algorithm", "a2c"])
    u = config.update
    assert (u.epochs, u.mini_batch, u.clip, u.optimizer, config.rollout.rollout_length) == (1, None, None, "rmsprop", 5)
    assert parse_train(["atari/pong", "--algorithm", "a2c", "--rollout-length", "20"]).rollout.rollout_length == 20


def test_every_logged_metric_is_in_the_glossary(tmp_path):
    config = default_config(find_task("classic/cartpole"))
    train(replace(config, budget=replace(config.budget, observations=1500)), tmp_path / "run", command=[])
    record = read_run(tmp_path / "run")
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    defined = set(re.findall(r"`([^`]+)`", glossary))
    logged = set(record.rows[-1]) | set(record.rows[-1]["noise"][0]) | set(record.manifest) | set(record.manifest["segments"][0])
    logged |= {entry["head"] for row in record.rows for entry in row["noise"]} | {field.name for field in fields(Fragment)}
    logged |= set(_NAMES.values()) | {"block"} | ({field.name for field in fields(Loss)} - {"noticed"})
    assert logged - defined == set()


def test_every_field_of_a_sweep_is_in_the_glossary(tmp_path):
    options = SweepOptions(
        tasks=("classic/cartpole",), batch_sizes="256", goals=(40.0, 60.0), rates=1, seeds=1, evaluation_episodes=8, jobs=0
    )
    (folder,) = run_sweeps(replace(options, out=str(tmp_path)), [], Console(quiet=True))
    record = read_sweep(folder)
    logged = set(record.manifest) | set(record.plan)
    for result in record.results.values():
        logged |= set(result) | {result["stage"], result["state"]}
        for part in ("goals", "evaluations", "noise", "noise_windows"):
            logged |= {key for entry in result[part] for key in entry}
        logged |= {entry["quantity"] for entry in result["noise"]}
    assert {"noise", "interval", "gain", "cumulative"} <= logged, "the sweep measured nothing"
    defined = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "glossary.md").read_text()))
    assert logged - defined == set()


def test_readme_and_docs_name_no_file_that_is_not_there():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} names {target}"
