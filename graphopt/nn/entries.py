"""What is compiled for one net, by signature."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from graphopt.backend.findings import Findings
from graphopt.nn.entry import Entry
from graphopt.nn.signatures import Signature, types_of
from graphopt.pipeline.base import Mode

#: Signatures kept per net; the one unused for longest goes first.
MAX_SIGNATURES: Final = 64

#: Mode, and how arguments are nested: calls that make one graph of a net's Python.
CallKind = tuple[Mode, Hashable]


class Entries(OrderedDict[Signature, Entry]):
    """By signature, the latest used last."""

    def keep(self, key: Signature, entry: Entry) -> None:
        """Have one more, and let go of the oldest of too many."""
        self[key] = entry
        if len(self) > MAX_SIGNATURES:
            self.let_go(next(iter(self)))

    def let_go(self, key: Signature) -> None:
        """Drop one; executors that have it take memory anew."""
        self.pop(key).built.release()

    def akin(self, key: Signature) -> list[Findings]:
        """What was measured for signatures that differ in shapes only."""
        types = types_of(key)
        return [entry.built.findings for other, entry in self.items() if types_of(other) == types]

    def of_kind(self, kind: CallKind) -> Entry | None:
        """One that such a call's Python has made."""
        return next((entry for key, entry in self.items() if key[:2] == kind), None)

    def only_kind(self, kind: CallKind) -> None:
        """Drop those that other calls' Python has made."""
        for key in [key for key in self if key[:2] != kind]:
            self.let_go(key)
