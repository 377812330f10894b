"""Hybridized children of a Block that is recorded: a call of one is one operator on the tape.

MXNet runs such a child's Python once and keeps its graph, and a call of that is one operator to
autograd: backward from any result comes to all that the graph reads. So that graph is recorded, and
where it cannot be, MXNet calls it.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from graphopt.analysis.effects import MASKING
from graphopt.analysis.slopes import may_be_steep
from graphopt.analysis.sparse import makes_sparse
from graphopt.backend.documents import document_of, every_node, text_of
from graphopt.batching.operators import applied, handle
from graphopt.cached import cached_property
from graphopt.compat import import_mxnet
from graphopt.frontend.blocks import is_inlined
from graphopt.ir.attrs import from_mxnet
from graphopt.ir.ops import canonical, info
from graphopt.recording.types import Type, all_recordable

mx = import_mxnet()
#: MXNet's own, whatever is put in its place while something is recorded.
CALL: Final = mx.nd.CachedOp.__call__
_MAX_SHAPES: Final = 1000


class Child:
    """What the graph of a hybridized Block computes, as an operator of a tape.

    Equal to another one that computes the same of inputs that have the same names.

    Attributes:
        symbol: the graph, whose outputs are what it computes, each once; ``None`` if it computes
            nothing and hands on what it is given.
        names: of its inputs.
        is_np: whether its results are arrays of ``mx.np``.
        size: how many operators it has.
        places: of each result of a call, which output it is; inputs count down from -1.
    """

    def __init__(
        self, symbol: Any, places: tuple[int, ...], names: tuple[str, ...], *, is_np: bool
    ) -> None:
        """See the class; the Symbol reads all of the inputs."""
        self.symbol, self.places, self.names, self.is_np = symbol, places, names, is_np
        self._text = "" if symbol is None else text_of(symbol)
        self._hash = hash((self._text, places, is_np))
        self._nodes: list[dict[str, Any]] = json.loads(self._text)["nodes"] if self._text else []
        operators = [canonical(node["op"]) for node in self._nodes if node["op"] != "null"]
        self.size = len(operators)
        self.samples = any(info(op).random and op not in MASKING for op in operators)
        self.is_loss = any(info(op).loss for op in operators)
        self._types: dict[Any, tuple[Type, ...] | None] = {}
        self._learned: dict[Any, dict[int, tuple[int, ...]] | None] = {}

    def __eq__(self, other: object) -> bool:
        """Whether it computes the same."""
        if self is other:
            return True
        if not isinstance(other, Child):
            return NotImplemented
        mine, others = ((c.is_np, c.places, c._text) for c in (self, other))
        return mine == others

    def __hash__(self) -> int:
        """Of what it computes."""
        return self._hash

    @cached_property
    def results(self) -> int:
        """How many arrays it computes."""
        return len(self.symbol.list_outputs())

    @cached_property
    def is_even(self) -> bool:
        """Whether each of its results is computed from all of its inputs."""
        return len(set(self._read_by_results())) == 1

    @cached_property
    def is_steep(self) -> bool:
        """Whether a head gradient of zero may become NaN in its backward."""
        return any(
            node["op"] != "null" and may_be_steep(node["op"], node.get("attrs", {}))
            for node in self._nodes
        )

    @cached_property
    def open_nodes(self) -> dict[int, str]:
        """Operators without inputs whose readers tell the shape, and what their results are called.

        Those that draw make as many numbers as others read where they are not told how many.
        """
        return {
            at: f"{node['name']}_output"
            for at, node in enumerate(self._nodes)
            if node["op"] != "null" and not node["inputs"] and _is_open(node)
        }

    def learned(self, shapes: tuple[tuple[int, ...], ...]) -> dict[int, tuple[int, ...]] | None:
        """Their shapes for inputs of such shapes; ``None`` where MXNet cannot tell."""
        if shapes not in self._learned:
            _make_room(self._learned)
            internals = self.symbol.get_internals()
            given = dict(zip(self.names, shapes, strict=True))
            _, made, _ = internals._infer_shape_impl(True, **given)
            known = dict(zip(internals.list_outputs(), made, strict=True))
            found = {at: tuple(known[name]) for at, name in self.open_nodes.items()}
            is_known = all(shape and 0 not in shape for shape in found.values())
            self._learned[shapes] = found if is_known else None
        return self._learned[shapes]

    def applied(self, inputs: Sequence[Any]) -> list[Any]:
        """Symbols of its results for Symbols of its inputs."""
        made = mx.sym.Symbol.__deepcopy__(self.symbol, None)
        made._compose(**dict(zip(self.names, inputs, strict=True)))
        return [made[at] for at in range(self.results)]

    def types(self, given: tuple[Type | None, ...], *, np_shape: bool) -> tuple[Type, ...] | None:
        """Types of its results; ``None`` where they are not known before it runs."""
        key = given, np_shape
        if key not in self._types:
            _make_room(self._types)
            known = [type_ for type_ in given if type_ is not None]
            self._types[key] = self._inferred(known) if len(known) == len(given) else None
        return self._types[key]

    def is_taken_apart(self, block: Any) -> bool:
        """Whether MXNet makes its operators' calls one by one, and autograd could tell."""
        return not self.is_even and is_inlined(block, self.size)

    @cached_property
    def operators(self) -> list[tuple[int, dict[str, str], list[tuple[int, int]]]]:
        """Each node's operator, its attributes and what it reads; 0 and its number for an input."""
        found: list[tuple[int, dict[str, str], list[tuple[int, int]]]] = []
        for node in self._nodes:
            if node["op"] == "null":
                found.append((0, {}, [(self.names.index(node["name"]), 0)]))
                continue
            attrs = {k: v for k, v in node.get("attrs", {}).items() if not k.startswith("__")}
            read = [(at, result) for at, result, *_ in node["inputs"]]
            found.append((handle(node["op"]), attrs, read))
        return found

    @cached_property
    def heads(self) -> list[tuple[int, int]]:
        """The node and its result that each output is."""
        heads = json.loads(self._text)["heads"] if self._text else []
        return [(at, result) for at, result, *_ in heads]

    def one_by_one(
        self,
        call: Callable[[int, list[Any], dict[str, str]], list[Any]],
        inputs: Sequence[Any],
        shapes: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
    ) -> list[Any]:
        """What its operators make.

        Args:
            call: makes one call: of an operator, on what it reads, with attributes.
            inputs: arrays in the order of its names.
            shapes: of nodes whose readers tell it, see :meth:`learned`.
        """
        made: list[list[Any]] = []
        for number, (op, attrs, read) in enumerate(self.operators):
            if number in shapes:
                attrs = {**attrs, "shape": str(shapes[number])}
            if op:
                made.append(call(op, [made[at][result] for at, result in read], attrs))
            else:
                made.append([inputs[read[0][0]]])
        return [made[at][result] for at, result in self.heads]

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
        return [read[at] for at, _ in self.heads]

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


def _make_room(known: dict[Any, Any]) -> None:
    """There is no end of shapes that data may have."""
    if len(known) >= _MAX_SHAPES:
        known.clear()


def child_of(block: Any, cached_op: Any) -> Child | None:
    """The graph of a hybridized Block that MXNet has made a CachedOp of; ``None``: not to record.

    Nothing is recorded of loops, which have graphs of their own, nor of the user's operators, nor
    of those that make sparse arrays, nor of graphs that hand on an input and do not read it.
    """
    known = _KNOWN.get(id(block))
    if known is not None and known.cached_op is cached_op and known.block() is block:
        return known.child
    child = _made_of(block._cached_graph[1], is_np=cached_op.is_np_sym)
    _KNOWN[id(block)] = _Known(weakref.ref(block, partial(_forget, id(block))), cached_op, child)
    return child


def called(child: Child, cached_op: Any, args: Sequence[Any]) -> list[Any]:
    """What a child computes, by MXNet's own call of its CachedOp."""
    made = CALL(cached_op, *args)
    results = made if isinstance(made, list) else [made]
    return [array for array, place in zip(results, child.places, strict=True) if place >= 0]


def _made_of(symbol: Any, *, is_np: bool) -> Child | None:
    if any(map(_is_refused, every_node(document_of(symbol)))):
        return None
    names = symbol.list_inputs()
    outputs, places = _outputs_of(symbol)
    whole = mx.sym.Group(outputs) if outputs else None
    if len({*names}) < len(names) or (whole is not None and {*whole.list_inputs()} != {*names}):
        return None
    return Child(whole, places, tuple(names), is_np=is_np)


def _is_refused(node: dict[str, Any]) -> bool:
    is_foreign = node["op"] == "Custom" or "subgraphs" in node
    return is_foreign or makes_sparse(node["op"], node.get("attrs", {}))


def _is_open(node: dict[str, Any]) -> bool:
    default = () if node["op"].startswith("_random_") else (1,)
    shape = from_mxnet(node.get("attrs", {})).get("shape", default)
    return not shape or (isinstance(shape, tuple) and 0 in shape)


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


def _outputs_of(symbol: Any) -> tuple[Any, tuple[int, ...]]:
    """What a graph computes, and what its results are: numbers of those, inputs from -1 down.

    In MXNet a result that is an input has its memory, and one that is there for the second time is
    a copy.
    """
    document = document_of(symbol)
    nodes, heads = document["nodes"], document["heads"]
    whole = symbol.as_nd_ndarray() if isinstance(symbol, mx.sym.np._Symbol) else symbol
    inputs = [at for at, node in enumerate(nodes) if node["op"] == "null"]
    outputs: list[Any] = []
    results, met = [], set()
    for number, (node, result, *_) in enumerate(heads):
        if (node, result) not in met and nodes[node]["op"] == "null":
            results.append(~inputs.index(node))
        else:
            is_again = (node, result) in met
            results.append(len(outputs))
            outputs.append(_copied(whole[number], number) if is_again else whole[number])
        met.add((node, result))
    return outputs, tuple(results)


def _copied(output: Any, number: int) -> Any:
    return applied(handle("_copy"), {}, [output], f"copy_of_result{number}")
