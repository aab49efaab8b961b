"""`rlscale report --watch`: serves a page that follows runs and sweeps while they go on, to a browser on this machine.

The page is the one that `rlscale report` or `rlscale compare` writes, made again when a record has changed and a browser asks.
"""

import hashlib
import html
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rlscale.agents.cluster.sigterm import handled
from rlscale.analysis.comparison import compare
from rlscale.errors import UsageError
from rlscale.records import RunRecord, is_sweep
from rlscale.records.run import read_run_manifest
from rlscale.report.page import write_page as write_markup
from rlscale.report.run_page import write_report
from rlscale.text import first_line

from ..sweep.next_command import with_next_words
from .compare import read_folders

__all__ = ["watch"]

_HOST = "127.0.0.1"
_EVERY = 2  # seconds between a browser's questions
_SHARE = 5  # the page is made at most a fifth of the time: on two cores that is time of the run's own
_SCRIPT = """<p class="warning" id="ended" style="position: fixed; bottom: 0" hidden>rlscale has ended: this page is the last.</p>
<script>
  const shown = "@STATE@";
  setInterval(async () => {
    try {
      if (await (await fetch("/state", { cache: "no-store" })).text() !== shown) location.reload();
    } catch {
      document.getElementById("ended").hidden = false;
    }
  }, @EVERY@000);
</script>
</body>"""


def watch(folders: Sequence[str], out: str | None, port: int) -> int:
    """Serve the page until Ctrl-C or SIGTERM; 0.

    Args:
        folders: of runs or sweeps; one that does not exist yet, or has nothing to show, is waited for.
        out: where the page is kept as a file as well, as it was last shown.
        port: of this machine, reachable from this machine alone; 0 takes a free one.

    Raises:
        UsageError: the port is taken or not allowed, or the page cannot be written.
    """
    os.nice(10)  # what it follows comes first
    with tempfile.TemporaryDirectory() as place:
        pages = _Pages([Path(folder) for folder in folders], Path(out) if out else Path(place) / "page.html")
        try:
            server = ThreadingHTTPServer((_HOST, port), _handler(pages))
        except (OSError, OverflowError) as error:
            problem = f"cannot serve at port {port}: {getattr(error, 'strerror', None) or error}"
            raise UsageError("--port", problem, "Name another, or leave it out for one that is free") from None
        pages.text()  # what cannot be written is said at once
        # The handler runs in the thread that serves, where `shutdown` would wait for itself.
        stop = threading.Event()
        with handled(dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: stop.set())):
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            print(f"http://{_HOST}:{server.server_port} follows {', '.join(folders)}; Ctrl-C ends it", flush=True)
            stop.wait()
        server.shutdown()
        server.server_close()
    print(f"stopped{f'; the page as it was last is {out}' if out else ''}")
    return 0


class _Pages:
    """The page, and what it was made from.

    Args:
        folders: of runs and sweeps.
        page: where it is written.
    """

    def __init__(self, folders: Sequence[Path], page: Path) -> None:
        self._folders, self._page = folders, page
        self._lock = threading.Lock()
        self._made, self._rest = "", 0.0  # the state that the page shows, and when another may be made
        self._left_out: list[str] = []  # folders that it does not show, and why

    def state(self) -> str:
        """Differs from the page's own when there is something new to show."""
        return self._records() if time.monotonic() >= self._rest else self._made

    def text(self) -> bytes:
        """The page, made anew if there is something new."""
        with self._lock:
            if (state := self.state()) != self._made:
                started = time.monotonic()
                self._write()
                self._made = state
                self._rest = time.monotonic() + _SHARE * (time.monotonic() - started)
            script = _SCRIPT.replace("@STATE@", self._made).replace("@EVERY@", str(_EVERY))
            head, _, tail = self._page.read_text(encoding="utf-8").rpartition("</body>")
            left_out = "".join(f"<p class='note'>{html.escape(sentence)}.</p>" for sentence in self._left_out)
            return (head + left_out + script + tail).encode(errors="replace")  # a folder's name need not be UTF-8

    def _records(self) -> str:
        """Of the records as they are: the state of each run, and of each file its name, its length and when it was written."""
        found = hashlib.sha256()
        for folder in self._folders:
            with suppress(UsageError):  # a run whose process was killed writes nothing more
                found.update(RunRecord(folder, read_run_manifest(folder), []).state.encode())
            with suppress(OSError):
                for path in sorted(folder.iterdir()):
                    if os.path.realpath(path) != os.path.realpath(self._page) and path.is_file():
                        about = path.stat()
                        found.update(os.fsencode(f"{path} {about.st_size} {about.st_mtime_ns}\n"))
        return found.hexdigest()

    def _write(self) -> None:
        self._left_out = []
        try:
            sweeps, runs, left_out = read_folders([str(folder) for folder in self._folders])
            runs = [run for run in runs if run.rows]
            if any(map(is_sweep, self._folders)):
                from rlscale.report.comparison_page import write_comparison

                write_comparison(with_next_words(compare(sweeps, runs, left_out)), self._page)
                return
            self._left_out = left_out  # which a page of sweeps says itself
            if not runs:
                raise UsageError("RUN", "no iteration has ended yet", "Wait")
            write_report(runs, self._page)
        except UsageError as error:
            waiting = f"<p class='answer'>Nothing to show yet: {html.escape(error.problem)}.</p><p>This page follows.</p>"
            write_markup(self._page, "waiting", [waiting], {})


def _handler(pages: _Pages) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # Of a page that could not be made: the browser asks again, since it has no script that would.
        error_message_format = "<!DOCTYPE html><meta charset='utf-8'><meta http-equiv='refresh' content='10'><p>%(message)s</p>"

        def do_GET(self) -> None:
            # A page of another site that a browser has open cannot read this one by a name that it points here.
            if self.headers.get("Host", "").partition(":")[0] not in (_HOST, "localhost"):
                self.send_error(403)
            elif self.path == "/":
                try:
                    self._answer(pages.text(), "text/html")
                except (OSError, UsageError) as error:  # a full disk, or one that is gone
                    self.send_error(500, first_line(error))
            elif self.path == "/state":
                self._answer(pages.state().encode(), "text/plain")
            else:
                self.send_error(404)

        def _answer(self, body: bytes, kind: str) -> None:
            with suppress(ConnectionError):  # the browser is gone
                self.send_response(200)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what it serves is not worth a line each."""

    return Handler
