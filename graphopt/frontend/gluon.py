"""Gluon Block -> Graph, through the Block's own tracing.

The Block is called with Symbols, as ``hybridize()`` would; nothing is left on it but the graphs of
hybridized Blocks, which MXNet's calls leave there. A HybridBlock can be called so, and so can a
``Sequential`` of such, whose code is Gluon's.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphopt.backend.documents import document_of
from graphopt.backend.fitting import require_known, require_mapping
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.frontend.alone import traced_alone
from graphopt.frontend.blocks import (
    all_parameters,
    descendants,
    describe,
    input_names,
    variable_like,
)
from graphopt.frontend.composing import composing_graphs
from graphopt.frontend.containers import Kinds, in_kinds, kinds_given, kinds_of
from graphopt.frontend.kept import without_kept
from graphopt.frontend.order import noting_order
from graphopt.frontend.questions import draws_without_shape, noting_questions
from graphopt.frontend.stated import input_types
from graphopt.frontend.symbol import lift_symbol, with_open_batches
from graphopt.ir.fingerprint import INIT
from graphopt.ir.graph import Graph
from graphopt.ir.types import dtype_name

#: How nested arguments and results are laid out: 0 is one array, -1 is None, a list nests.
Format = Any

_NUMBERED = re.compile(r"data[0-9]+")


@dataclass(frozen=True)
class Traced:
    """A Block as a Symbol.

    ``names`` are the data inputs in call order, Nones left out; ``results`` is the layout of what
    the Block returns, ``kinds`` are the containers in it, ``arguments`` is the layout of what it
    was given. ``waiting`` are lists of parameters that MXNet initializes one after the other in a
    first call, each in the order of the graph. ``unread`` is how many outputs the Symbol has behind
    what the Block returns: results of hybridized Blocks in it that MXNet computes, and
    differentiates, as well.
    """

    symbol: Any
    names: tuple[str, ...]
    results: Format
    arguments: Format = None
    waiting: tuple[tuple[str, ...], ...] = ()
    unread: int = 0
    kinds: Kinds = None

    @property
    def returned(self) -> Any:
        """The Symbol of what the Block returns alone."""
        if not self.unread:
            return self.symbol
        sym = import_mxnet().sym
        is_np = isinstance(self.symbol, sym.np._Symbol)
        outputs = [*(self.symbol.as_nd_ndarray() if is_np else self.symbol)]
        return sym.Group(outputs[: -self.unread], type(self.symbol))

    def is_like(self, other: Traced) -> bool:
        """Whether it is the same graph, of the same arguments."""
        one, two = ((each.names, each.results, each.unread, each.kinds) for each in (self, other))
        if one != two:
            return False
        return _nodes(self.symbol) == _nodes(other.symbol)


def trace(block: Any, args: Sequence[Any], *, keeping: bool = True) -> Traced:
    """Call a Block with one Symbol in place of every array in ``args``, in autograd's state.

    No other thread traces it, or what is in it, meanwhile.

    Args:
        block: a HybridBlock, or a ``Sequential`` of such.
        args: of the call.
        keeping: whether graphs of hybridized Blocks stay with them, as in a call of MXNet's.

    Raises:
        UnsupportedError: the Block cannot be traced; the message says why.
    """
    reason = why_not_traceable(block)
    if reason:
        raise UnsupportedError(reason)
    with traced_alone(block):
        return _traced(block, args, keeping=keeping)


def _traced(block: Any, args: Sequence[Any], *, keeping: bool) -> Traced:
    mx = import_mxnet()
    hooked = why_hooked(descendants(block)[1:])
    if hooked:
        raise UnsupportedError(hooked)
    amp = sys.modules.get("mxnet.contrib.amp.amp")
    if getattr(amp, "_amp_initialized", False) and not getattr(block, "_active", False):
        # Its wrappers of `mx.nd` scale losses, and leave dtypes alone that those of Symbols cast.
        raise UnsupportedError(
            f"{describe(block)} runs its Python, as amp.init() has arrays cast and losses scaled"
            " otherwise than graphs: hybridize it"
        )
    all_parameters(block)  # which a graph knows by their names
    flat, layout = mx.gluon.block._flatten(list(args), "input")
    given = [array for array in flat if array is not None]
    if not given:
        raise UnsupportedError("all arguments are None")
    names = input_names(len(given))
    symbols = iter([variable_like(n, a) for n, a in zip(names, given, strict=True)])
    lists = mx.gluon.block._regroup(
        [None if array is None else next(symbols) for array in flat], layout
    )
    inputs = in_kinds(lists, kinds_given(block, args))
    before = _leaves(inputs)
    try:
        with (
            without_hooks(block),
            composing_graphs(block, keeping=keeping) as together,
            noting_order(block) as waiting,
            noting_calls(block) as every_time,
        ):
            found = block(*inputs)
        outputs, results = mx.gluon.block._flatten(found, "output")
        kinds = kinds_of(found)
        unread = _unread(outputs, together)
        symbol_type = mx.gluon.block._check_same_symbol_type(outputs)
        group = mx.sym.Group(outputs + unread, symbol_type)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise UnsupportedError(
            f"{describe(block)} cannot be traced: {type(error).__name__}: {reason}"
        ) from error
    if every_time:
        raise UnsupportedError(f"{describe(block)} is called every time: {every_time[0]}")
    if not getattr(block, "_active", False):  # MXNet does not mind it of a hybridized one, either
        if not _are_same(before, _leaves(inputs)):
            raise UnsupportedError(f"{describe(block)} writes into a list that it is given")
        if draws_without_shape(group):
            raise UnsupportedError(f"{describe(block)} draws numbers and does not say how many")
    group, orders = with_open_batches(group), tuple(map(tuple, waiting))
    return Traced(group, names, results, layout, orders, len(unread), kinds)


def _unread(outputs: Sequence[Any], together: Iterable[Any]) -> list[Any]:
    """Results of hybridized Blocks through which alone a training step comes to some variables.

    Args:
        outputs: what the Block around them returns.
        together: what those return.
    """
    autograd = import_mxnet().autograd
    if not (autograd.is_recording() or autograd.is_training()):
        return []
    read = {name for output in outputs for name in output.list_inputs()}
    found = []
    for output in together:
        names = {*output.list_inputs()}
        if names - read:
            found.append(output)
            read |= names
    return found


@contextmanager
def noting_calls(block: Any) -> Iterator[list[str]]:
    """Texts, behind the block of code, for what makes a Block run its Python in every call."""
    found: list[str] = []
    with without_kept(descendants(block)) as kept, noting_questions(block) as questions:
        yield found
    found += kept
    found += [f"it asks for {each}, which Symbols have no answer to" for each in questions]


def _leaves(inputs: Any) -> Any:
    """Lists with what is in them, others as they are."""
    return [*map(_leaves, inputs)] if isinstance(inputs, (list, tuple)) else inputs


def _are_same(one: Any, other: Any) -> bool:
    if not isinstance(one, list) or not isinstance(other, list):
        return one is other
    return len(one) == len(other) and all(map(_are_same, one, other))


def _nodes(symbol: Any) -> list[Any]:
    """What a Symbol is made of, but for the versions of its variables and how they are filled."""
    document = document_of(symbol)
    for node in document["nodes"]:
        node["inputs"] = [at[:2] for at in node["inputs"]]
        node.get("attrs", {}).pop(INIT, None)
    return [document["nodes"], [at[:2] for at in document["heads"]]]


def why_not_traceable(block: Any) -> str:
    """Why a Block's code cannot be given Symbols; empty if it can."""
    nn, hybrid = import_mxnet().gluon.nn, import_mxnet().gluon.HybridBlock
    stack = [block]
    while stack:
        part = stack.pop()
        if isinstance(part, hybrid):
            continue
        cls = getattr(type(part), "_graphopt_base", type(part))
        if cls.forward is not nn.Sequential.forward or not part._children:
            return f"{describe(part)} is no HybridBlock"
        stack += part._children.values()
    return ""


def in_call_order(names: Sequence[str]) -> list[str]:
    """Names of data inputs, those that are called as :func:`input_names` does by their numbers.

    A Symbol lists its inputs in the order in which it reads them.
    """
    numbered = sorted(filter(_NUMBERED.fullmatch, names), key=lambda name: int(name[4:]))
    following = iter(numbered)
    return [next(following) if name in numbered else name for name in names]


def lift_traced(
    block: Any,
    traced: Traced,
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, str],
    computed: Collection[str] = (),
) -> Graph:
    """The graph of a traced Block, with the types of its parameters.

    Args:
        block: which was traced.
        traced: its Symbol.
        shapes: by name, of its data inputs and of parameters that are ``computed``.
        dtypes: of the same.
        computed: names of parameters that are data inputs of the graph.
    """
    params = block.collect_params()
    known = set(traced.symbol.list_inputs())
    stray = sorted(known - set(traced.names) - set(params))
    if stray:
        raise UnsupportedError(f"{describe(block)} reads {stray[0]!r}, which is no parameter of it")
    given_shapes = {n: s for n, s in shapes.items() if n in known}
    given_dtypes = {n: d for n, d in dtypes.items() if n in known}
    for name, parameter in params.items():
        typed = typed_of(parameter)
        if (
            name in known
            and name not in computed
            and typed.shape is not None
            and all(e > 0 for e in typed.shape)
        ):
            given_shapes[name] = tuple(typed.shape)
            given_dtypes[name] = dtype_name(typed.dtype)
    return lift_symbol(
        traced.symbol, given_shapes, given_dtypes, data={*traced.names, *computed}, name=block.name
    )


def typed_of(parameter: Any) -> Any:
    """What has the shape and dtype of a parameter: its array, or itself where there is none yet.

    ``SymbolBlock.imports`` loads arrays and leaves what the parameters know of their shapes open.
    """
    return parameter if parameter._data is None else parameter._data[0]


def lift_block(block: Any, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]) -> Graph:
    """The graph of a Block for stated input shapes.

    Args:
        block: an initialized or uninitialized HybridBlock with flat array arguments, or a
            ``Sequential`` of such.
        shapes: shape per input: ``data``, or ``data0``, ``data1`` ... in call order.
        dtypes: dtype name per input.

    Raises:
        InputError: the names of ``shapes`` are not those, one of ``dtypes`` is no input, or a shape
            or dtype is none.
        UnsupportedError: the Block cannot be traced.
    """
    mx = import_mxnet()
    require_mapping(shapes, "shapes")
    require_mapping(dtypes, "dtypes")
    count = len(shapes)
    expected = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
    if not count or sorted(shapes) != sorted(expected):
        raise InputError(
            f"give the shape of every input of {describe(block)}: shapes={{'data': (...)}},"
            " or 'data0', 'data1' ... in call order when there are several"
        )
    types = input_types(expected, shapes, {n: d for n, d in dtypes.items() if n in expected})
    zeros = mx.np.zeros if mx.util.is_np_array() else mx.nd.zeros
    stand_ins = [zeros((1,), dtype=types[name].dtype or "float32") for name in expected]
    traced = trace(block, stand_ins, keeping=False)
    require_known(dtypes, [*expected, *traced.symbol.list_inputs()], describe(block))
    return lift_traced(block, traced, shapes, dtypes)


def why_hooked(blocks: Iterable[Any]) -> str:
    """Why Blocks have to be called one by one: one has hooks; empty if none has."""
    hooked = next(filter(_hooks, blocks), None)
    return "" if hooked is None else f"{describe(hooked)} has forward hooks, which need arrays"


def _hooks(block: Any) -> bool:
    return bool(block._forward_hooks or block._forward_pre_hooks)


@contextmanager
def without_hooks(block: Any) -> Iterator[None]:
    """The outermost Block's hooks run around the compiled call, on arrays, not while tracing."""
    if not _hooks(block):
        yield
        return
    kept = block._forward_hooks, block._forward_pre_hooks
    try:
        block._forward_hooks, block._forward_pre_hooks = OrderedDict(), OrderedDict()
        yield
    finally:
        block._forward_hooks, block._forward_pre_hooks = kept
