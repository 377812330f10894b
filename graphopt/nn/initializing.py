"""First calls of nets whose layers wait for one to tell their shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from graphopt.backend.late import wait_for
from graphopt.compat import import_mxnet
from graphopt.errors import GraphError, InputError, UnsupportedError
from graphopt.nn.state import State


def waits(block: Any) -> bool:
    """Whether a layer waits that MXNet initializes when it is called, not with a graph.

    Hybridized Blocks have the parameters of their graph initialized in its order, as here.
    """
    stack = [block]
    while stack:
        part = stack.pop()
        if getattr(part, "_active", False):
            continue
        if any(parameter._deferred_init for parameter in part._reg_params.values()):
            return True
        stack.extend(part._children.values())
    return False


def first_call(
    block: Any, state: State, python: Callable[..., Any], args: Sequence[Any]
) -> list[Any]:
    """The result of a first call in which layers are initialized one after the other, if it is one.

    Its Python makes it, as in MXNet: so the numbers that are drawn for weights, and those that the
    Block draws in between, are those of the seed. The Block is compiled besides.

    Args:
        block: a view that is compiled whole.
        state: what is known of it.
        python: what MXNet runs in a call of it.
        args: of the call.

    Returns:
        nothing, or the result.

    Raises:
        UnsupportedError: it cannot be compiled, where that was asked for.
    """
    mx = import_mxnet()
    flat = [a for a in mx.gluon.block._flatten(list(args), "input")[0] if a is not None]
    if state.config.plans_memory or not all(isinstance(a, mx.nd.NDArray) for a in flat):
        return []
    wait_for(flat)  # before others wait: an operator that calls this net may make it
    with state.compiled.alone():
        found = _of_python(block, python, args) if not state.is_initialized else []
        known = block.collect_params().values()
        state.is_initialized = bool(found) or all(p._data is not None for p in known)
    if found:
        _prepare(block, state, args)
    return found


def _of_python(block: Any, python: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    """The result, unless nothing is to be initialized or the call fails, as the graph's will."""
    if not waits(block):
        return []
    with suppress(Exception), left_open(block):
        return [python(*args)]
    return []


def _prepare(block: Any, state: State, args: Sequence[Any]) -> None:
    """Compile what was called."""
    try:
        # Operators under way may count as writers of parameters.
        for parameter in block.collect_params().values():
            wait_for(parameter.list_data() if parameter._data is not None else ())
        state.compiled.prepare(args)
    except UnsupportedError as error:
        if state.config.strict:
            raise
        state.reason = str(error)
    except (InputError, GraphError, import_mxnet().MXNetError):
        if state.config.strict:
            raise


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
