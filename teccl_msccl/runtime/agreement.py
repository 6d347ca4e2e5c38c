"""Agreement: an action that some processes may fail at fails on all of them, with the same error."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InputError, Refused
from .world import Answer


def attempt(
    action: Callable[[], Answer], gather: Callable[[bytes], list[bytes]]
) -> tuple[Answer | None, InputError | Refused | None]:
    """What `action` answers here, and the error of the lowest rank where it failed (None if it failed nowhere).

    `gather` gives every process all processes' words, in the order of ranks; every process must call this.
    """
    answer: Answer | None = None
    said = b""
    try:
        answer = action()
    except (InputError, Refused) as error:
        said = (b"input:" if isinstance(error, InputError) else b"refused:") + str(error).encode()
    except MemoryError:
        said = b"input:out of memory; choose a smaller --size"
    spoken = gather(said)
    if not any(spoken):
        return answer, None
    rank = next(rank for rank, text in enumerate(spoken) if text)
    kind, _, text = spoken[rank].decode(errors="replace").partition(":")
    if len(set(spoken)) > 1:
        text = f"rank {rank}: {text}"
    return None, InputError(text) if kind == "input" else Refused(text)
