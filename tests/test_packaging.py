"""One import name: what is installed, from where the package can be used, and whose files it leaves alone."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from nodes import bare_python

ROOT = Path(__file__).parent.parent
CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*words, folder, **environment):
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=CLEAN | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if "dist-info" not in name}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What git holds of the checkout, links as links, so that building leaves nothing behind in it."""
    copy = tmp_path_factory.mktemp("source")
    for name in run("git", "ls-files", folder=ROOT).splitlines():
        if (ROOT / name).exists():  # a file may be deleted and not committed yet
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    """The wheel, built from the source distribution by the setuptools that is installed."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source, folder=out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def neighbours():
    """Packages of other people, by files: two with top-level names that are folders of ours."""
    return {"agents/__init__.py": "WHO = 'an SDK'\n", "benchmarks/__init__.py": "WHO = 'a library'\n"}


@pytest.fixture(scope="module")
def installed(wheel, neighbours, tmp_path_factory):
    """A virtual environment with our dependencies, those neighbours, and then our wheel."""
    folder = tmp_path_factory.mktemp("installed")
    python = bare_python(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name, text in neighbours.items():
        (packages / name).parent.mkdir()
        (packages / name).write_text(text)
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel, folder=folder)
    return folder


@pytest.mark.long
def test_the_wheel_holds_one_package_and_all_of_it(source, wheel, tmp_path):
    """From the source distribution and from the checkout alike, though there three folders are links.

    From the checkout with the build requirements alone, as `pip install` builds it.
    """
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, source, folder=tmp_path)
    (direct,) = tmp_path.glob("*.whl")
    assert contents(direct) == contents(wheel)
    assert {name.split("/")[0] for name in contents(wheel)} == {"rlscale"}
    tracked = run("git", "ls-files", "rlscale", "envs", "agents", "benchmarks", folder=ROOT).splitlines()
    ours = {name if name.startswith("rlscale/") else f"rlscale/{name}" for name in tracked if (ROOT / name).is_file()}
    assert set(contents(wheel)) == ours


def test_twine_finds_nothing_to_complain_of(source, tmp_path):
    """README.md is the page at the package index: its rendering, and the metadata of the source distribution."""
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, source, folder=tmp_path)
    (package,) = tmp_path.iterdir()
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", package, folder=tmp_path)


@pytest.mark.long
def test_twine_finds_nothing_to_complain_of_in_the_wheel_either(wheel):
    assert "PASSED" in run(sys.executable, "-m", "twine", "check", "--strict", wheel, folder=wheel.parent)


@pytest.mark.long
def test_the_wheel_works_beside_packages_that_have_our_folders_names(installed, neighbours, tmp_path):
    (packages,) = installed.glob("lib/python*/site-packages")
    assert {name: (packages / name).read_text() for name in neighbours} == neighbours
    said = run(
        installed / "bin" / "python", "-c", "import agents, benchmarks; print(agents.WHO, benchmarks.WHO)", folder=tmp_path
    )
    assert said == "an SDK a library\n"
    assert "classic/cartpole" in run(installed / "bin" / "rlscale", "tasks", "classic", folder=tmp_path)
    words = ["train", "classic/cartpole", "--actors", "1", "--observations", "2000", "--run", "mine"]
    assert "finished" in run(installed / "bin" / "rlscale", *words, folder=tmp_path)


@pytest.mark.long
def test_installed_it_knows_that_it_is_no_checkout(installed, tmp_path):
    """Where the package lies is asked of the package: a module's own name, links resolved, leaves it in a checkout only."""
    code = "from rlscale.agents.machine import find_commit; print(find_commit())"
    assert run(installed / "bin" / "python", "-c", code, folder=tmp_path) == "None\n"
    head = run("git", "rev-parse", "HEAD", folder=ROOT).strip()
    assert run(sys.executable, "-c", code, folder=tmp_path, PYTHONPATH=str(ROOT)).startswith(head)


def test_a_checkout_works_by_pythonpath(tmp_path):
    """Without any installation, by the same names; its measurements too."""
    python, path = bare_python(tmp_path / "bare"), {"PYTHONPATH": str(ROOT)}
    assert "classic/cartpole" in run(python, "-m", "rlscale", "tasks", "classic", folder=tmp_path, **path)
    assert "--systems" in run(python, "-m", "rlscale.benchmarks.measurements.peers", "--help", folder=tmp_path, **path)
    said = run(
        python,
        "-c",
        "import rlscale.envs, sys; print([n for n in ('envs', 'agents') if n in sys.modules])",
        folder=tmp_path,
        **path,
    )
    assert said == "[]\n"


def test_the_installed_checkout_is_this_one(tmp_path):
    """`make install` links the checkout: what runs is what was edited."""
    if "PYTHONPATH" in os.environ:
        pytest.skip("another place stands before what is installed")
    code = "import rlscale, rlscale.benchmarks.measurements as m; print(rlscale.__file__); print(m.__file__)"
    said = run(sys.executable, "-c", code, folder=tmp_path).splitlines()
    assert said == [str(ROOT / "rlscale" / "__init__.py"), str(ROOT / "rlscale" / "benchmarks" / "measurements" / "__init__.py")]
