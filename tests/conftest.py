"""Shared by all tests: threads that leave the cores to others, and a small Ray instance."""

import os

# Idle threads of OpenMP sleep, here and in every process that a test starts. By default they spin: on cores that several
# processes share, a test of 12 seconds took 140.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch

torch.set_num_threads(2)


@pytest.fixture(scope="module")
def ray_instance():
    """One local Ray instance with two CPUs for the tests of a module."""
    from rlscale.agents.cluster.connect import connect, disconnect

    connect(None, 2)
    yield
    disconnect()
