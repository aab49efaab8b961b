"""Shared by the tests of `rlscale workers`."""

import pytest

from rlscale.sizing import service


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    """A prediction draws few fragment times: none here takes longer than all others and comes rarely, as a straggler does."""
    monkeypatch.setattr(service, "_DRAWS", 1 << 12)
