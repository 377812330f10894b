"""First calls of nets whose layers wait for one to tell their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from graphopt.analysis.effects import draws_from_stream
from graphopt.backend.late import wait_for
from graphopt.compat import import_mxnet
from graphopt.errors import GraphError, InputError, UninitializedError, UnsupportedError
from graphopt.frontend.blocks import describe
from graphopt.frontend.gluon import Traced
from graphopt.ir.graph import Graph
from graphopt.nn.learning import LearnsInPythonError

if TYPE_CHECKING:
    from graphopt.nn.state import State


class PythonFirst(Exception):  # noqa: N818 - no error
    """A net's Python has to make the first call, as only that initializes it as MXNet does."""


def drawn_in_order(graph: Graph, traced: Traced) -> list[str]:
    """Parameters that a graph reads, in the order in which MXNet would initialize them.

    That of calls of their Blocks, if the Block that was traced is not hybridized.
    """
    names = [node.name for node in graph.inputs]
    place = {name: at for at, name in enumerate(names)}
    noted = chain.from_iterable(
        sorted(part, key=lambda n: place.get(n, 0)) for part in traced.waiting
    )
    return [n for n in dict.fromkeys([*noted, *names]) if n in place]


def initialized(block: Any, graph: Graph, traced: Traced, ctx: Any) -> dict[str, Any]:
    """The Block's parameters that the graph reads, initialized for good.

    Raises:
        UninitializedError: ``initialize()`` was never called.
        InputError: or not for this context.
    """
    known = block.collect_params()
    found = {name: known[name] for name in drawn_in_order(graph, traced) if name in known}
    for name, parameter in found.items():
        if parameter._deferred_init:
            parameter.shape = graph.find_input(name).type.shape
            parameter._finish_deferred_init()
        if parameter._data is None:
            raise UninitializedError(
                f"parameter {name!r} of {describe(block)} is not initialized:"
                " call .initialize() or .load_parameters() first"
            )
        if ctx not in parameter.list_ctx():
            raise InputError(
                f"parameter {name!r} of {describe(block)} is on"
                f" {parameter.list_ctx()}, the input on {ctx}"
            )
        if parameter._stype != "default":
            raise UnsupportedError(f"parameter {name!r} is stored as {parameter._stype}")
    return found


def needs_python(graph: Graph, traced: Traced) -> bool:
    """Whether weights and other numbers are drawn in turns, or of layers that nobody reads.

    Masks of Dropout are others in compiled graphs.
    """
    waiting = {*chain.from_iterable(traced.waiting)}
    if not waiting:
        return False
    is_unread = not waiting <= {node.name for node in graph.inputs}
    return is_unread or any(draws_from_stream(n.op, n.attrs, n.graphs) for n in graph)


def first_call(block: Any, state: State, python: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The result of a first call that a net's Python makes, as in MXNet; it is compiled besides.

    Args:
        block: a view that is compiled whole.
        state: what is known of it.
        python: what MXNet runs in a call of it.
        args: of the call.

    Raises:
        UnsupportedError: it cannot be compiled, where that was asked for.
    """
    with left_open(block):
        found = python(*args)
    state.note_settings()
    try:
        # Operators under way may count as writers of parameters.
        for parameter in block.collect_params().values():
            wait_for(parameter.list_data() if parameter._data is not None else ())
        state.compiled.prepare(args)
    except UnsupportedError as error:
        if state.config.strict:
            raise
        if isinstance(error, LearnsInPythonError):
            state.learns_in_python = str(error)
        else:
            state.reason = str(error)
    except (InputError, GraphError, import_mxnet().MXNetError):
        if state.config.strict:
            raise
    return found


@contextmanager
def left_open(block: Any) -> Iterator[None]:
    """Parameters of a Block whose shapes are open are so again if the block of code fails."""
    known = block.collect_params().values()
    before = [(p, p._shape, p._deferred_init) for p in known if p._deferred_init]
    try:
        yield
    except BaseException:
        for parameter, shape, initialization in before:
            parameter._shape, parameter._deferred_init = shape, initialization
            parameter._data = parameter._grad = None
        raise
