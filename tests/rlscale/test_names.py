"""The names that the package offers at its top, and what importing them does not load."""

import subprocess
import sys
from pathlib import Path

import rlscale
from rlscale import frontier, noise

HEAVY = {"torch", "ray", "altair", "gymnasium", "tensorboard"}


def loaded_by(code):
    """The modules that a fresh Python has loaded after the code, by the first part of their name."""
    words = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"]
    found = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    return {name.split(".")[0] for name in found.stdout.split()}


def test_the_package_alone_loads_nothing_that_takes_long():
    assert not loaded_by("import rlscale") & (HEAVY | {"numpy", "scipy", "pandas"})


def test_a_rollout_worker_loads_pytorch_but_neither_scipy_nor_altair():
    """It is one process of many; Ray itself is there already where it begins."""
    loaded = loaded_by("import rlscale.agents.rollout.actors")
    assert "torch" in loaded
    assert not loaded & {"scipy", "altair", "tyro", "tensorboard"}


def test_no_name_loads_torch_ray_or_altair():
    names = [name for name in rlscale.__all__ if not name.startswith("_")]
    assert len(names) == 11
    loaded = loaded_by(f"from rlscale import {', '.join(names)}")
    assert "numpy" in loaded
    assert not loaded & HEAVY


def test_no_command_loads_altair_before_it_writes_a_page():
    """It would take a third of a second of every run's and every sweep's beginning, and of a comparison in the terminal."""
    assert "altair" not in loaded_by("from rlscale.benchmarks.commands import compare, report, sweep, train")


def test_a_notebook_sees_the_names_and_the_folders():
    """Tab completion asks `dir`; a folder need not have been imported before."""
    assert set(rlscale.__all__) | {"noise", "frontier", "records", "sizing"} <= set(dir(rlscale))
    assert loaded_by("import rlscale; rlscale.noise.pool, rlscale.sizing.plan, rlscale.records.read_run")


def test_what_the_package_says_that_it_holds_is_there_after_its_import_alone():
    """The modules and folders that its first lines name, the two plug-ins but in `dir`."""
    named = [line[4:].split("   ")[0].split(", ") for line in rlscale.__doc__.splitlines() if line.startswith("    ")]
    rooms = {room for line in named for room in line}
    assert {"estimate", "text", "returns", "envs", "agents", "benchmarks", "sb3"} <= rooms
    assert rooms - {"rllib", "sb3"} <= set(rlscale.__dir__())
    assert loaded_by(f"import rlscale; {', '.join(f'rlscale.{room}' for room in rooms - {'rllib', 'sb3'})}")


def test_help_needs_no_other_library():
    """In a plain installation there is no Stable-Baselines3; its plug-in, imported by name, says how to get it."""
    without = "import inspect, pydoc, sys; sys.modules['stable_baselines3'] = None; import rlscale"
    tried = "inspect.getmembers(rlscale); pydoc.render_doc(rlscale); assert not hasattr(rlscale, 'sb3')"
    assert loaded_by(f"{without}; {tried}")
    imported = (
        f"{without}\ntry: import rlscale.sb3\nexcept rlscale.errors.UsageError as error: assert 'pip install' in str(error)"
    )
    assert "rlscale" in loaded_by(f"{imported}\nelse: raise AssertionError")


def test_a_record_is_shown_in_a_line():
    """A notebook prints what a cell ends in; a run's rows are megabytes."""
    results = Path(__file__).parents[2] / "results"
    sweep = rlscale.read_sweep(results / "demo")
    shown = rlscale.read_run(results / "rllib-pong"), sweep, rlscale.compare([sweep], [])
    assert max(len(repr(one)) for one in shown) < 20_000


def test_the_names_are_those_of_their_modules():
    assert rlscale.noise_scale is noise.noise_scale is noise.estimate
    assert rlscale.fit_frontier is frontier.fit
    assert all(callable(getattr(rlscale, name)) for name in rlscale.__all__)
    assert not hasattr(rlscale, "no_such_name")


def test_records_are_read_by_their_names():
    """As a person types them: a text is a path."""
    results = Path(__file__).parents[2] / "results"
    assert rlscale.read_sweep(str(results / "demo")).task == "minatar/breakout"
    assert len(rlscale.read_run(str(results / "rllib-pong")).rows) == 8
