"""What needs `ray[default]`: a run as a Ray job, and its figures in Ray's metrics."""

import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from making import free_port
from nodes import ENVIRONMENT, OURS, bare_python, listens, nodes, wait_until

from rlscale.records.run import read_run
from rlscale.returns import RecentReturn

pytest.importorskip("aiohttp_cors", reason="needs ray[default]")
pytest.importorskip("opentelemetry.exporter.prometheus", reason="needs ray[default]")

ROOT = Path(__file__).parents[3]


NOT_YET = "No available agent to submit job"


def figures(port):
    """Every exported figure of ours: name, labels, value."""
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    except OSError:
        return []
    lines = re.findall(r"^ray_rlscale_(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE)
    return [(name, dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for name, labels, value in lines]


@pytest.mark.long
def test_a_run_as_a_ray_job_and_its_metrics(tmp_path):
    """No node has rlscale: the job brings our packages and the user's own module, and the actors get them from the run."""
    python = bare_python(tmp_path / "bare")
    job = tmp_path / "job"
    for package in OURS:
        shutil.copytree(ROOT / package, job / package, ignore=shutil.ignore_patterns("__pycache__"))
    example = re.search(r"```python\n(# corridor.*?)```", (ROOT / "docs" / "tasks.md").read_text(), re.DOTALL)
    (job / "corridor.py").write_text(example.group(1))
    dashboard, agent, metrics = free_port(), free_port(), free_port()
    record = tmp_path / "records" / "mine"
    with nodes(free_port(), tmp_path) as cluster:
        # The agent's port as well: where another Ray of this machine holds the default one, no agent ever takes a job.
        ports = [f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"]
        cluster.start(2, "--include-dashboard=true", *ports, python=python)
        wait_until(lambda: listens(dashboard) and listens(metrics))
        train = f"{python} -m rlscale train corridor:make --ray-address auto --actors 2 --threads 1 --run {record}"
        train += " --environments 8 --rollout-length 16 --mini-batch 64 --observations None --seconds 15"
        submit = [str(python), "-m", "ray.scripts.scripts", "job", "submit", "--address", f"http://127.0.0.1:{dashboard}"]
        said, seen, counted = NOT_YET, {}, []
        deadline = time.monotonic() + 120
        while NOT_YET in said and time.monotonic() < deadline:  # the dashboard listens before the node's agent does
            with subprocess.Popen(
                [*submit, "--working-dir", str(job), "--", *train.split()],
                cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            ) as process:  # fmt: skip
                while process.poll() is None:
                    for name, labels, value in figures(metrics):
                        assert (labels["run"], labels["task"]) == ("mine", "corridor:make")
                        seen.setdefault((name, labels.get("head")), set()).add(value)
                        counted += [value] if name == "observations_total" else []
                    time.sleep(0.5)
                said = process.stdout.read()
        assert process.returncode == 0, said
    assert "finished after" in said
    rows = read_run(record).rows
    assert counted == sorted(counted)
    assert {*counted} <= {row["observations"] for row in rows} | {0.0}
    assert max(counted) > 0
    recent, means = RecentReturn(), []
    for row in rows:
        recent.add(row["episodes"], row["return_mean"])
        means.append(recent.mean or 0.0)
    assert all(min(abs(value - mean) for mean in means) < 1e-6 for value in seen["return_mean", None])
    for field in ("policy_lag", "policy_loss", "entropy", "observations_per_second", "optimizer_steps"):
        assert seen[field, None] <= {row[field] for row in rows}, field
    heads = {entry["head"] for row in rows for entry in row["noise"]}
    assert {head for name, head in seen if name == "trace_cov"} == heads
