"""The records of runs and sweeps: what is written to disk, and how it is read back.

A run is a folder with a manifest and one row per iteration (`rlscale.records.run`), in which stands the noise that was measured
(`rlscale.records.noise`); a sweep is a folder with its plan and one `TrialResult` per trial that ended
(`rlscale.records.sweep`, `rlscale.records.trial`); what either is of, `kind_of` tells (`rlscale.records.kind`). Both survive a
crash at any moment (`rlscale.records.files`), and both carry a schema version. TensorBoard events are written beside a run
(`rlscale.records.events`). docs/glossary.md defines every recorded field; `schema-1.json` says the same to programs.

What is concluded from records is in `rlscale.analysis`, and how they are shown is in `rlscale.report`. Start with `read_run`
and `read_sweep`.
"""

from .files import folder_name
from .kind import Kind, kind_of
from .run import Run, RunRecord, is_run, read_run
from .sweep import Sweep, SweepRecord, is_sweep, read_sweep
from .trial import Trial, TrialResult

__all__ = [
    "Kind",
    "Run",
    "RunRecord",
    "Sweep",
    "SweepRecord",
    "Trial",
    "TrialResult",
    "folder_name",
    "is_run",
    "is_sweep",
    "kind_of",
    "read_run",
    "read_sweep",
]
