"""What differs between the CPU and an accelerator: copies in both directions, free memory, name, current device, process group.

Everything else follows the device of its tensors, and asks no more than whether that is the CPU. Nothing here names a maker.
"""

from collections.abc import Sequence
from typing import Any

import torch

__all__ = [
    "computes_float64",
    "current_device",
    "device_computes_bfloat16",
    "device_name",
    "fetch",
    "free_bytes",
    "group_backend",
    "last_device",
    "on_cpu",
    "upload",
    "use_device",
]


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A CPU tensor on the device; on the CPU the tensor itself.

    From page-locked memory a copy runs beside what the accelerator computes. From other memory, or without `non_blocking`, the
    host would wait at every copy until all work before it is done.
    """
    return tensor if device.type == "cpu" else tensor.contiguous().pin_memory().to(device, non_blocking=True)


def fetch(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Several tensors of one device on the CPU. From an accelerator they come in one copy, so that the host waits once.

    Those come in the type that holds the numbers of all; of the CPU's own it is the tensors themselves.
    """
    if not tensors or tensors[0].device.type == "cpu":
        return list(tensors)
    together = torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()
    pieces = torch.split(together, [tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def on_cpu(state: Any) -> Any:
    """The same state with all its tensors on the CPU, where a checkpoint is read on any machine."""
    if isinstance(state, dict):
        return {name: on_cpu(value) for name, value in state.items()}
    if isinstance(state, list):
        return [on_cpu(value) for value in state]
    return state.cpu() if isinstance(state, torch.Tensor) else state


def free_bytes(device: torch.device) -> int:
    """Memory of an accelerator that this process could take now.

    What torch keeps of tensors that are gone, of the last batch say, is free for the next ones; the device counts it as taken.
    """
    kept = torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
    try:
        free: int = torch.get_device_module(device).mem_get_info(device)[0]
    except RuntimeError:  # some integrated ones do not say
        free = 0
    return free + kept


def device_name(device: torch.device) -> str | None:
    """What the accelerator's maker calls it, or its type where torch does not say; None for the CPU."""
    if device.type == "cpu":
        return None
    ask = getattr(torch.get_device_module(device), "get_device_name", None)
    return device.type if ask is None else str(ask(device))


def current_device(kind: str) -> torch.device:
    """This process's accelerator with its number: without one a tensor would follow whichever is the current one at the time."""
    return torch.device(kind, torch.accelerator.current_device_index())


def last_device(kind: str) -> torch.device:
    """The accelerator with the highest number."""
    return torch.device(kind, torch.accelerator.device_count() - 1)


def computes_float64(device: torch.device) -> bool:
    """Whether a device has the type in which the noise statistics are added up, as not every accelerator has: it is tried."""
    try:
        return float(torch.ones(2, dtype=torch.float64, device=device).sum()) == 2.0
    except torch.OutOfMemoryError:  # others fill it: that is said where it is used
        return True
    except (RuntimeError, TypeError):
        return False


def use_device(device: torch.device) -> None:
    """Let what asks for no device by its number, page-locked memory and process groups among it, use this one.

    float32 means float32 there: convolutions of recent NVIDIA GPUs round their factors to TF32 unless they are told not to.
    """
    if device.index is not None and device.type != "cpu":
        torch.accelerator.set_device_index(device.index)
    torch.backends.cudnn.allow_tf32 = False


def device_computes_bfloat16(device: torch.device) -> bool:
    """Whether an accelerator itself multiplies bfloat16, as far as torch can tell."""
    ask = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return ask is not None and bool(ask(including_emulation=False))


def group_backend(device: torch.device) -> str:
    """What processes that learn on such devices add up their sums with: torch's own choice, NCCL for CUDA.

    Where torch knows of none it is gloo, and sums go through the memory of the CPU.
    """
    try:
        return str(torch.distributed.get_default_backend_for_device(device))
    except ValueError:
        return "gloo"
