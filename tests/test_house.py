"""The house: imports run down only, every flag reaches the configuration, every logged metric is in the glossary."""

import ast
import importlib
import inspect
import re
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path

import pytest

from rlscale.agents.config import TrainConfig, default_config
from rlscale.agents.rollout.fleet import LostActor
from rlscale.agents.rollout.fragments import Fragment
from rlscale.agents.train import train
from rlscale.benchmarks.options import parse_train
from rlscale.envs import find_task
from rlscale.records.events import _NAMES
from rlscale.records.run import read_run

ROOT = Path(__file__).parent.parent
FLOORS = ("rlscale", "envs", "agents", "benchmarks")  # from the bottom up; the last three are folders linked into the first
LOOK_UPWARDS = {"rlscale.__main__", "rlscale.rllib", "rlscale.sb3"}  # where the command and the plug-ins are entered


def _modules():
    """Every module of the package by its name, each once: links are not followed."""
    found = {}
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                parts = path.relative_to(ROOT).with_suffix("").parts
                name = ".".join(parts if floor == "rlscale" else ("rlscale", *parts))
                found[name.removesuffix(".__init__")] = path
    return found


MODULES = _modules()
each_module = pytest.mark.parametrize("name", MODULES)


def floor_of(name):
    part = name.split(".")[1] if "." in name else ""
    return FLOORS.index(part) if part in FLOORS else 0


def package_of(name):
    """The parts of the package that a module's relative imports start from."""
    return name.split(".") if MODULES[name].name == "__init__.py" else name.split(".")[:-1]


def imports_of(name):
    """The modules that a module imports anywhere, dots resolved; of `from x import y` it is y where that is a module."""
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = package_of(name)
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module


@each_module
def test_imports_run_down_only(name):
    for target in imports_of(name):
        assert target.split(".")[0] not in (*FLOORS[1:], "tests"), f"{name} imports {target} by another name than the wheel's"
        if target.split(".")[0] == "rlscale" and name not in LOOK_UPWARDS:
            assert floor_of(target) <= floor_of(name), f"{name} imports {target}, a floor above"


@each_module
def test_relative_imports_stay_on_their_floor(name):
    """A dot means my own room: the floor's folder is as high as it leads."""
    inside = len(package_of(name)) - (1 if floor_of(name) else 0)
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= inside, f"{name}: {ast.unparse(node)} leaves its floor"


def room_of(name):
    """The folder of a module; modules that stand directly on a floor are rooms of their own."""
    parts = name.split(".")
    top = 2 if floor_of(name) else 1
    return ".".join(parts[: top + 1])


def test_no_circle_of_imports():
    """Deferred imports included; of rooms as well as modules: importing a module runs its folder's `__init__`."""
    modules = {name: {t for t in imports_of(name) if t in MODULES and t != name} for name in MODULES}
    rooms = {}
    for name, targets in modules.items():
        rooms.setdefault(room_of(name), set()).update({room_of(t) for t in targets} - {room_of(name)})
    for graph in (modules, rooms):
        done = set()

        def visit(node, trail, graph=graph, done=done):
            assert node not in trail, " -> ".join([*trail[trail.index(node) :], node])
            if node not in done:
                for target in sorted(graph[node]):
                    visit(target, [*trail, node])
                done.add(node)

        for node in graph:
            visit(node, [])


def test_nothing_imports_the_measurements():
    """They measure this project; what is installed and run must not depend on them."""
    room = "rlscale.benchmarks.measurements"
    for name in MODULES:
        if not name.startswith(room):
            assert not [target for target in imports_of(name) if target.startswith(room)], name


def test_rooms_are_small():
    """At most sixteen Python files a folder, no module of the package over 400 lines."""
    folders = {path.parent for path in MODULES.values()} | {path.parent for path in (ROOT / "tests").rglob("*.py")}
    for folder in folders:
        assert len(list(folder.glob("*.py"))) <= 16, folder
    for path in MODULES.values():
        assert len(path.read_text().splitlines()) <= 400, path


def test_a_folder_s_first_lines_name_every_module_in_it():
    for path in MODULES.values():
        if path.name == "__init__.py":
            said = ast.get_docstring(ast.parse(path.read_text()))
            inside = [module.stem for module in path.parent.glob("*.py") if not module.name.startswith("__")]
            assert [name for name in inside if not re.search(rf"\b{name}\b", said)] == [], path


def test_the_mathematics_needs_neither_ray_nor_environments_nor_files():
    for name, path in MODULES.items():
        if name.split(".")[1:2] in (["noise"], ["estimate"], ["frontier"], ["crossing"]):
            used = {target.split(".")[0] for target in imports_of(name)}
            assert not used & {"ray", "gymnasium", "ale_py", "pathlib", "os", "io"}
            assert "open(" not in path.read_text()


@each_module
def test_modules_say_what_lives_there(name):
    path = MODULES[name]
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
        "network": "nature_cnn",
        "lr_rule": "sqrt",
        "followed_noise": "joint",
        "track": "wandb",
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
    arrived = asdict(parse_train(["atari/pong", word, *typed]))
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
    logged |= set(_NAMES.values()) | {"block"} | ({field.name for field in fields(LostActor)} - {"noticed"})
    assert logged - defined == set()


PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "results/README.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def anchors_of(page):
    """The anchors that GitHub makes of a page's headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)]
    return {heading.strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_readme_and_docs_name_no_file_that_is_not_there(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if "://" not in target:
            other = (page.parent / target).resolve() if target else page
            assert other.exists(), f"{page.name} names {target}"
            assert not anchor or anchor in anchors_of(other), f"{page.name} names {target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_modules_and_names_that_are_there(page):
    text = page.read_text()
    for name in re.findall(r"python -m (rlscale[\w.]*\w)", text):
        assert name in MODULES or name.split(".")[-1].isupper(), f"{page.name} names {name}"  # X and NAME are any of them
    for module, names in re.findall(r"^from (rlscale[\w.]*) import (.*)$", text, re.MULTILINE):
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name), f"{page.name}: {module} offers no {name}"


def test_the_tour_names_what_is_there():
    """A link to a module is named after a class or function that the module defines."""
    page = ROOT / "docs" / "tour.md"
    for name, target in re.findall(r"\[`([\w.]+)`\]\((\S+\.py)\)", page.read_text()):
        tree = ast.parse((page.parent / target).read_text())
        scope = tree.body
        for part in name.split("."):
            found = [n for n in scope if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == part]
            assert found, f"{target} defines no {name}"
            scope = found[0].body
