"""A child Block as one operator: its graph, the proof that it keeps rows apart, its CachedOp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphopt.batching.graph_runs import run_graph
from graphopt.batching.kinds import kind
from graphopt.batching.layout import Layout
from graphopt.batching.native.programs import Block
from graphopt.batching.recorder import TRAINING
from graphopt.batching.rules import NotRowwiseError
from graphopt.batching.signature import Signature
from graphopt.batching.tracing import checked, parameters_of, trace_rows
from graphopt.compat import import_mxnet
from graphopt.frontend.blocks import descendants, describe

if TYPE_CHECKING:
    from graphopt.batching.lazy import Lazy
    from graphopt.batching.library import Library


@dataclass(frozen=True)
class Unit:
    """A child Block ready to be recorded."""

    signature: Signature
    results: Layout
    flat: Any = None

    def __post_init__(self) -> None:
        """Several results that are not nested need no more than a conversion."""
        results = self.results
        is_flat = isinstance(results, tuple) and len(results[1]) > 1 and not any(results[1])
        object.__setattr__(self, "flat", results[0] if is_flat and None not in results[1] else None)


def make_unit(
    library: Library,
    block: Any,
    values: Sequence[Lazy],
    layout: Layout,
    state: int,
) -> Unit:
    """Trace a Block for inputs of these types.

    Raises:
        NotRowwiseError: it cannot be traced, or mixes rows.
        UnsupportedError: it takes statistics over the batch.
    """
    mx = import_mxnet()
    if isinstance(block, mx.gluon.rnn.ModifierCell):
        raise NotRowwiseError("modifier cells keep state between calls")
    hooked = next(
        (b for b in descendants(block)[1:] if b._forward_hooks or b._forward_pre_hooks), None
    )
    if hooked is not None:
        raise NotRowwiseError(f"{describe(hooked)} has forward hooks")
    names = [f"data{at}" for at in range(len(values))]
    symbol, results = trace_rows(block, layout, names)
    params = parameters_of(block, symbol, names, values)
    data = {n: (x.kind.tail, x.kind.dtype) for n, x in zip(names, values, strict=True)}
    graph, outs = checked(block, symbol, data, params, training=bool(state & TRAINING))
    ctx = values[0].kind.ctx
    signature = library.signature(
        (id(block), layout, tuple(x.kind for x in values), len(library.units)),
        describe(block),
        len(values),
        [kind(tail, dtype, ctx) for tail, dtype in outs],
        state,
        run_graph(library, graph, names, params, ctx, state),
        source=Block(graph, tuple(names), params),
    )
    return Unit(signature, results)
