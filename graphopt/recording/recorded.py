"""A Block whose Python runs at every call, and whose operators run compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.nn.config import Config
from graphopt.pipeline.remarks import counted
from graphopt.recording.patches import recorded
from graphopt.recording.programs import Programs
from graphopt.recording.tape import Tape


class RecordedBlock:
    """Runs a Block's ``forward`` on a tape.

    Attributes:
        programs: what was compiled.
    """

    def __init__(self, block: Any, config: Config) -> None:
        """Nothing is recorded before the first call."""
        self.programs = Programs(block, config)

    def __call__(self, forward: Callable[..., Any], args: Sequence[Any]) -> Any:
        """What ``forward`` returns; all that was computed and is held by somebody is there."""
        if self.programs.is_in_vain:
            return forward(*args)
        return recorded(Tape(self.programs, _context(args)), lambda: forward(*args))

    def explain(self, reason: str | None) -> list[str]:
        """Lines about what was recorded, and why it was."""
        programs = self.programs
        lines = [
            f"recorded, since {reason}: its Python runs at every call;"
            f" {counted(programs.runs, 'programs')} {_were(programs.runs)} run,"
            f" {programs.compiled} of them compiled first"
        ]
        plain = programs.rule.plain_calls
        if plain:
            lines.append(
                f"  {counted(plain, 'runs')}, of {counted(programs.rule.not_compiled, 'programs')},"
                f" {_were(plain)} made call by call, as each came too rarely to be worth compiling"
            )
        if programs.is_in_vain:
            lines.append("  not recorded any more: most programs come too rarely")
        return lines + [f"  {note}" for note in programs.notes]


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _context(args: Sequence[Any]) -> Any:
    """The device of the first array among the arguments, or the current one."""
    mx = import_mxnet()
    stack = list(reversed(args))
    while stack:
        item = stack.pop()
        if isinstance(item, mx.nd.NDArray):
            return item.ctx
        if isinstance(item, (list, tuple)):
            stack.extend(reversed(item))
    return mx.current_context()
