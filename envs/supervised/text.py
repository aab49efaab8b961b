"""Text, byte by byte: a file, the text files of a folder, or the sources of Python's standard library."""

import sysconfig
from pathlib import Path

import numpy as np

from rlscale.errors import UsageError

from .pictures import MOST_HELD_OUT, SPLIT_SEED
from .task import Examples

__all__ = ["LENGTH", "load_text"]

LENGTH = 32  # bytes of an example
FEWEST = 100  # examples, below which there is nothing to hold out
_SUFFIXES = {".txt", ".py", ".md", ".rst", ".tex", ".c", ".h"}


def load_text(data: str | None) -> tuple[Examples, Examples]:
    """Stretches of 32 bytes, each byte with the one that follows it. Of the text's last tenth, 2,000 of them are held out.

    Files of a folder come in an order drawn by a fixed seed, so that what is held out is like the rest.

    Raises:
        UsageError: there is no text, or too little.
    """
    path = Path(sysconfig.get_path("stdlib") if data is None else data)
    try:
        found = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
        order = np.random.default_rng(SPLIT_SEED).permutation(len(found))
        text = b"".join(found[i].read_bytes() for i in order)
    except OSError as error:
        raise UsageError("--data", f"cannot read {data}: {error.strerror}", "Name a text file, or a folder of them") from None
    count = (len(text) - 1) // LENGTH
    if count < FEWEST:
        problem = f"{path} holds {len(text):,} bytes of text, and {FEWEST * LENGTH:,} are the least"
        raise UsageError("--data", problem, "Name a text file, or a folder of them")
    codes = np.frombuffer(text, dtype=np.uint8)
    inputs, targets = (codes[start : start + count * LENGTH].reshape(count, LENGTH) for start in (0, 1))
    first = count - max(count // 10, 1)
    held = first + np.sort(np.random.default_rng(SPLIT_SEED).permutation(count - first)[:MOST_HELD_OUT])
    # Copied: a view of the file's bytes cannot be written to, which torch warns of.
    return Examples(inputs[:first].copy(), targets[:first].copy()), Examples(inputs[held].copy(), targets[held].copy())
