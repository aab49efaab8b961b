"""The JSON schema of records: what is published and what is written today are as it says, and it says no less than there is."""

import copy
import gzip
import json
import re
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from planted import Planted, make_plan, write_sweep
from rich.console import Console

from rlscale.agents.config import default_config
from rlscale.agents.rollout.actor_search import ActorTrial
from rlscale.agents.train import train
from rlscale.benchmarks.sweep.options import SweepOptions
from rlscale.benchmarks.sweep.run import run_sweeps
from rlscale.envs import find_task
from rlscale.errors import UsageError
from rlscale.records.run import SCHEMA
from rlscale.records.sweep import SWEEP_SCHEMA, Sweep

ROOT = Path(__file__).parents[3]
STORED = json.loads((files("rlscale.records") / f"schema-{SCHEMA}.json").read_text(encoding="utf-8"))
# Which part of the schema a file follows, and every which of its lines is read: rows are many, alike, and slow to check.
FILES = {
    "manifest.json": ("manifest", 0),
    "iterations.jsonl": ("row", 20),
    "sweep.json": ("sweep", 0),
    "results.jsonl": ("result", 5),
}


def strict(node):
    """The schema with every field refused that it does not name, so that a new one cannot be forgotten here."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {"additionalProperties": False} if isinstance(node.get("properties"), dict) and "type" in node else {}
    return {**{key: strict(value) for key, value in node.items()}, **closed}


def validator(part, closed=True):
    schema = strict(STORED) if closed else STORED
    return Draft202012Validator({**schema, "$ref": f"#/$defs/{part}"})


def check(path):
    """Every object of a file of a record, or a sample of its lines with the last, and the first of every kind of result."""
    part, step = FILES[path.name.removesuffix(".gz")]
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    lines = text.splitlines()
    if not step:
        objects = [json.loads(text)]
    else:
        read = [json.loads(line) for line in lines]
        kinds = {(one.get("stage"), one.get("state")): one for one in reversed(read)}
        objects = [*read[::step], read[-1], *kinds.values()]
    for stored in objects:
        validator(part).validate(stored)
    return len(objects)


def record_files(folder):
    return sorted(path for path in folder.rglob("*") if path.name.removesuffix(".gz") in FILES)


PUBLISHED = record_files(ROOT / "results")


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: str(path.relative_to(ROOT / "results")))
def test_published_records_follow_the_schema(path):
    assert check(path)


def test_records_of_every_kind_are_published():
    assert {path.name.removesuffix(".gz") for path in PUBLISHED} == set(FILES)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """A short run whose noise is measured in every way, and a resumed session of it."""
    folder = tmp_path_factory.mktemp("fresh") / "run"
    config = default_config(find_task("classic/cartpole"))
    config = replace(
        config,
        budget=replace(config.budget, observations=1500),
        update=replace(config.update, shuffle="transitions"),
        noise=replace(config.noise, policy_noise_period=1, iteration_noise_period=1),
    )
    train(config, folder, command=["rlscale", "train"])
    more = replace(config, resume=str(folder), budget=replace(config.budget, observations=2500))
    train(more, folder, command=["rlscale", "train", "--resume"])
    return folder


def test_a_run_of_today_follows_the_schema(fresh):
    assert sum(check(path) for path in record_files(fresh)) > 2


def test_a_sweep_of_today_follows_the_schema(tmp_path):
    options = SweepOptions(
        tasks=("classic/cartpole",),
        batch_sizes="320,640",
        goals=(25.0,),
        rates=1,
        seeds=1,
        noise_runs=1,
        evaluation_episodes=8,
        jobs=0,
        out=str(tmp_path),
    )
    run_sweeps(options, ["rlscale", "sweep"], Console(quiet=True))
    assert {path.name for path in record_files(tmp_path)} == set(FILES)
    assert sum(check(path) for path in record_files(tmp_path)) > 6


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda row: row.pop("optimizer_steps"), "'optimizer_steps' is a required property"),
        (lambda row: row.update(episodes=-1), "-1 is less than the minimum"),
        (lambda row: row.update(return_mean="12"), "'12' is not of type 'number', 'null'"),
        (lambda row: row["noise"][0].update(kind="minibatch"), "'minibatch' is not one of"),
        (lambda row: row["noise"][0].pop("square"), "'square' is a required property"),
    ],
)
def test_what_is_wrong_is_found(fresh, change, complaint):
    row = json.loads((fresh / "iterations.jsonl").read_text().splitlines()[0])
    validator("row").validate(row)
    wrong = copy.deepcopy(row)
    change(wrong)
    with pytest.raises(ValidationError, match=re.escape(complaint)):
        validator("row", closed=False).validate(wrong)


def test_a_trial_of_actors_is_part_of_a_row(fresh):
    row = json.loads((fresh / "iterations.jsonl").read_text().splitlines()[0])
    trial = asdict(ActorTrial(actors=2, observations_per_second=12.5, next=4, settled=False))
    validator("row").validate(row | {"actor_trial": trial})
    for name in trial:
        with pytest.raises(ValidationError, match=f"'{name}' is a required property"):
            validator("row").validate(row | {"actor_trial": {k: v for k, v in trial.items() if k != name}})


def test_fields_of_later_versions_are_no_error(fresh):
    row = json.loads((fresh / "iterations.jsonl").read_text().splitlines()[0]) | {"of_a_later_version": 1}
    validator("row", closed=False).validate(row)
    with pytest.raises(ValidationError):
        validator("row").validate(row)


def test_the_schema_is_of_the_number_that_records_carry():
    Draft202012Validator.check_schema(STORED)
    assert SCHEMA == SWEEP_SCHEMA
    for part in ("manifest", "sweep"):
        assert STORED["$defs"][part]["properties"]["schema"] == {"const": SCHEMA}


def test_the_glossary_explains_every_field_of_the_schema():
    defined = set(re.findall(r"`([^`]+)`", (ROOT / "docs" / "glossary.md").read_text()))
    of_a_task = {"id", "preprocessing", "frame_skip", "goals", "clip_reward", "reward_scale"}  # in one line there
    named = {name for part in STORED["$defs"].values() for name in part.get("properties", {})}
    assert named - defined - of_a_task == set()


def test_a_sweep_whose_plan_lacks_later_settings_goes_on(tmp_path):
    """They count as what they were then: the command that the page prints works."""
    folder = write_sweep(tmp_path / "s", Planted(), most=3).folder
    manifest = json.loads((folder / "sweep.json").read_text())
    del manifest["plan"]["config"]["noise"]["followed_noise"], manifest["plan"]["config"]["rollout"]["clones"]
    (folder / "sweep.json").write_text(json.dumps(manifest))
    plan = make_plan().to_dict()
    plan["config"]["noise"]["iteration_noise_period"] = 0  # as earlier versions had it; every run has its own
    Sweep.open(folder, plan, {"command": []}).close()
    plan["config"]["rollout"]["clones"] = 4
    with pytest.raises(UsageError, match=r"another plan \(--clones\)"):
        Sweep.open(folder, plan, {"command": []})
