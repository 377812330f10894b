"""A model's Symbol as MXNet runs it, to be measured beside what was compiled of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.backend.engines import CachedOpEngine
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import lift_symbol
from graphopt.nn.any_size import Run


class PlainRuns:
    """Calls of a Symbol, one CachedOp for each set of inputs that calls give."""

    def __init__(self, symbol: Any) -> None:
        """Nothing is made."""
        self._symbol = symbol
        self._inputs: list[str] = symbol.list_inputs()
        self._engines: dict[tuple[str, ...], CachedOpEngine] = {}

    def of(self, arrays: Mapping[str, Any], params: Mapping[str, Any]) -> Run | None:
        """What runs on such data, by name, and those parameters; ``None`` where that cannot be."""
        names, ctx = tuple(arrays), next(iter(arrays.values())).ctx
        if names not in self._engines:
            self._engines[names] = CachedOpEngine(self._symbol, names, is_static=False)
        engine = self._engines[names]
        known = {name: on(array, ctx) for name, array in params.items()}
        shapes = {name: tuple(array.shape) for name, array in known.items()}
        dtypes = {n: np.dtype(a.dtype).name for n, a in (known | dict(arrays)).items()}

        @functools.cache
        def left_out(*sizes: tuple[int, ...]) -> dict[str, Any] | None:
            given = shapes | dict(zip(names, sizes, strict=True))
            return self._zeros(given, dtypes, ctx)

        if left_out(*(array.shape for array in arrays.values())) is None:
            return None

        def run(data: Sequence[Any]) -> list[Any]:
            every = known | dict(zip(names, data, strict=True))
            every |= left_out(*(array.shape for array in data)) or {}
            return engine([every[name] for name in engine.inputs])

        return run

    def _zeros(
        self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], ctx: Any
    ) -> dict[str, Any] | None:
        """In place of inputs that calls leave out, as labels; ``None`` if they may have any shape.

        Args:
            shapes: of the other inputs, by name.
            dtypes: of these.
            ctx: where to put them.
        """
        if len(shapes) == len(self._inputs):
            return {}
        graph = lift_symbol(self._symbol, shapes, dtypes)
        types = {node.name: node.type for node in graph.inputs if node.name not in shapes}
        if not all(type_.is_static for type_ in types.values()):
            return None
        zeros = import_mxnet().nd.zeros
        return {name: zeros(type_.shape, ctx, type_.dtype) for name, type_ in types.items()}


def on(array: Any, ctx: Any) -> Any:
    """The array on that device."""
    return array if array.ctx == ctx else array.as_in_context(ctx)
