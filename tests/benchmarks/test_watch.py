"""`rlscale report --watch`: a real server beside a real run, asked as a browser asks it."""

import errno
import html
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from commands import COMMAND, Command, rows_of, start, wait_for
from planted import Planted, make_plan, write_sweep
from run_records import charts_of, make_run

from rlscale.analysis import compare
from rlscale.benchmarks.cli import main
from rlscale.benchmarks.commands import watch
from rlscale.benchmarks.sweep.next_command import with_next_words
from rlscale.records import read_sweep
from rlscale.report.words import say_next

ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "results" / "minatar-breakout"


class Watch:
    """The command, and the address that it says."""

    def __init__(self, folder, *words):
        self.process = Command(
            [*COMMAND, "report", *words, "--watch"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.first = self.process.stdout.readline()
        self.address = re.match(r"(http://127\.0\.0\.1:\d+) follows", self.first).group(1)

    def get(self, path="/", **headers):
        asked = urllib.request.Request(self.address + path, headers=headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.read().decode()

    def state(self):
        return self.get("/state")

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        rest, errors = self.process.communicate(timeout=20)
        return self.process.returncode, rest, errors


def shown(page):
    """The state that a page has, which its script compares with the server's."""
    return re.search(r'const shown = "(\w*)"', page).group(1)


@pytest.mark.long
def test_it_follows_a_run_that_begins_later_and_ends_with_ctrl_c(tmp_path):
    watching = Watch(tmp_path, "mine", "--out", "kept.html")
    with watching.process:
        waiting = watching.get()
        assert "Nothing to show yet" in waiting
        assert "mine does not exist" in waiting
        size = ["--environments", "64", "--rollout-length", "128", "--mini-batch", "4096", "--threads", "1"]  # a second a row
        words = ["classic/cartpole", *size, "--observations", "100000000", "--run", "mine"]
        with start(tmp_path, *words) as run:
            wait_for(lambda: rows_of(tmp_path / "mine") >= 1, run)
            wait_for(lambda: watching.state() != shown(waiting), run)
            first = watching.get()
            wait_for(lambda: watching.state() != shown(first), run)
            second = watching.get()
            run.send_signal(signal.SIGINT)
            assert run.wait(timeout=60) == 0
        assert "cartpole" in second
        assert second != first
        wait_for(lambda: "stopped" in watching.get(), watching.process)
        code, rest, errors = watching.end()
    assert (code, errors) == (0, "")
    assert "stopped; the page as it was last is kept.html" in rest
    assert "cartpole" in (tmp_path / "kept.html").read_text()


def test_nothing_is_made_while_nothing_changes(tmp_path):
    make_run(tmp_path / "run")
    watching = Watch(tmp_path, "run")
    with watching.process:
        page = watching.get()
        assert watching.get() == page
        assert watching.state() == shown(page)
        assert not (tmp_path / "run" / "report.html").exists()
        code, rest, _ = watching.end(signal.SIGTERM)
    assert (code, rest) == (0, "stopped\n")


def test_a_sweep_is_followed_as_compare_shows_it(tmp_path):
    make_run(tmp_path / "run")
    watching = Watch(tmp_path, str(SWEEP), "run")
    with watching.process:
        page = watching.get()
        (tmp_path / "page.html").write_text(page)
        assert "observations an optimizer step are well spent" in page
        assert charts_of(tmp_path / "page.html")
        watching.end()


def test_only_this_machine_and_this_name_reach_it(tmp_path):
    make_run(tmp_path / "run")
    watching = Watch(tmp_path, "run")
    with watching.process:
        port = int(watching.address.rpartition(":")[2])
        held = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        listening = [line.split()[1] for line in held.splitlines() if line.split()[3] == "0A" and f":{port:04X} " in line]
        assert listening == [f"0100007F:{port:04X}"]
        for path, headers, code in (("/", {"Host": "example.org"}, 403), ("/run/manifest.json", {}, 404), ("/../x", {}, 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                watching.get(path, **headers)
            assert refused.value.code == code
            refused.value.close()
        assert watching.get("/state", Host=f"localhost:{port}")
        assert watching.get("/state", Host="127.0.0.1"), "as a browser says where the port is 80"
        watching.end()


def test_a_full_disk_and_a_browser_that_leaves_end_nothing(tmp_path, monkeypatch):
    """The page cannot be written for a while: the browser is told, and gets it when there is room."""
    run = make_run(tmp_path / "run")
    pages = watch._Pages([run.folder], tmp_path / "page.html")
    server = ThreadingHTTPServer(("127.0.0.1", 0), watch._handler(pages))
    errors = []
    monkeypatch.setattr(server, "handle_error", lambda *about: errors.append(about))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/"

        def full(*about):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(watch, "write_report", full)
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(address, timeout=60)
            assert (refused.value.code, "No space left" in refused.value.reason) == (500, True)
            assert "http-equiv='refresh'" in refused.value.read().decode(), "the browser would show it for ever"
            refused.value.close()
        with socket.create_connection(("127.0.0.1", server.server_port)) as leaving:
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed by a reset
            leaving.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1:1\r\n\r\n")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "atari/pong" in answer.read().decode()
    finally:
        server.shutdown()
        server.server_close()
    assert errors == []


def test_a_run_that_is_not_there_or_damaged_is_named_beside_those_that_are_shown(tmp_path):
    run = make_run(tmp_path / "run")
    pages = watch._Pages([run.folder, tmp_path / "later"], tmp_path / "page.html")
    page = pages.text().decode()
    assert "atari/pong" in page
    assert re.search(r"<p class='note'>[^<]*later[^<]* left out\.</p>", page)
    make_run(tmp_path / "later")
    pages._rest = 0.0
    assert "left out" not in pages.text().decode()


def test_names_need_not_be_utf_8(tmp_path):
    """Neither that of a file in the run's folder nor that of a folder that is left out."""
    run = make_run(tmp_path / "run")
    (run.folder / os.fsdecode(b"notes-\xff")).touch()
    page = watch._Pages([run.folder, tmp_path / os.fsdecode(b"later-\xff")], tmp_path / "page.html").text().decode()
    assert "atari/pong" in page
    assert re.search(r"later-\? [^<]* left out", page)


def test_a_run_that_is_killed_is_something_new(tmp_path):
    """Its process writes nothing more."""
    run = make_run(tmp_path / "run")
    with subprocess.Popen(["sleep", "600"]) as process:
        path = run.folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "state": "running", "process": process.pid}))
        pages = watch._Pages([run.folder], tmp_path / "page.html")
        assert "<dd>running</dd>" in pages.text().decode()
        pages._rest = 0.0
        made = pages.state()
        process.kill()
        process.wait()
        assert pages.state() != made
    assert "<dd>interrupted</dd>" in pages.text().decode()


def test_the_command_that_goes_on_with_a_sweep_is_as_short_as_compare_s(tmp_path):
    record = write_sweep(tmp_path / "atari-pong", Planted(90_000, scatter=0.05), "atari/pong", make_plan(batch_sizes=(40, 160)))
    manifest = json.loads((record.folder / "sweep.json").read_text())
    manifest["command"] += ["--batch-sizes", "40,160", "--total-observations", "None"]  # as a record of an earlier version has it
    (record.folder / "sweep.json").write_text(json.dumps(manifest))
    (sweep,) = with_next_words(compare([read_sweep(record.folder)], [])).sweeps
    words = say_next(sweep).removeprefix("next: ")
    page = watch._Pages([record.folder], tmp_path / "page.html").text().decode()
    assert "--total-observations" not in words
    assert html.escape(f"Next: {words}") in page


def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path):
    make_run(tmp_path / "run")
    words = [*COMMAND, "report", "run", "--watch", "--out", "/proc/no/page.html"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rlscale: --out: cannot write /proc/no/page.html")
    assert done.stderr.count("\n") == 1


def test_a_port_that_cannot_be_had(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "nice", lambda by: None)  # which would slow this process down for good
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        for words, said in (
            (["--watch", "--port", str(held.getsockname()[1])], "Address already in use"),
            (["--watch", "--port", "70000"], "cannot serve at port 70000"),
            (["--port", "7000"], "nothing is served without --watch"),
        ):
            assert main(["report", "run", *words]) == 2
            error = capfd.readouterr().err
            assert said in error
            assert error.count("\n") == 1
