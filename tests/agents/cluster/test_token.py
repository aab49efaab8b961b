"""docs/cluster.md's second step followed in order, with Ray's token: on one machine, with a home folder for each of two."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from making import free_port
from nodes import ENVIRONMENT, nodes

from rlscale.records.run import read_run

PAGE = (Path(__file__).parents[3] / "docs" / "cluster.md").read_text()
STEPS = re.findall(r"^    (?:~/rlscale-env/bin/)?((?:ray|rlscale|export) .*?)(?: +#.*)?$", PAGE.split("## 3.")[0], re.MULTILINE)
SMALL = ["--environments", "8", "--rollout-length", "16", "--mini-batch", "64", "--threads", "1", "--observations", "1000"]


class Machine:
    """A home folder, and the shell in it."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.home = home
        self.environment = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("RAY_")} | {
            "HOME": str(home)
        }

    def export(self, line: str) -> None:
        self.environment |= dict(word.split("=") for word in line.split()[1:])

    def type(self, line: str, *more: str) -> subprocess.CompletedProcess[str]:
        program, *words = line.split()
        module = {"ray": "ray.scripts.scripts", "rlscale": "rlscale"}[program]
        return subprocess.run(
            [sys.executable, "-m", module, *words, *more],
            cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    @property
    def token(self) -> Path:
        return self.home / ".ray" / "auth_token"


@pytest.fixture
def steps():
    """The page's lines, by what they do; a line that the page no longer has, or has twice, is a failure here."""
    one, export, token, head, second, two = STEPS
    assert one.startswith("rlscale train"), one
    assert export.startswith("export RAY_AUTH_MODE=token"), export
    assert token.startswith("ray get-auth-token"), token
    assert head.startswith("ray start --head"), head
    assert second.startswith("ray start --address"), second
    assert two.startswith("rlscale train"), two
    return {"one": one, "export": export, "token": token, "head": head, "second": second, "two": two}


@pytest.mark.long
def test_a_second_machine_joins_with_the_token_and_no_other_does(tmp_path, steps):
    port = free_port()
    first, other, stranger = (Machine(tmp_path / name) for name in ("first", "other", "stranger"))

    def here(step: str) -> str:
        return (
            steps[step]
            .replace("HEAD:6379", f"127.0.0.1:{port}")
            .replace("6379", str(port))
            .replace("atari/pong", "classic/cartpole")
        )

    # Step 1 makes a token, though nobody asked for one: why the mode has to be said from then on.
    alone = first.type(here("one").replace("--actors 8", "--actors 1"), *SMALL)
    assert alone.returncode == 0, alone.stderr
    for machine in (first, other):
        machine.export(here("export"))
    with nodes(port, tmp_path, first.environment) as cluster:
        assert first.type(here("token")).stdout.strip().endswith(first.token.read_text().strip())
        cluster.start(0)
        size = ["--num-cpus=2", f"--object-store-memory={100 << 20}", "--disable-usage-stats"]

        refused = [other.type(here("second"), *size)]  # the mode, and no token
        refused += [stranger.type(here("second"), *size)]  # neither
        stranger.export(here("export"))
        stranger.type(here("token"))  # the mode, and a token of its own
        refused += [stranger.type(here("second"), *size)]
        for done in refused:
            assert done.returncode != 0
            assert "AuthenticationError" in done.stdout + done.stderr, done.stdout + done.stderr

        other.token.parent.mkdir(exist_ok=True)
        other.token.write_text(first.token.read_text())
        other.token.chmod(0o600)
        joined = other.type(here("second"), *size)
        assert joined.returncode == 0, joined.stderr

        both = first.type(here("two").replace("--actors 16", "--actors 2"), *SMALL, "--run", "both")
        assert both.returncode == 0, both.stderr
        assert read_run(first.home / "both").rows[-1]["observations"] >= 1000

        wrong = stranger.type(here("two").replace("--actors 16", "--actors 2"), *SMALL)
        assert wrong.returncode == 2, wrong.stderr
        assert "RAY_AUTH_TOKEN" in wrong.stderr
        assert "Traceback" not in wrong.stderr
