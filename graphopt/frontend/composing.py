"""Blocks whose graph is there already, called with Symbols as a Block around them is traced.

MXNet runs the Python of a hybridized Block once, in the first call, and a SymbolBlock has none. So
their graphs are composed. One that a hybridized Block has not got yet is made, and stays with it,
as it does in MXNet's first call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from graphopt.backend.documents import document_of
from graphopt.compat import import_mxnet
from graphopt.forking import lock
from graphopt.frontend.blocks import descendants, input_names, is_inlined, variable_like


class _Trace(threading.local):
    """What this thread composes, while it traces."""

    composing: _Composing | None = None


_TRACE: Final = _Trace()
_TURN: Final = lock()
#: How many traces listen to each Block, by its id; its ``forward`` is seen by all threads.
_HEARD: Final[dict[int, int]] = {}


@contextmanager
def composing_graphs(block: Any, *, keeping: bool = True) -> Iterator[list[Any]]:
    """A Block, and Blocks in it, can be called with Symbols, each as the graph that it is.

    Of a hybridized Block in a hybridized one MXNet runs the Python. What it yields has, behind the
    block of code, the results of graphs to all of which backward comes from any.

    Args:
        block: of Gluon.
        keeping: whether graphs that are made stay with their Blocks, as those of a call do.
    """
    composing = _Composing()
    outer, _TRACE.composing = _TRACE.composing, composing
    found = [part for part in descendants(block) if is_graph(part)]
    _listen(found, 1)
    try:
        yield composing.together
    finally:
        _listen(found, -1)
        _TRACE.composing = outer
        if not keeping:
            for part, before in composing.made:
                vars(part).update(before)


def drop_graphs(block: Any) -> None:
    """Have hybridized Blocks run their Python again, in their next calls."""
    for part in descendants(block):
        if getattr(part, "_active", False):
            part._clear_cached_op()


def _listen(blocks: Iterable[Any], more: int) -> None:
    with _TURN:
        for block in blocks:
            count = _HEARD.pop(id(block), 0) + more
            if count:
                _HEARD[id(block)] = count
                vars(block)["forward"] = partial(_forward, block)
            else:
                vars(block).pop("forward", None)


def _forward(block: Any, *args: Any) -> Any:
    composing = _TRACE.composing
    if composing is None:  # another thread's call
        return _class_of(block).forward(block, *args)
    return composing.forward(block, *args)


def is_graph(block: Any) -> bool:
    """Whether calls run a graph that is there already, or is made once: not the Block's Python."""
    mx = import_mxnet()
    if "forward" in vars(block) and id(block) not in _HEARD:
        return False  # the user's own
    forward = _class_of(block).forward
    if isinstance(block, mx.gluon.SymbolBlock):
        return forward is mx.gluon.SymbolBlock.forward
    is_gluons = forward is mx.gluon.HybridBlock.forward
    return is_gluons and bool(getattr(block, "_active", False))


def _class_of(block: Any) -> Any:
    """The user's class, of a view as well."""
    return getattr(type(block), "_graphopt_base", type(block))


class _Composing:
    """One trace."""

    def __init__(self) -> None:
        self._is_making = False  # a graph of a hybridized Block
        self.made: list[tuple[Any, dict[str, Any]]] = []  # Blocks that got one, as they were
        self.together: list[Any] = []  # results of calls that MXNet makes as one operator
        self._variables: dict[int, dict[str, Any]] = {}  # of parameters, by the id of a Block

    def forward(self, block: Any, *args: Any) -> Any:
        """What a Block's graph makes of Symbols; of arrays MXNet's call of it."""
        mx = import_mxnet()
        is_within = self._is_making and not isinstance(block, mx.gluon.SymbolBlock)
        flat, layout = mx.gluon.block._flatten(_unpacked(args), "input")
        if is_within or not any(isinstance(symbol, mx.sym.Symbol) for symbol in flat):
            return _class_of(block).forward(block, *args)
        own = vars(block)
        if not own.get("_cached_graph"):
            self._make(block, flat, layout)
        if _without_none(layout) != _without_none(own["_in_format"]):
            raise ValueError("the arguments are nested otherwise than those of its first call")
        inputs, graph = own["_cached_graph"]
        given = [symbol for symbol in flat if symbol is not None]
        outputs = _composed(graph, self._variables_of(block), inputs, given)
        if not self._is_making and len(outputs) > 1 and not is_inlined(block, _size(graph)):
            self.together += outputs
        return mx.gluon.block._regroup(outputs, own["_out_format"])

    def _variables_of(self, block: Any) -> dict[str, Any]:
        """Of its parameters, by name; other Blocks read the same that have them as well."""
        if id(block) not in self._variables:
            known = {name: p.var() for name, p in block.collect_params().items()}
            self._variables[id(block)] = known
        return self._variables[id(block)]

    def _make(self, block: Any, flat: list[Any], layout: Any) -> None:
        """Run a hybridized Block's Python, as ``HybridBlock._get_graph`` does for arrays."""
        mx = import_mxnet()
        symbols = [symbol for symbol in flat if symbol is not None]
        inputs = [
            variable_like(name, symbol)
            for name, symbol in zip(input_names(len(symbols)), symbols, strict=True)
        ]
        rest = iter(inputs)
        nested = mx.gluon.block._regroup(
            [None if symbol is None else next(rest) for symbol in flat], layout
        )
        parameters = {name: p.var() for name, p in block._reg_params.items()}
        self._is_making = True
        try:
            with block.name_scope():
                found = block.hybrid_forward(mx.sym, *nested, **parameters)
        finally:
            self._is_making = False
        outputs, results = mx.gluon.block._flatten(found, "output")
        group = mx.sym.Group(outputs, mx.gluon.block._check_same_symbol_type(outputs))
        places = {variable.name: at for at, variable in enumerate(inputs)}
        known = block.collect_params()
        made = {
            "_in_format": layout,
            "_out_format": results,
            "_cached_graph": (inputs, group),
            "_cached_op_args": [  # which export() writes
                (True, places[name]) if name in places else (False, known[name])
                for name in group.list_inputs()
            ],
        }
        self.made.append((block, {name: vars(block)[name] for name in made}))
        vars(block).update(made)


def _composed(
    graph: Any, parameters: dict[str, Any], inputs: list[Any], given: list[Any]
) -> list[Any]:
    """The outputs of a graph, with Symbols in place of its inputs and of its parameters."""
    mx = import_mxnet()
    read = {*graph.list_inputs()}
    places = parameters | {i.name: symbol for i, symbol in zip(inputs, given, strict=False)}
    copied = mx.sym.Symbol.__deepcopy__(graph, None)
    copied._compose(**{name: symbol for name, symbol in places.items() if name in read})
    is_np = isinstance(graph, mx.sym.np._Symbol)
    return [output.as_np_ndarray() if is_np else output for output in copied]


def _size(graph: Any) -> int:
    """How many operators a graph has."""
    return sum(node["op"] != "null" for node in document_of(graph)["nodes"])


def _unpacked(args: Any) -> Any:
    """Arguments with a list for each Symbol of several arrays, as which MXNet has arrays."""
    if isinstance(args, (list, tuple)):
        return [_unpacked(part) for part in args]
    is_several = isinstance(args, import_mxnet().sym.Symbol) and len(args.list_outputs()) > 1
    return [*args] if is_several else args


def _without_none(layout: Any) -> Any:
    """How arguments are nested, but for Nones at the end, which may be left out."""
    if not isinstance(layout, list):
        return layout
    end = len(layout)
    while end and layout[end - 1] == -1:
        end -= 1
    return layout[:end]
