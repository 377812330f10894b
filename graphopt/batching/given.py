"""Samples as a Block gets them: with rows to be batched where the user gave arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_not
from typing import Any

from graphopt.batching.lazy import Lazy, real
from graphopt.batching.nested import Copied, items_of, remake_of
from graphopt.batching.recorder import Recorder
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

    def write_back(self) -> None:
        """Have the user's own lists and dicts hold what was written into their copies."""
        written = self.written()
        own = {id(copied.copy): copied.own for copied in self._copies} if written else {}

        def own_of(item: Any) -> Any:
            if type(item) is Lazy:
                return real(item)
            if isinstance(item, tuple) and (remake := remake_of(type(item))) is not None:
                return remake(item, map(own_of, item))
            return own.get(id(item), item)

        for copied in written:
            copied.write_back(own_of)

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
        self._copies.append(Copied(nested, made, items))
        return made

    def _items(self, nested: Any) -> list[Any]:
        return [i if type(i) in _PLAIN else self._with_rows(i) for i in items_of(nested)]
