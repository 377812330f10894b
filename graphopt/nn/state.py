"""What graphopt keeps about one optimized Block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphopt.nn.compiled import CompiledBlock
from graphopt.nn.config import Config
from graphopt.nn.settings import Settings, settings_if_known
from graphopt.nn.structure import Structure
from graphopt.nn.ways import Ways
from graphopt.pipeline.base import Mode

if TYPE_CHECKING:
    from graphopt.recording.recorded import RecordedBlock


class State:
    """What graphopt keeps about one view."""

    def __init__(self, view: Any, config: Config, hasty: int = 0) -> None:
        """Nothing is compiled before the first call.

        Args:
            view: whose state it is.
            config: how it is optimized.
            hasty: how often in a row attributes were others again soon.
        """
        self.config = config
        self._view = view
        self.settings: Settings | None = None
        self.note_settings()
        self.calls, self.hasty = 0, hasty  # calls so far
        self.compiled = CompiledBlock(view, config, self.note_settings)
        self.fallback: Any = None
        self.structure = Structure(view)
        self.reason: str | None = None  # why it is taken child by child; None: not asked yet
        self.learns_in_python = ""  # why, if it is compiled else
        self.notes: list[str] = []
        self.recorded: RecordedBlock | None = None
        self.ways: dict[Mode, Ways] = {}  # where all of them may be gone

    def note_settings(self) -> None:
        """Attributes are what they are now."""
        self.settings = settings_if_known(self._view)

    def compile_whole(self) -> None:
        """Take the Block for one that is compiled whole, whatever was said of it before."""
        self.reason, self.fallback, self.recorded = "", None, None
        self.note_settings()
        self.notes, self.ways = [], {}
