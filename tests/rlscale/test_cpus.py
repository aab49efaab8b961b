"""CPUs are counted as the limits of a container or a batch system's job leave them."""

import os

import pytest

import rlscale.control_groups
from rlscale.control_groups import control_groups
from rlscale.cpus import usable_cpus


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A function that writes what the process is in and what is in the groups' files."""
    monkeypatch.setattr(rlscale.control_groups, "ROOT", tmp_path / "root")
    monkeypatch.setattr(rlscale.control_groups, "OWN", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    def write(files, own=None):
        if own is not None:
            (tmp_path / "own").write_text(own)
        for name, text in files.items():
            (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "root" / name).write_text(text)

    return write


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({"cpu.max": "max 100000\n"}, 16),
        ({"cpu.max": "400000 100000\n"}, 4),
        ({"cpu.max": "150000 100000\n"}, 2),  # one and a half
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 16),
        ({"cpu.max": "nonsense\n"}, 16),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 16),
    ],
)
def test_a_limit_of_time_counts_as_so_many_cpus(groups, files, expected):
    groups(files)
    assert usable_cpus() == expected


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/slurm/job_7/task_0\n", {"slurm/job_7/cpu.max": "300000 100000", "slurm/job_7/task_0/cpu.max": "max 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "500000 100000"}, 2),
        ("0::/a\n", {"elsewhere/cpu.max": "100000 100000"}, 16),
        (
            "5:memory:/m\n4:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "500000", "cpu/job/cpu.cfs_period_us": "100000", "cpu/m/cpu.cfs_quota_us": "100000"},
            5,
        ),
        ("0::/seen/from/outside\n", {"cpu.max": "700000 100000"}, 7),  # a container whose own group is mounted as the root
    ],
)
def test_the_smallest_limit_from_ones_own_group_up_counts(groups, own, files, expected):
    groups(files, own)
    assert usable_cpus() == expected


def test_a_group_s_folders_are_its_own_and_those_above(groups, tmp_path):
    groups({"a/b/memory.max": "1", "memory/c/memory.limit_in_bytes": "1"}, "3:memory:/c\n0::/a/b\n")
    root = tmp_path / "root"
    assert list(control_groups("memory")) == [root / "a/b", root / "a", root, root / "memory/c", root / "memory"]
