"""Several Ray nodes on one machine, as processes of their own, and a Python that has our dependencies but not us."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from making import free_port

OURS = {"rlscale"}
ENVIRONMENT = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, "RAY_AUTH_MODE": "disabled"}


def bare_python(folder: Path) -> Path:
    """A new virtual environment in which all that is installed here can be imported, but for our packages."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for number, place in enumerate(place for place in sys.path if place.endswith("site-packages")):
        linked = folder / f"dependencies{number}"
        linked.mkdir()
        for entry in Path(place).iterdir():
            if entry.name not in OURS and entry.suffix != ".pth" and "__editable__" not in entry.name:
                (linked / entry.name).symlink_to(entry)
        with (packages / "dependencies.pth").open("a") as listed:
            listed.write(f"{linked}\n")
    return folder / "bin" / "python"


def wait_until(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Nodes:
    """A head and further nodes, started by `ray start`, each of which can be killed with all its processes.

    Args:
        port: of the head.
        folder: where the nodes are started; they find no checkout there.
        environment: variables that the nodes get.
    """

    def __init__(self, port: int, folder: Path, environment: dict[str, str]) -> None:
        self.address = f"127.0.0.1:{port}"
        self._port, self._folder, self._environment = port, folder, environment
        self._sockets = tempfile.mkdtemp()  # their paths must be short
        self._nodes: list[subprocess.Popen] = []

    def start(self, cpus: int, *options: str, python: Path | str = sys.executable) -> None:
        """One more node; the first is the head. With `--block` among the options its processes die together."""
        place = [f"--address={self.address}"]
        if not self._nodes:
            place = ["--head", f"--port={self._port}", f"--temp-dir={self._sockets}"]
            place += [] if any("dashboard" in option for option in options) else ["--include-dashboard=false"]
            # No autoscaler, which none of these clusters has; and a port of its own, so that two heads can stand on one machine.
            place += ["--no-monitor", f"--ray-client-server-port={free_port()}"]
        words = [*place, f"--num-cpus={cpus}", f"--object-store-memory={100 << 20}", "--disable-usage-stats", *options]
        node = subprocess.Popen(
            [str(python), "-m", "ray.scripts.scripts", "start", *words],
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._nodes.append(node)
        if "--block" not in options:
            assert node.wait(timeout=60) == 0
        wait_until(lambda: listens(self._port))

    def processes(self, name: bytes) -> list[int]:
        """Those of the whole cluster whose command line holds that name, oldest first."""
        found = []
        for pid in sorted(int(p) for p in os.listdir("/proc") if p.isdecimal()):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if self._sockets.encode() in words and name in words:
                    found.append(pid)
        return found

    def kill(self, name: bytes = b"") -> None:
        """kill -9 of those processes, or of all."""
        for pid in self.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Leave nothing behind."""
        for node in reversed(self._nodes):
            node.terminate()
        for node in self._nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(timeout=20)
            node.kill()
            node.wait()
        self.kill()
        shutil.rmtree(self._sockets, ignore_errors=True)


@contextlib.contextmanager
def nodes(port: int, folder: Path, environment: dict[str, str] = ENVIRONMENT):
    """`Nodes` that end with the block."""
    cluster = Nodes(port, folder, environment)
    try:
        yield cluster
    finally:
        cluster.end()
