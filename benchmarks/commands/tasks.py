"""`rlscale tasks`: lists the tasks by name."""

from rlscale.envs import list_tasks
from rlscale.errors import UsageError

__all__ = ["run"]


def run(arguments: list[str]) -> int:
    """List all tasks, or those whose name holds a word.

    Raises:
        UsageError: no name holds it, or there are several words.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print("usage: rlscale tasks [WORD]\n\nList the tasks, or those whose name holds WORD.")
        return 0
    if len(arguments) > 1:
        raise UsageError("WORD", f"one word is looked for, not {len(arguments)}", f"Give one: rlscale tasks {arguments[0]}")
    word = arguments[0] if arguments else ""
    listed = [listing for listing in list_tasks() if word in listing.id]
    if not listed:
        raise UsageError("WORD", f"no task's name holds {word!r}", "'rlscale tasks' lists all")
    for listing in listed:
        print(f"{listing.id:32s} {listing.note}")
    return 0
