"""Signatures of a Block that are not compiled yet: MXNet runs them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from graphopt.backend.documents import document_of
from graphopt.backend.engines import CachedOpEngine
from graphopt.backend.passing import symbol_without_passed_inputs
from graphopt.frontend.gluon import Traced
from graphopt.nn.entries import CallKind
from graphopt.nn.ski_rental import SkiRental

Key = tuple[Any, ...]
#: What runs a graph (None: nothing may), its inputs (Parameters, or names of data), and where it is
#: from.
Plain = tuple[CachedOpEngine | None, list[Any], Traced]


class Renting:
    """Plain calls of one Block, and what they took.

    Attributes:
        rule: which signatures are compiled.
    """

    def __init__(self, parameters: Callable[[], dict[str, Any]]) -> None:
        """Nothing was compiled yet; ``parameters`` are the Block's, by name."""
        self._parameters = parameters
        self._plain: dict[Key, Plain] = {}
        self.rule = SkiRental()

    def only_kind(self, kind: CallKind) -> None:
        """Forget how others are run, which may be made anew in another way."""
        self._plain = {key: plain for key, plain in self._plain.items() if key[:2] == kind}

    def plain(self, key: Key, trace: Callable[[], Traced], *, is_whole: bool) -> Plain:
        """What runs calls with arguments of that layout, of any shape.

        Args:
            key: the signature of such a call.
            trace: makes the Symbol.
            is_whole: whether MXNet runs the Block as one graph, too. Else nothing runs calls that
                learn through loops: MXNet's graphs of these add to gradients that it has not
                written, where Python does not.
        """
        kind = key[:3]
        if kind not in self._plain:
            traced = trace()
            symbol = traced.symbol
            if key[0] == "training":
                symbol = symbol_without_passed_inputs(symbol)
            known = dict(self._parameters().items())  # what Gluon returns makes what it has not
            reads = [known.get(name, name) for name in symbol.list_inputs()]
            engine = None
            if is_whole or key[0] != "training" or not _has_loops(symbol):
                engine = CachedOpEngine(symbol, traced.names, is_static=False)
            self._plain[kind] = engine, reads, traced
        return self._plain[kind]

    def run(
        self,
        key: Key,
        given: Sequence[Any],
        plain: Plain,
        saved: float = 1.0,
        kind: Hashable = None,
    ) -> tuple[list[Any], Traced] | None:
        """A plain call: its outputs and what tells their layout; ``None`` where there is none.

        Args:
            key: its signature.
            given: its arrays.
            plain: what runs it.
            saved: the share of its time that compiling would save.
            kind: see :meth:`graphopt.nn.ski_rental.SkiRental.timed`.
        """
        engine, _, traced = plain
        arrays = self._arrays(key, given, plain)
        if engine is None or arrays is None:
            return None
        is_step = key[0] == "training"
        with self.rule.timed(key, is_step=is_step, saved=saved, kind=kind) as done:
            outputs = engine(arrays)
            done += outputs
        return outputs, traced

    def runner(
        self, key: Key, given: Sequence[Any], plain: Plain
    ) -> Callable[[Sequence[Any]], list[Any]] | None:
        """What runs such arrays as MXNet does; ``None`` where nothing does."""
        engine = plain[0]
        if engine is None or self._arrays(key, given, plain) is None:
            return None
        return lambda data: engine(self._arrays(key, data, plain) or [])

    def _arrays(self, key: Key, given: Sequence[Any], plain: Plain) -> list[Any] | None:
        """What a plain call reads; ``None`` where parameters are not there."""
        _, reads, traced = plain
        ctx, data = key[2], dict(zip(traced.names, given, strict=True))
        parameters = [each for each in reads if not isinstance(each, str)]
        if any(p._data is None or ctx not in p.list_ctx() for p in parameters):
            return None
        return [data[each] if isinstance(each, str) else each.data(ctx) for each in reads]


def _has_loops(symbol: Any) -> bool:
    return any("subgraphs" in node for node in document_of(symbol)["nodes"])
