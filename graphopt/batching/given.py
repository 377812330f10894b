"""Samples as a Block gets them: with rows to be batched where the user gave arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_not
from typing import Any

from graphopt.batching.lazy import Lazy, real
from graphopt.batching.nested import Copied, converted, items_of, put, remake_of
from graphopt.batching.recorder import Recorder
from graphopt.batching.sums import settled
from graphopt.compat import import_mxnet

_PLAIN = (int, str, float, bool, type(None))


class Given:
    """Samples with rows for arrays, also inside tuples, lists and dicts.

    What is one object stays one, within a sample and between samples. Containers without arrays are
    the user's own; of the others there are copies, and what is written into these is written back,
    as arrays that are there. So it is with what was empty.

    Attributes:
        samples: for the Block.
    """

    def __init__(self, recorder: Recorder, samples: Sequence[tuple[Any, ...]]) -> None:
        """Have a recorder know all arrays of the samples."""
        self._recorder, self._array = recorder, import_mxnet().nd.NDArray
        self._known: dict[int, Any] = {}
        self._copies: list[Copied] = []
        try:
            self.samples: Sequence[Any] = [self._with_rows(sample) for sample in samples]
        except RecursionError:  # a long linked list; what arrays it holds are met one by one
            self.samples, self._copies = samples, []
        self._known.clear()

    def written(self) -> list[Copied]:
        """Copies that the Block has written into."""
        return [copied for copied in self._copies if copied.is_written()]

    def settle(self) -> list[Any]:
        """What the Block has written into copies, with sums recorded that were not yet."""
        known = {id(copied.copy): copied.copy for copied in self._copies}
        written = self.written()
        for copied in written:
            put(copied.copy, self._items_of(copied, _recorded, known))
        return [copied.copy for copied in written]

    def write_back(self) -> None:
        """Have the user's own lists and dicts hold what was written into their copies."""
        written = self.written()
        known = {id(copied.copy): copied.own for copied in self._copies} if written else {}
        found = [self._items_of(copied, _there, known) for copied in written]
        for copied, items in zip(written, found, strict=True):
            copied.write_back(items)

    @staticmethod
    def _items_of(
        copied: Copied, convert: Callable[[Any], Any], known: dict[int, Any]
    ) -> list[Any]:
        given = [*items_of(copied.copy)]
        try:
            return [converted(item, convert, known) for item in given]
        except RecursionError:  # a long linked list of the Block's; it is met item by item
            return given

    def _with_rows(self, nested: Any) -> Any:
        kind = type(nested)
        if kind is self._array and nested.shape and nested.shape[0]:
            leaf = self._recorder.rows_of(nested)
            leaf.array = nested
            return leaf
        remake = remake_of(kind)
        if remake is None:
            return nested
        if id(nested) in self._known:
            return self._known[id(nested)]
        if isinstance(nested, tuple):
            items = self._items(nested)
            made = remake(nested, items) if any(map(is_not, items, nested)) else nested
        else:
            made = self._mutable(nested)
        self._known[id(nested)] = made
        return made

    def _mutable(self, nested: Any) -> Any:
        made = type(nested)()
        self._known[id(nested)] = made  # what it holds may lead back to it
        items, given = self._items(nested), items_of(nested)
        if given and not any(map(is_not, items, given)):
            return nested
        if not given:
            made = nested
        elif isinstance(made, dict):
            made.update(zip(nested, items, strict=True))
        else:
            made.extend(items)
        keys = [*nested] if isinstance(nested, dict) else []
        self._copies.append(Copied(nested, made, items, keys))
        return made

    def _items(self, nested: Any) -> list[Any]:
        return [i if type(i) in _PLAIN else self._with_rows(i) for i in items_of(nested)]


def _recorded(item: Any) -> Any:
    return settled(item) if isinstance(item, Lazy) else item


def _there(item: Any) -> Any:
    return real(item) if isinstance(item, Lazy) else item
