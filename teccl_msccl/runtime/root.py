"""The root of a rooted collective, which the format has no word for: it shows in who sends and who receives."""

from __future__ import annotations

from ..collective.demand import ROOTED
from ..errors import InputError
from ..program.program import RECEIVING, SENDING, Program


def root_of(program: Program, given: int | None, where: str) -> int | None:
    """The root to check against: `given` (--root), else the one that the program serves; None if it has none.

    A broadcast or scatter starts at the only rank that never receives; a reduce or gather ends at the only rank
    that never sends. Raises `InputError` when that names no rank, or several.
    """
    if given is not None and not 0 <= given < program.nranks:
        raise InputError(f"--root {given} is not a rank of {where}; use 0..{program.nranks - 1}")
    if program.collective not in ROOTED:
        return None
    if given is not None:
        return given
    passive = RECEIVING if program.collective in ("broadcast", "scatter") else SENDING
    busy = {rank for rank, _, _, step in program.steps() if step.type in passive}
    candidates = [rank for rank in range(program.nranks) if rank not in busy]
    if len(candidates) != 1:
        verb = "receives" if passive is RECEIVING else "sends"
        ranks = f"ranks {', '.join(map(str, candidates[:8]))} each" if candidates else "no rank"
        raise InputError(
            f"{where}: the root of this {program.collective} is not clear ({ranks} never {verb}); name it with --root"
        )
    return candidates[0]
