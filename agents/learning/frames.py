"""Where the frames of an iteration batch are, and how its observations are stacked from them again.

On the CPU frames stay in their fragments (`CpuFrames`). An accelerator holds them all if they fit, else each chunk's frames
visit it (`DeviceFrames`). Either way a frame crosses as the bytes that the environment gave, and once, however many observations
show it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..devices import free_bytes, upload
from ..rollout import Fragment, FragmentTensors, steps_since_reset, tensor_view

__all__ = ["CpuFrames", "DeviceFrames", "Positions"]


@dataclass(frozen=True)
class Positions:
    """Flat positions in a batch, as two that hold the same numbers.

    Attributes:
        host: (n,) int64, which the host reads.
        index: (n,) int64, which the learner's device reads.
    """

    host: np.ndarray
    index: torch.Tensor

    @classmethod
    def of(cls, host: np.ndarray, device: torch.device) -> "Positions":
        """The same positions for that device."""
        return cls(host, upload(torch.from_numpy(host), device))

    def part(self, at: slice) -> "Positions":
        """Some of them."""
        return Positions(self.host[at], self.index[at])


class CpuFrames:
    """Frames that stay in their fragments, for a learner on the CPU.

    Args:
        fragments: of the batch.
        owner: (rounds, environments), which fragment holds an environment's steps of a round.
        column: (environments,), which of that fragment's environments it is.
        stack: frames per observation.
    """

    def __init__(self, fragments: Sequence[Fragment], owner: np.ndarray, column: np.ndarray, stack: int) -> None:
        self._parts = [FragmentTensors(fragment, stack) for fragment in fragments]
        self._steps, self._owner, self._column = fragments[0].steps, owner, column

    def observations(self, positions: Positions) -> torch.Tensor:
        """Observations as the environments gave them; the order is kept."""
        step, environment = np.divmod(positions.host, len(self._column))
        turn, step = np.divmod(step, self._steps)
        owner, column = self._owner[turn, environment], self._column[environment]
        owners = np.unique(owner)
        if len(owners) == 1:
            return self._parts[owners[0]].observations(*_tensors(step, column))
        order = np.argsort(owner, kind="stable")
        shares = [(self._parts[part], owner == part) for part in owners]
        joined = torch.cat([part.observations(*_tensors(step[mine], column[mine])) for part, mine in shares])
        if (order[1:] > order[:-1]).all():
            return joined
        return joined[torch.from_numpy(np.argsort(order))]


class DeviceFrames:
    """Frames for a learner on an accelerator, which holds them all or is visited by those of one chunk after another.

    Frames are numbered as if the batch were one array (round, frame of the fragment, environment): frame f of environment e of a
    round of T steps is number (round · (stack - 1 + T) + f) · environments + e. The observation at step t shows frames t …
    t + stack - 1.

    Args:
        fragments, owner, column, stack: as of `CpuFrames`.
        device: where the learner works.
    """

    def __init__(
        self, fragments: Sequence[Fragment], owner: np.ndarray, column: np.ndarray, stack: int, device: torch.device
    ) -> None:
        self._fragments, self._owner, self._column, self._device = fragments, owner, column, device
        self._stack, self._steps, self._environments = stack, fragments[0].steps, len(column)
        first = fragments[0].frames
        self._frame_shape, rounds = first.shape[2:], len(owner)
        shape = (rounds, len(first), self._environments, *self._frame_shape)
        self._held: torch.Tensor | None = None
        kind = tensor_view(first).dtype
        if int(np.prod(shape)) * first.itemsize < free_bytes(device) // 2:
            self._held = torch.empty(shape, dtype=kind, device=device)
        ages = np.empty((rounds, self._steps, self._environments), dtype=np.int8)
        for turn in range(rounds):
            for number in np.unique(owner[turn]):
                there = np.flatnonzero(owner[turn] == number)
                here, inside = slice(there[0], there[-1] + 1), slice(column[there[0]], column[there[-1]] + 1)
                fragment = fragments[number]
                ages[turn, :, here] = steps_since_reset(fragment.reset[:, inside], stack)
                if self._held is not None:
                    mine = tensor_view(fragment.frames)[:, inside]
                    self._held[turn, :, here].copy_(mine.contiguous().pin_memory(), non_blocking=True)
        self._age = upload(torch.from_numpy(ages.reshape(-1)), device) if stack > 1 else None

    def observations(self, positions: Positions) -> torch.Tensor:
        """As `CpuFrames.observations`, on the device."""
        if self._held is not None:
            frames, rows = self._held.flatten(0, 2), self._rows(positions.index)
        else:
            frames, rows = self._visit(positions.host)
        if self._age is None:
            return frames.index_select(0, rows)
        observation = frames.index_select(0, rows.reshape(-1)).view(-1, self._stack, *self._frame_shape)
        age = self._age[positions.index]
        for missing in range(1, self._stack):  # all are masked: to ask how many need it would wait for all that is under way
            stale = (age < missing).view(-1, *[1] * len(self._frame_shape))
            observation[:, self._stack - 1 - missing].masked_fill_(stale, 0)
        return observation

    def _rows(self, index: torch.Tensor) -> torch.Tensor:
        """Numbers of the frames of observations, (n, stack); (n,) where the stack is one."""
        if self._stack == 1:
            return index
        turn = index // (self._environments * self._steps)
        newest = torch.arange(self._stack, device=index.device)
        return (index + turn * (self._stack - 1) * self._environments)[:, None] + newest * self._environments

    def _visit(self, positions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """The frames of these observations on the device, each once, and which of them an observation shows."""
        numbers = self._rows(torch.from_numpy(positions)).numpy()
        wanted, rows = np.unique(numbers.reshape(-1), return_inverse=True)
        frame, environment = np.divmod(wanted, self._environments)
        turn, frame = np.divmod(frame, len(self._fragments[0].frames))
        owner, column = self._owner[turn, environment], self._column[environment]
        frames = np.empty((len(wanted), *self._frame_shape), dtype=self._fragments[0].frames.dtype)
        for number in np.unique(owner):
            mine = owner == number
            frames[mine] = self._fragments[number].frames[frame[mine], column[mine]]
        rows = rows.reshape(numbers.shape).astype(np.int64)
        return upload(torch.from_numpy(frames), self._device), upload(torch.from_numpy(rows), self._device)


def _tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
