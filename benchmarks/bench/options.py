"""The options of `rlscale bench`."""

from dataclasses import dataclass

__all__ = ["BenchOptions"]


@dataclass(frozen=True)
class BenchOptions:
    """Measure a machine or a Ray cluster with a fixed suite, or compare two results."""

    ray_address: str | None = None
    """An existing Ray cluster, host:port or 'auto'; without it a local one is started."""
    cpus: int | None = None
    """CPUs that actors may use; None: all of this machine, or of the cluster those that nobody has reserved."""
    rounds: int = 5
    """Rounds; each measures everything once."""
    seconds: float = 3.0
    """Seconds for which each fleet is measured in a round, at least."""
    out: str | None = None
    """The result file; None: bench/<nodes>x<CPUs>.json. One of the same commit, versions and machines is continued."""
    compare: tuple[str, str] | None = None
    """Two result files: print what changed from the first to the second, and measure nothing."""
