"""`Compute`: the device, precision and threads that a run computes with, resolved once from its settings."""

from dataclasses import dataclass
from typing import Literal

import torch

from rlscale.cpus import usable_cpus
from rlscale.errors import UsageError

from .config import TrainConfig
from .devices import computes_float64, current_device, device_computes_bfloat16, last_device, use_device
from .machine import cpu_field, keep_freed_memory

__all__ = ["Compute", "computes_bfloat16", "learner_threads", "resolve_compute", "resolve_device", "resolve_precision"]

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Compute:
    """What a run computes with.

    Attributes:
        device: where the learners work.
        precision: of the network's forward and backward passes in the learners.
        threads: CPU threads of each learner, and of sampling in this process.
        acting: where policies act.
        acts_in_bfloat16: whether policies act in bfloat16: where the learners compute in it and the acting device can as well.
    """

    device: torch.device
    precision: Precision
    threads: int
    acting: torch.device
    acts_in_bfloat16: bool

    @property
    def bfloat16(self) -> bool:
        """Whether the learners compute in bfloat16."""
        return self.precision == "bfloat16"

    def prepare_process(self) -> None:
        """Give this process its number of threads and its device, and let it keep the memory that it frees."""
        torch.set_num_threads(self.threads)
        use_device(self.device)
        keep_freed_memory()


def resolve_compute(config: TrainConfig) -> Compute:
    """What a run with these settings computes with on this machine.

    Ray gives its actors the first of several accelerators before the second, and knows nothing of a learner in this process: that
    one takes the last, unless its number is given.

    Raises:
        UsageError: a device that is not here.
    """
    device = resolve_device(config.update.device)
    acting = resolve_device(config.rollout.actor_device, "--actor-device")
    if config.rollout.actors and acting.type == device.type != "cpu" and ":" not in config.update.device:
        device = last_device(device.type)
    precision = resolve_precision(config.update.precision, config.update.network, device)
    acts_in_bfloat16 = precision == "bfloat16" and (device.type == acting.type == "cpu" or computes_bfloat16(acting))
    threads = config.update.threads or learner_threads(config, usable_cpus())
    return Compute(device, precision, threads, acting, acts_in_bfloat16)


def resolve_device(device: str, flag: str = "--device") -> torch.device:
    """A device by its name; `auto` is the machine's accelerator when it has one. Accelerators have a number, 0 of a single one.

    Raises:
        UsageError: no such device here; names `flag`.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if device == "auto":
        usable = accelerator is not None and computes_float64(accelerator)
        return current_device(accelerator.type) if accelerator is not None and usable else torch.device("cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError:
        here = "cuda" if accelerator is None else accelerator.type
        raise UsageError(flag, f"{device!r} is no device", f"Use auto, cpu or {here}") from None
    if resolved.type == "cpu":
        return resolved
    if accelerator is None or resolved.type != accelerator.type or (resolved.index or 0) >= torch.accelerator.device_count():
        raise UsageError(flag, f"{device} is not on this machine", f"Use {flag} cpu")
    if not computes_float64(resolved):
        raise UsageError(flag, f"{device} does not compute in float64, as the noise statistics do", f"Use {flag} cpu")
    return resolved if resolved.index is not None else current_device(resolved.type)


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the hardware itself multiplies bfloat16; emulation would be slower than float32."""
    if device.type != "cpu":
        return device_computes_bfloat16(device)
    flags = cpu_field("flags")
    return " avx512_bf16" in flags or " amx_bf16" in flags


def resolve_precision(precision: str, network: str, device: torch.device) -> Precision:
    """`auto` takes bfloat16 for convolutional networks on hardware that computes in it."""
    if precision == "auto":
        return "bfloat16" if network != "mlp" and computes_bfloat16(device) else "float32"
    return "bfloat16" if precision == "bfloat16" else "float32"


def learner_threads(config: TrainConfig, cores: int) -> int:
    """Threads of each learner: its share of the cores, less those of actors that sample meanwhile on this machine.

    All threads of a learner wait for the slowest one, which would be one whose core an actor uses as well.
    """
    busy = config.actors * config.rollout.actor_cpus if config.overlaps and config.rollout.ray_address is None else 0
    return max((cores - busy) // config.update.learners, 1)
