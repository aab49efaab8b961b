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
from ..rollout import Fragment, tensor_view

__all__ = ["CpuFrames", "DeviceFrames", "Positions"]

PIECE_BYTES = 10_000  # that are copied in the time that it takes to begin on another piece


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
    """Frames that stay in their fragments, for a learner on the CPU; they are shared with these, never copied.

    Args:
        fragments: of the batch.
        owner: (rounds, environments), which fragment holds an environment's steps of a round.
        column: (environments,), which of that fragment's environments it is.
        stack: frames per observation; 1 for observations that are not images.
    """

    def __init__(self, fragments: Sequence[Fragment], owner: np.ndarray, column: np.ndarray, stack: int) -> None:
        self._frames = [tensor_view(f.frames).flatten(0, 1).flatten(1) for f in fragments]
        self._steps, self._owner, self._column, self._stack = fragments[0].steps, owner, column, stack
        self._width = np.array([f.environments for f in fragments])
        self._frame_shape = fragments[0].frames.shape[2:]
        self._age = torch.from_numpy(frames_shown(fragments, owner, column, stack).reshape(-1)) if stack > 1 else None

    def observations(self, positions: Positions) -> torch.Tensor:
        """Observations as the environments gave them, (n, stack, height, width) or (n, features); the order is kept."""
        step, environment = np.divmod(positions.host, len(self._column))
        turn, step = np.divmod(step, self._steps)
        owner = self._owner[turn, environment]
        order = self._order(owner)
        if order is not None:
            step, environment, owner = step[order], environment[order], owner[order]
        oldest = step * self._width[owner] + self._column[environment]
        rows = torch.from_numpy(oldest[:, None] + np.arange(self._stack) * self._width[owner][:, None]).reshape(-1)
        first = self._frames[0]
        picked = torch.empty((len(rows), first.shape[1]), dtype=first.dtype)
        ends = self._stack * np.append(np.flatnonzero(np.diff(owner)) + 1, len(owner))
        begin = 0
        for end in ends.tolist():
            part = self._frames[owner[begin // self._stack]]
            torch.index_select(part, 0, rows[begin:end], out=picked[begin:end])
            begin = end
        found = picked.view(len(owner), self._stack, -1)
        if order is not None:
            found = found[torch.from_numpy(np.argsort(order))]
        if self._age is None:
            return found.view(-1, *self._frame_shape)
        age = self._age[positions.index]
        for missing in range(1, self._stack):
            stale = (age < missing).nonzero().squeeze(1)  # rarely more than a handful of rows
            if len(stale):
                found[stale, self._stack - 1 - missing] = 0
        return found.view(-1, self._stack, *self._frame_shape)

    def _order(self, owner: np.ndarray) -> np.ndarray | None:
        """In which order observations are picked, fragment by fragment; None: as they are asked for.

        What is picked in another order is copied once more, into the right one. Otherwise there are more pieces to pick.
        """
        pieces, fewest = np.count_nonzero(np.diff(owner)) + 1, len(np.unique(owner))
        copied = len(owner) * self._stack * self._frames[0].shape[1] * self._frames[0].element_size()
        return None if (pieces - fewest) * PIECE_BYTES <= copied else np.argsort(owner, kind="stable")


def frames_shown(fragments: Sequence[Fragment], owner: np.ndarray, column: np.ndarray, stack: int) -> np.ndarray:
    """(rounds, steps, environments) int8: how many earlier frames each observation shows; arguments as of `CpuFrames`."""
    ages = np.empty((len(owner), fragments[0].steps, len(column)), dtype=np.int8)
    for turn in range(len(owner)):
        reset = np.empty(ages.shape[1:], dtype=bool)
        for number in np.unique(owner[turn]):
            there = np.flatnonzero(owner[turn] == number)
            reset[:, there] = fragments[number].reset[:, column[there]]
        ages[turn] = steps_since_reset(reset, stack)
    return ages


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
            self._held = self._hold(torch.empty(shape, dtype=kind, device=device))
        ages = frames_shown(fragments, owner, column, stack) if stack > 1 else None
        self._age = None if ages is None else upload(torch.from_numpy(ages.reshape(-1)), device)

    def _hold(self, held: torch.Tensor) -> torch.Tensor:
        """Copy all frames to where they belong: (rounds, frames, environments, …) on the device."""
        for turn, owner in enumerate(self._owner):
            for number in np.unique(owner):
                there = np.flatnonzero(owner == number)
                here, inside = slice(there[0], there[-1] + 1), slice(self._column[there[0]], self._column[there[-1]] + 1)
                mine = tensor_view(self._fragments[number].frames)[:, inside]
                held[turn, :, here].copy_(mine.contiguous().pin_memory(), non_blocking=True)
        return held

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


def steps_since_reset(reset: np.ndarray, stack: int) -> np.ndarray:
    """(T, N): how many earlier frames each observation shows, at most stack - 1: steps since the last reset step.

    Carry-in frames need no mask: the environment has already put zeros where it showed none.
    """
    ages = np.empty(reset.shape, dtype=np.int8)
    age = np.full(reset.shape[1], stack - 1, dtype=np.int8)
    for t in range(len(reset)):
        ages[t] = age
        age = np.where(reset[t], 0, np.minimum(age + 1, stack - 1)).astype(np.int8)
    return ages
