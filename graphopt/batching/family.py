"""A child Block for inputs of one rank and dtype, call by call on shapes that are new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from graphopt.backend.symbol import to_symbol
from graphopt.batching.graph_runs import differentiable, run_symbol
from graphopt.batching.kinds import kind
from graphopt.batching.layout import Layout
from graphopt.batching.recorder import RECORDING, TRAINING
from graphopt.batching.tracing import PROBES, checked, parameters_of, trace_rows
from graphopt.batching.unit import Unit
from graphopt.compat import import_mxnet
from graphopt.frontend.blocks import describe
from graphopt.frontend.gluon import typed_of

if TYPE_CHECKING:
    from graphopt.batching.lazy import Lazy
    from graphopt.batching.library import Library


@dataclass(frozen=True)
class Rented(Unit):
    """A child Block for inputs of one kind, call by call, and a number for each of these."""

    calls: Iterator[int] = field(default_factory=lambda: count(1))


class Family:
    """A child Block for inputs of one rank and dtype, whatever their shapes.

    Proofs, kernels and a CachedOp for a shape take as long as dozens of calls. By the ski-rental
    rule (see graphopt/nn/ski_rental.py) all but the first ones are called that often before, one by
    one, in a CachedOp of the family's. That needs no proof, and no more than shapes of outputs.
    """

    def __init__(self) -> None:
        """Of no shape so far."""
        self.units = 0
        self._symbol: Any = None

    def rent(
        self, library: Library, block: Any, values: Sequence[Lazy], layout: Layout, state: int
    ) -> Rented | None:
        """For inputs of these types, or None where outputs' rows would not be like the inputs'.

        Raises:
            NotRowwiseError: the Block cannot be traced, or mixes rows.
        """
        if self._symbol is None:
            self._prepare(block, values, layout, state)
        tails = self._tails([x.kind.tail for x in values])
        if tails is None:
            return None
        library.note(f"{describe(block)} runs call by call on shapes that are new")
        ctx = values[0].kind.ctx
        signature = library.signature(
            ("rented", id(block), layout, tuple(x.kind for x in values), len(library.units)),
            describe(block),
            len(values),
            [kind(tail, dtype, ctx) for tail, dtype in zip(tails, self._dtypes, strict=True)],
            state,
            self._run,
            form="single",
        )
        return Rented(signature, self._results)

    def _prepare(self, block: Any, values: Sequence[Lazy], layout: Layout, state: int) -> None:
        self._names = [f"data{at}" for at in range(len(values))]
        symbol, self._results = trace_rows(block, layout, self._names)
        params = parameters_of(block, symbol, self._names, values)
        data = {n: (x.kind.tail, x.kind.dtype) for n, x in zip(self._names, values, strict=True)}
        graph, outs = checked(block, symbol, data, params, training=bool(state & TRAINING))
        self._dtypes = [dtype for _, dtype in outs]
        self._shapes = {name: tuple(typed_of(p).shape) for name, p in params.items()}
        self._symbol = to_symbol(differentiable(graph) if state & RECORDING else graph)
        self._run = run_symbol(self._symbol, self._names, params, values[0].kind.ctx)

    def _tails(self, tails: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]] | None:
        """Of the outputs' rows."""
        found = []
        for rows in PROBES:
            given = {n: (rows, *tail) for n, tail in zip(self._names, tails, strict=True)}
            try:
                _, shapes, _ = self._symbol.infer_shape(**given, **self._shapes)
            except import_mxnet().MXNetError:
                return None
            if not shapes or any(not s or s[0] != rows or 0 in s for s in shapes):
                return None
            found.append([tuple(shape[1:]) for shape in shapes])
        return found[0] if found[0] == found[1] else None
