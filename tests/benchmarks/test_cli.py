"""The command as a person meets it: what it prints, and what it answers to wrong input; some of it in processes of its own."""

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray

from rlscale.benchmarks.cli import main
from rlscale.benchmarks.commands import watch, workers
from rlscale.benchmarks.options import parse_train

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "rlscale"]
QUICK = ["--environments", "8", "--rollout-length", "16", "--epochs", "1", "--mini-batch", "None", "--observations", "256"]


def rlscale(*words, cwd, **options):
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, cwd=cwd, timeout=120, **options)


def in_this_process(folder, *words):
    """As `rlscale`, where everything is loaded already."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The command that made a run, in a process of its own, and the run's folder."""
    folder = tmp_path_factory.mktemp("cli")
    done = rlscale("train", "classic/cartpole", *QUICK, "--run", "first", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done, folder / "first"


@pytest.fixture
def run(first):
    return first[1]


def assert_refused(done, field, mend):
    """Exit code 2 and one clear line that names the field and the mend."""
    assert done.returncode == 2, done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith(f"rlscale: {field}: "), lines[0]
    assert mend in lines[0]
    assert "Traceback" not in done.stderr


TRAIN = ("train", "classic/cartpole")
FOLLOWING = ("--batch-size", "adaptive", "--epochs", "1", "--mini-batch", "None", "--followed-noise")


@pytest.mark.parametrize(
    ("typed", "meant"), [("--environment", "--environments"), ("--epoch", "--epochs"), ("--sed", "--seed or --seconds")]
)
def test_the_mend_of_an_unknown_option_is_an_option_of_the_command(typed, meant, capsys):
    """`--help` is where to look, never what was meant."""
    assert main([*TRAIN, typed, "3"]) == 2
    said = capsys.readouterr().err
    assert f"{typed}: there is no such option. Did you mean {meant}? " in said
    assert " or --help" not in said


LONG = 300 * "x"
PONG, LADDER = str(ROOT / "results" / "pong"), str(ROOT / "results" / "ladder")


@pytest.mark.parametrize(
    ("words", "field", "mend"),
    [
        (("trian",), "COMMAND", "bench, runs, report, play, demo or tasks"),
        ((*TRAIN, "--lr-rule", "cubic"), "--lr-rule", "Use one of 'constant', 'sqrt'"),
        (("train",), "TASK", "rlscale train atari/pong"),
        (("train", "--epochs", "3"), "TASK", "rlscale train atari/pong"),
        (("train", "atari/pnog"), "TASK", "atari/pong"),
        ((*TRAIN, "--environments", "8", "--actors", "3"), "--environments", "6"),
        ((*TRAIN, "--mini-batch", "100"), "--mini-batch", "Use for example 128"),
        ((*TRAIN, "--mini-batch", "64", "--rollout-length", "48", "--shuffle", "environments"), "--mini-batch", "multiple of 48"),
        ((*TRAIN, "--environments", "0"), "--environments", "above zero"),
        ((*TRAIN, "--observations", "-5"), "--observations", "above zero"),
        ((*TRAIN, "--learning-rate", "nan"), "--learning-rate", "above zero"),
        ((*TRAIN, "--actors", "-1"), "--actors", "zero or more"),
        ((*TRAIN, "--actor-price", "0.1"), "--actor-price", "--actors auto"),
        ((*TRAIN, "--actors", "auto", "--actor-price", "-0.1"), "--actor-price", "zero or more"),
        ((*TRAIN, "--actors", "auto", "--actor-price", "nan"), "--actor-price", "zero or more"),
        ((*TRAIN, "--blocks", "1"), "--blocks", "at least 2"),
        ((*TRAIN, "--discount", "1.5"), "--discount", "0.99"),
        *(((*TRAIN, "--snapshot-growth", growth), "--snapshot-growth", "1.06") for growth in ("0.5", "1001", "inf", "nan")),
        ((*TRAIN, "--observations", "None"), "--observations", "--seconds"),
        ((*TRAIN, "--epoch", "3"), "--epoch", "--epochs"),
        ((*TRAIN, "--no-such-thing"), "--no-such-thing", "--help"),
        ((*TRAIN, "--epochs", "many"), "--epochs", "--help"),
        ((*TRAIN, "--observations", "1e6"), "--observations", "Write 1000000"),
        ((*TRAIN, "--epochs", "1.5e+1"), "--epochs", "Write 15"),
        ((*TRAIN, "--epochs", "1.5e0"), "--epochs", "--help"),
        ((*TRAIN, "--actors", "1E1"), "--actors", "Write 10"),
        ((*TRAIN, "--run", os.fsdecode(b"caf\xe9")), r"'caf\xe9'", "another name"),
        (("sweep", "classic/cartpole", "--out=" + os.fsdecode(b"caf\xe9")), r"'--out=caf\xe9'", "another name"),
        ((*TRAIN, "--run", LONG), "--run", "may write"),
        ((*TRAIN, "--run", LONG + "/x"), "--run", "may write"),
        (("compare", LONG), "FOLDER", "rlscale train wrote"),
        (("report", LONG), "RUN", "folder of a run"),
        (("runs", LONG), "FOLDER", "folders that hold runs"),
        ((*TRAIN, "--chunk", "0"), "--chunk", "above zero"),
        ((*TRAIN, "--optimizer", "sgd"), "--optimizer", "Use one of 'adam'"),
        ((*TRAIN, "--network", "nature_cnn"), "--network", "mlp"),
        ((*TRAIN, "--device", "cuda:7"), "--device", "--device cpu"),
        ((*TRAIN, "--device", "abacus"), "--device", "cpu"),
        ((*TRAIN, "--run", "/proc/rlscale/run"), "--run", "may write"),
        ((*TRAIN, "--resume", "nowhere"), "--resume", "folder of a run"),
        ((*TRAIN, "--resume", str(ROOT / "results" / "rllib-pong")), "--resume", "a run of rlscale train"),
        (("train", "--resume", str(ROOT / "results" / "rllib-pong")), "--resume", "a run of rlscale train"),
        ((*TRAIN, "--followed-noise", "joint"), "--followed-noise", "--batch-size adaptive"),
        (("train", "classic/cartpole", "--optimizer", "rmsprop", *FOLLOWING, "joint_adam"), "--followed-noise", "joint"),
        (("train", "minatar/breakout", "--network", "small_cnn"), "--network", "Use --network minatar_cnn"),
        (("train", "atari/pong", "--resume", PONG, "--run", "elsewhere"), "--run", "copy the folder before"),
        (("advise", "minatar/breakout", "--run", PONG), "TASK", "name a run of it"),
        (("branch",), "RUN", "rlscale branch --help"),
        (("workers",), "TASK", "rlscale workers --help"),
        (("play",), "RUN", "rlscale play --help"),
        (("report", LADDER + "/digits"), "RUN", f"rlscale compare {LADDER}/digits"),
        (("report", PONG + "/manifest.json"), "RUN", "folder of a run"),
        (("compare", LADDER), "FOLDER", f"{LADDER}/*"),
        (("runs", PONG + "/manifest.json"), "FOLDER", "folders that hold runs"),
        (("report",), "RUN", "rlscale report"),
        (("report", "nowhere"), "RUN", "folder of a run"),
        (("tasks", "zzz"), "WORD", "lists all"),
        (("tasks", "pong", "zzz"), "WORD", "Give one"),
    ],
)
def test_bad_input(tmp_path, monkeypatch, capfd, words, field, mend):
    """In this process, which has loaded everything already; some of the tests below start the command itself."""
    monkeypatch.chdir(tmp_path)
    code = main(list(words))
    done = subprocess.CompletedProcess(words, code, *capfd.readouterr())
    assert_refused(done, field, mend)
    assert done.stdout == ""  # nothing is announced that will not be
    assert list(tmp_path.iterdir()) == []  # nothing half-made is left behind


def test_links_in_a_circle_are_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    for words in (["compare", "loop"], ["runs", "loop"], ["report", "loop"], [*TRAIN, "--run", "loop"]):
        assert main(words) == 2
        assert "loop" in (said := capsys.readouterr().err)
        assert said.count("\n") == 1
    assert (
        "loop cannot be read: Too many levels of symbolic links" in watch._Pages([Path("loop")], Path("p.html")).text().decode()
    )


def test_an_object_store_without_room_is_one_line(monkeypatch, capsys):
    """As where a policy no longer fits; a run says the same with where it can be resumed."""

    def full(arguments):
        raise ray.exceptions.ObjectStoreFullError("Failed to put object 00ff of 80 MB\nmore")

    monkeypatch.setattr(workers, "run", full)
    assert main(["workers"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "rlscale: no room in Ray's object store: Failed to put object 00ff of 80 MB. Use fewer environments"
    ), said
    assert said.count("\n") == 1


def test_a_terminal_that_takes_ascii_alone_gets_question_marks(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["compare", LADDER + "/digits", "--out", "None"]) == 0
    out.flush()
    assert b"?" in out.buffer.getvalue()


@pytest.mark.long
def test_an_address_without_actors(tmp_path):
    """The command itself: with an address it runs in a process of its own."""
    done = rlscale(*TRAIN, "--ray-address", "127.0.0.1:1", cwd=tmp_path)
    assert_refused(done, "--ray-address", "--actors")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run(run):
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    done = in_this_process(run.parent, "train", "classic/cartpole", "--run", "first")
    assert_refused(done, "--run", "--resume first")
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_run_that_is_gone_on_with_knows_its_task(run):
    config = parse_train(["--resume", str(run), "--epochs", "5"])
    assert (config.task, config.resume, config.update.epochs) == ("classic/cartpole", str(run), 5)


@pytest.mark.parametrize(("load", "threads", "said"), [(1e9, "0", True), (0.0, "0", False), (1e9, "1", False)])
def test_on_a_busy_machine_it_says_what_one_thread_would_spare(load, threads, said, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert main([*TRAIN, *QUICK, "--threads", threads, "--run", str(tmp_path / "run")]) == 0
    assert ("--threads 1 does not" in capfd.readouterr().out) is said


@pytest.mark.parametrize(("environments", "said"), [("1", True), ("2", True), ("8", False)])
def test_a_run_says_that_so_few_environments_show_no_noise_scale(environments, said, tmp_path, capfd):
    """Noise is measured between environments: one shows none, and of two blocks there is no interval."""
    words = [
        "classic/cartpole",
        "--environments",
        environments,
        "--rollout-length",
        "32",
        "--mini-batch",
        "None",
        "--threads",
        "1",
    ]
    assert main(["train", *words, "--observations", "256", "--run", str(tmp_path / "run")]) == 0
    assert ("so few environments show no noise scale: --environments 8 or more do" in capfd.readouterr().out) is said
    if environments == "1":
        assert main(["advise", "--run", str(tmp_path / "run"), "--out", str(tmp_path / "advice")]) == 2
        assert "no noise of the policy's loss yet. Use eight environments or more" in capfd.readouterr().err


def test_another_tasks_checkpoint(run):
    done = in_this_process(run.parent, "train", "classic/acrobot", "--resume", "first")
    assert_refused(done, "--resume", "rlscale train classic/cartpole")


def test_a_ray_address_that_does_not_answer(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    done = rlscale(*TRAIN, "--actors", "1", "--ray-address", address, cwd=tmp_path)
    assert_refused(done, "--ray-address", "ray start --head")
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "runs"])


def test_a_run_that_ended_before_its_first_iteration_names_no_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "toy/catch", "--seconds", "1e-9", "--run", "short"]) == 0
    said = capsys.readouterr().out
    assert "rlscale report" not in said
    assert "it ended before its first iteration: give more time to  rlscale train toy/catch --resume short" in said


def test_what_a_run_prints_when_piped(first):
    done, _ = first
    assert "record in first" in done.stdout
    assert re.search(r"finished after [0-9]+ observations and 3 optimizer steps", done.stdout)
    assert "see it with: rlscale report first" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


@pytest.mark.long
def test_ctrl_c_closes_the_record_and_prints_how_to_go_on(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "train", "classic/cartpole", "--run", "mine"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    rows = tmp_path / "mine" / "iterations.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (rows.exists() and rows.stat().st_size > 1000):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "go on with:  rlscale train classic/cartpole --resume mine" in out
    resumed = rlscale("train", "classic/cartpole", "--resume", "mine", "--seconds", "1", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "finished" in resumed.stdout


@pytest.mark.long
def test_ray_actors_from_a_folder_that_shadows_our_packages(tmp_path):
    """Users have folders called envs and agents; neither the command nor Ray's processes may pick them up."""
    for name in ("envs", "agents", "benchmarks"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package')")
    script = Path(sys.executable).parent / "rlscale"
    words = [script, "train", "classic/cartpole", *QUICK, "--actors", "2", "--run", "mine"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_users_own_environment(tmp_path):
    """The example of docs/tasks.md, as written there, on Ray actors."""
    text = (ROOT / "docs" / "tasks.md").read_text()
    (tmp_path / "corridor.py").write_text(re.search(r"```python\n(# corridor\.py.*?)```", text, re.DOTALL).group(1))
    done = rlscale("train", "corridor:make", *QUICK, "--actors", "1", "--run", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout


def test_tasks_and_help(tmp_path, capsys):
    assert "atari/pong " in in_this_process(tmp_path, "tasks").stdout
    assert in_this_process(tmp_path, "tasks", "classic").stdout.count("\n") == 3
    assert "GPL-2.0" in rlscale("--help", cwd=tmp_path).stdout
    with pytest.raises(SystemExit) as ended:
        main(["train", "classic/cartpole", "--help"])
    assert not ended.value.code
    assert "--policy-noise-period" in capsys.readouterr().out


def test_report_writes_a_page(run):
    done = in_this_process(run.parent, "report", "first", "--out", "page.html")
    assert done.returncode == 0, done.stderr
    assert (run.parent / "page.html").stat().st_size > 500_000


@pytest.mark.parametrize(("chosen", "threads"), [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2)])
def test_the_command_has_one_thread_of_numpys_blas_unless_it_is_told_otherwise(chosen, threads):
    """Which libraries are loaded is asked of threadpoolctl; a machine of one core has no second thread to give."""
    found = "{i['num_threads'] for i in threadpool_info() if i['internal_api'] == 'openblas'}"
    code = f"import rlscale.__main__, numpy, scipy.linalg; from threadpoolctl import threadpool_info; print({found})"
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")} | chosen
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert shown.stdout.strip() in (f"{{{min(threads, os.cpu_count() or 1)}}}", "set()")
