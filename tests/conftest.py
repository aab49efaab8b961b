"""Shared by all tests: one thread each, and one Ray instance for as many tests as can share it."""

import os
import time

# Idle threads of OpenMP sleep, here and in every process that a test starts. By default they spin: on cores that several
# processes share, a test of 12 seconds took 140.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its idle threads spin too

import pytest
import torch

import rlscale.agents.cluster.connect  # noqa: F401  sets what Ray reads when test modules import it


@pytest.hookimpl(optionalhook=True)  # the tests run without xdist too, one after another
def pytest_xdist_make_scheduler(config, log):
    from scheduling import ByFile

    return ByFile(config, log)


def pytest_collection_modifyitems(config, items):
    if config.pluginmanager.hasplugin("xdist"):
        from scheduling import longest_first

        longest_first(items)


@pytest.fixture(autouse=True)
def one_thread():
    """Every test begins with one thread, whatever the test before has set."""
    torch.set_num_threads(1)


class SharedRay:
    """The Ray instance of this process, kept from test to test as long as they need the same number of CPUs."""

    def __init__(self) -> None:
        self._cpus = 0

    def provide(self, cpus: int) -> None:
        from rlscale.agents.cluster.connect import connect

        if self._cpus != cpus or not self._clean():
            self.end()
            connect(None, cpus)
            self._cpus = cpus

    def end(self) -> None:
        from rlscale.agents.cluster.connect import disconnect

        disconnect()
        self._cpus = 0

    def _clean(self) -> bool:
        """Whether Ray runs and nobody holds a CPU of it any more; the last test's actors may need a moment to end."""
        import ray

        deadline = time.monotonic() + 5
        while ray.is_initialized() and time.monotonic() < deadline:
            if ray.available_resources().get("CPU", 0) == self._cpus:
                return True
            time.sleep(0.05)
        return False


@pytest.fixture(scope="session")
def shared_ray():
    shared = SharedRay()
    yield shared
    shared.end()


@pytest.fixture
def ray_instance(shared_ray):
    """A local Ray instance with two free CPUs, which this process has joined."""
    shared_ray.provide(2)


@pytest.fixture
def ray_of_four(shared_ray):
    """A local Ray instance with four free CPUs, which this process has joined."""
    shared_ray.provide(4)


@pytest.fixture
def own_ray(shared_ray):
    """For a test that starts or joins Ray itself: this process has joined none when it begins, and none when it has ended."""
    shared_ray.end()
    yield
    shared_ray.end()
