"""Shared by the tests: a small Ray instance."""

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
