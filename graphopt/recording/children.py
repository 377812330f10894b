"""Hybridized children of a Block that is recorded: a call of one is one operator on the tape.

MXNet runs such a child's Python once and keeps its graph, and a call of that is one operator to
autograd: backward from any result comes to all that the graph reads. So that graph is recorded, and
where it cannot be, MXNet calls it.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

import numpy as np

from graphopt.analysis.effects import MASKING
from graphopt.backend.documents import every_node, text_of
from graphopt.batching.operators import handle
from graphopt.compat import import_mxnet
from graphopt.ir.ops import canonical, info
from graphopt.recording.types import Type, all_recordable

mx = import_mxnet()
#: MXNet's own, whatever is put in its place while something is recorded.
CALL: Final = mx.nd.CachedOp.__call__
#: Graphs of so many operators are taken apart by MXNet if it does not say otherwise.
_INLINE_LIMIT: Final = 2


class Child:
    """The graph of a hybridized Block, as an operator of a tape.

    Equal to another one that computes the same of inputs that have the same names.

    Attributes:
        symbol: the graph, whose outputs are values of its own, each once.
        names: of its inputs.
        is_np: whether its results are arrays of ``mx.np``.
        size: how many operators it has.
    """

    def __init__(self, symbol: Any, *, is_np: bool) -> None:
        """``symbol``: as MXNet keeps it."""
        self.symbol, self.is_np = _with_own_outputs(symbol), is_np
        self.names = tuple(self.symbol.list_inputs())
        self._text = text_of(self.symbol)
        self._hash = hash((self._text, is_np))
        self._nodes: list[dict[str, Any]] = json.loads(self._text)["nodes"]
        operators = [canonical(node["op"]) for node in self._nodes if node["op"] != "null"]
        self.size = len(operators)
        self.samples = any(info(op).random and op not in MASKING for op in operators)
        self.is_loss = any(info(op).loss for op in operators)
        self._types: dict[Any, tuple[Type, ...] | None] = {}

    def __eq__(self, other: object) -> bool:
        """Whether it computes the same."""
        if self is other:
            return True
        if not isinstance(other, Child):
            return NotImplemented
        return (self.is_np, self._text) == (other.is_np, other._text)

    def __hash__(self) -> int:
        """Of what it computes."""
        return self._hash

    @cached_property
    def results(self) -> int:
        """How many arrays it makes."""
        return len(self.symbol.list_outputs())

    @cached_property
    def is_even(self) -> bool:
        """Whether each of its results is computed from all of its inputs."""
        return len(set(self._read_by_results())) == 1

    def applied(self, inputs: Sequence[Any]) -> list[Any]:
        """Symbols of its results for Symbols of its inputs."""
        made = mx.sym.Symbol.__deepcopy__(self.symbol, None)
        made._compose(**dict(zip(self.names, inputs, strict=True)))
        return [made[at] for at in range(self.results)]

    def types(self, given: tuple[Type | None, ...], *, np_shape: bool) -> tuple[Type, ...] | None:
        """Types of its results; ``None`` where they are not known before it runs."""
        key = given, np_shape
        if key not in self._types:
            known = [type_ for type_ in given if type_ is not None]
            self._types[key] = self._inferred(known) if len(known) == len(given) else None
        return self._types[key]

    def is_taken_apart(self, block: Any) -> bool:
        """Whether MXNet makes its operators' calls one by one, and autograd could tell."""
        flags = dict(block._flags)
        limit = int(flags.get("inline_limit", _INLINE_LIMIT))
        return not flags.get("static_alloc") and self.size <= limit and not self.is_even

    def operators(self) -> Iterator[tuple[int, dict[str, str], list[tuple[int, int]]]]:
        """Each node's operator, 0 for an input, its attributes and what it reads."""
        for node in self._nodes:
            attrs = {k: v for k, v in node.get("attrs", {}).items() if not k.startswith("__")}
            op = 0 if node["op"] == "null" else handle(node["op"])
            yield op, attrs, [(at, result) for at, result, *_ in node["inputs"]]

    def heads(self) -> list[tuple[int, int]]:
        """The node and its result that each result is."""
        return [(at, result) for at, result, *_ in json.loads(self._text)["heads"]]

    def _read_by_results(self) -> list[int]:
        """Per result the inputs that it is computed from, as bits."""
        read: list[int] = []
        inputs = 0
        for node in self._nodes:
            own = 0
            if node["op"] == "null":
                own, inputs = 1 << inputs, inputs + 1
            for at, *_ in node["inputs"]:
                own |= read[at]
            read.append(own)
        return [read[at] for at, _ in self.heads()]

    def _inferred(self, given: Sequence[Type]) -> tuple[Type, ...] | None:
        shapes = dict(zip(self.names, (shape for shape, _ in given), strict=True))
        dtypes = dict(zip(self.names, (np.dtype(dtype) for _, dtype in given), strict=True))
        try:
            _, made, _ = self.symbol._infer_shape_impl(False, **shapes)
            _, kinds, _ = self.symbol._infer_type_impl(False, **dtypes)
        except mx.MXNetError:
            return None  # MXNet says so again, in its own words
        unknown = -1 if mx.util.is_np_shape() else 0
        if not made or not kinds or any(kind is None for kind in kinds):
            return None
        if any(shape is None or unknown in shape for shape in made):
            return None
        if unknown == 0 and not all(made):
            return None
        return all_recordable(made, kinds)


def child_of(block: Any, cached_op: Any) -> Child | None:
    """The graph of a hybridized Block that MXNet has made a CachedOp of; ``None``: not to record.

    Nothing is recorded of loops, which have graphs of their own, nor of the user's operators.
    """
    known = _KNOWN.get(id(block))
    if known is not None and known.cached_op is cached_op and known.block() is block:
        return known.child
    symbol = block._cached_graph[1]
    nodes = [*every_node(json.loads(text_of(symbol)))]
    names = symbol.list_inputs()
    is_plain = len({*names}) == len(names) and not any(
        node["op"] == "Custom" or "subgraphs" in node for node in nodes
    )
    child = Child(symbol, is_np=cached_op.is_np_sym) if is_plain else None
    _KNOWN[id(block)] = _Known(weakref.ref(block, partial(_forget, id(block))), cached_op, child)
    return child


def called(cached_op: Any, args: Sequence[Any]) -> list[Any]:
    """What MXNet's own call of a CachedOp makes."""
    made = CALL(cached_op, *args)
    return made if isinstance(made, list) else [made]


class _Known(NamedTuple):
    """What a Block's graph is, as long as its CachedOp is this one."""

    block: weakref.ref[Any]
    cached_op: Any
    child: Child | None


#: By the ids of Blocks.
_KNOWN: Final[dict[int, _Known]] = {}


def _forget(of: int, block: weakref.ref[Any]) -> None:
    if of in _KNOWN and _KNOWN[of].block is block:
        del _KNOWN[of]


def _with_own_outputs(symbol: Any) -> Any:
    """A graph as MXNet's CachedOp has it: an input, or a value for the second time, is copied."""
    nodes, heads = (json.loads(text_of(symbol))[key] for key in ("nodes", "heads"))
    whole = symbol.as_nd_ndarray() if isinstance(symbol, mx.sym.np._Symbol) else symbol
    outputs, met = [], set()
    for number, (node, result, *_) in enumerate(heads):
        is_own = nodes[node]["op"] != "null" and (node, result) not in met
        met.add((node, result))
        outputs.append(whole[number] if is_own else mx.sym.identity(whole[number]))
    return mx.sym.Group(outputs)
