"""Calls of optimized Blocks: compiled whole, or the way that one goes whose Python has to run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from graphopt.backend.late import LateError
from graphopt.backend.symbol import first_line
from graphopt.compat import import_mxnet
from graphopt.errors import GraphError, InputError, UnsupportedError
from graphopt.frontend.blocks import describe
from graphopt.frontend.gluon import why_not_traceable, without_hooks
from graphopt.nn.config import Config
from graphopt.nn.initializing import PythonFirst, first_call, left_open
from graphopt.nn.learning import LearnsInPythonError
from graphopt.nn.originals import original
from graphopt.nn.partition import looks_up_words, partition
from graphopt.nn.state import State
from graphopt.nn.twins import keep_python, pairs_of
from graphopt.nn.ways import APART, NESTED, PLAIN, RECORDED, Ways, nested
from graphopt.pipeline.base import Mode
from graphopt.recording.active import ACTIVE

if TYPE_CHECKING:
    from graphopt.recording.recorded import RecordedBlock


def run(block: Any, args: tuple[Any, ...]) -> Any:
    """A call of a view.

    Raises:
        UnsupportedError: it is not compiled whole, where that was asked for.
        InputError: the arguments fit neither its graph nor its Python, or it is not initialized.
    """
    state = block._graphopt_current(args)
    if block.__dict__.get("_callback") is not None:
        state.reason = "an op hook looks at what MXNet's operators compute"
        return _python_of(block, original(block))(*args)
    hooked = state.structure.hooked()
    reason = hooked or _why_not_whole(block, state)
    if not reason and state.learns_in_python and _mode(state) == "training":
        return _in_python(block, state, args, state.learns_in_python, is_hooked=False)
    if not reason:
        try:
            return state.compiled(args)
        except PythonFirst:
            return first_call(block, state, _whole_python_of(block), args)
        except UnsupportedError as error:
            if state.config.strict:
                raise
            reason = str(error)
            if isinstance(error, LearnsInPythonError):
                state.learns_in_python = reason
                return _in_python(block, state, args, reason, is_hooked=False)
        except InputError as error:
            if state.config.strict or state.config.plans_memory:
                raise
            found = _by_its_python(block, args, error)
            state.reason = f"its graph refuses arguments that its Python takes: {error}"
            return found
        except LateError:
            raise
        except (import_mxnet().MXNetError, GraphError) as error:
            entry = state.compiled.entry(args)
            if state.config.strict or state.config.plans_memory or (entry and entry.has_run):
                raise
            found = _by_its_python(block, args, error)
            state.reason = f"MXNet runs its Python, but not its graph: {first_line(error)}"
            return found
    if hooked and state.config.strict and not state.reason:
        raise UnsupportedError(hooked)
    is_first = not hooked and not state.reason
    if is_first:
        state.reason = reason
    try:
        return _in_python(block, state, args, reason, is_hooked=bool(hooked))
    except BaseException:
        if is_first:
            state.compile_whole()  # the fault lay with the arguments
        raise


def _in_python(
    block: Any, state: State, args: tuple[Any, ...], reason: str, *, is_hooked: bool
) -> Any:
    """A call of a view that is not compiled whole.

    Raises:
        UnsupportedError: its memory was to be planned.
    """
    if state.config.record:
        return _recorded(block, state)(_python_of(block, original(block)), args)
    if state.config.plans_memory:
        raise UnsupportedError(f"memory= and max_shapes= are for nets that compile whole: {reason}")

    def apart() -> Any:
        twin = taken_apart(block)
        try:
            return _python_of(block, twin)(*args)
        finally:
            pairs_of(twin).settle()

    if state.config.record is None and not is_hooked and _may_record(block, state, args):
        return _measured(block, state, args, _python_of(block, original(block)), apart)
    return apart()


def _mode(state: State) -> Mode:
    autograd = import_mxnet().autograd
    differentiating = autograd.is_recording() or autograd.is_training()
    return state.config.graph_mode(differentiating=differentiating)


def _python_of(block: Any, own: Any) -> Callable[..., Any]:
    """What a call of a view's Block runs, of an object that MXNet runs."""
    is_called = has_own_call(block) and _FORWARDING.block is not block
    found: Callable[..., Any] = own if is_called else own.forward
    return found


def _whole_python_of(block: Any) -> Callable[..., Any]:
    """As :func:`_python_of`, with what MXNet's own classes do in ``__call__``."""
    own = original(block)
    if has_own_call(block):
        return _python_of(block, own)

    def python(*args: Any) -> Any:
        with without_hooks(own):
            return own(*args)

    return python


class _Forwarding(threading.local):
    block: Any = None


#: The view whose ``forward`` this thread runs as its class's own ``__call__`` called it.
_FORWARDING = _Forwarding()


@contextmanager
def forwarding(block: Any) -> Iterator[None]:
    """Inside the block of code a view's ``__call__`` has been run."""
    before, _FORWARDING.block = _FORWARDING.block, block
    try:
        yield
    finally:
        _FORWARDING.block = before


def has_own_call(block: Any) -> bool:
    """Whether the class of a view's Block has a ``__call__`` of the user's."""
    return bool(type(block)._graphopt_has_call)


def is_whole(block: Any) -> bool:
    """Whether a view is compiled whole, for all that is known of it."""
    return not _why_not_whole(block, block._graphopt_current())


def _why_not_whole(block: Any, state: State) -> str:
    if state.reason is None:
        state.reason = why_not_whole(block, state.config)
    return state.reason


def _by_its_python(block: Any, args: tuple[Any, ...], error: Exception) -> Any:
    """A call as MXNet makes it where its graph cannot be run: `*` broadcasts arrays only.

    Raises:
        Exception: the error given, as MXNet does not run it either; parameters whose shapes were
            open are so again.
    """
    own = original(block)
    try:
        with left_open(own):
            found = _python_of(block, own)(*args)
            for leaf in _leaves([found]):
                if isinstance(leaf, import_mxnet().nd.NDArray):
                    leaf.wait_to_read()
    except Exception as refusal:
        raise error from refusal
    return found


def _attempt(block: Any, args: tuple[Any, ...], apart: Callable[[], Any]) -> Any:
    """A call of a Block within one that is taken apart; ``apart`` calls it taken apart as well."""
    if not NESTED.are_tried or ACTIVE.tape or has_symbol(args):
        return apart()
    state = block._graphopt_current()
    if state.structure.hooked() or not _may_record(block, state, args):
        return apart()
    _why_not_whole(block, state)  # explain() tells it
    return _measured(block, state, args, original(block), apart)


def _may_record(block: Any, state: State, args: tuple[Any, ...]) -> bool:
    """Whether recording a Block is worth a trial, or already is one."""
    if state.config.strict or looks_up_words(block) is not None:
        return False
    return all(leaf.ctx.device_type == "cpu" for leaf in _leaves(args) if hasattr(leaf, "ctx"))


def _measured(
    block: Any,
    state: State,
    args: tuple[Any, ...],
    plain: Callable[..., Any],
    apart: Callable[[], Any],
) -> Any:
    """A call the way that is the fastest, or one of those that tell."""
    mode = _mode(state)
    ways = state.ways.get(mode)
    if ways is None:
        ways = state.ways.setdefault(
            mode, Ways(mode, _recorded(block, state).programs, state.structure.hybridized())
        )

    def call(way: str) -> Any:
        if way == RECORDED:
            return _recorded(block, state)(plain, args)
        if way == PLAIN:
            return plain(*args)
        with nested(are_tried=bool(ways.why)):  # it was not measured
            return apart()

    is_tried = ways.chosen is None
    found = ways.run(args, call)
    if is_tried and ways.chosen is not None:
        ways.let_go()
        _let_go(state)
    return found


def _let_go(state: State) -> None:
    """Forget what was compiled for ways that are not gone any more."""
    left = {ways.chosen for ways in state.ways.values()}
    if None in left:
        return
    if RECORDED not in left:
        state.recorded = None
    if APART not in left:
        state.fallback = None


def taken_apart(block: Any) -> Any:
    """A view's Block with optimized children."""
    from graphopt.nn.views import view  # whose calls these are

    state = block._graphopt_current()
    found = state.fallback  # another thread may let go of it
    if found is None:
        optimize = functools.partial(view, config=state.config)
        attempt = _attempt if state.config.record is None else None
        state.notes.clear()
        found = partition(original(block), optimize, state.notes, attempt)
        keep_python(found)
        if block._graphopt_is_decorated:
            pairs_of(found).add(block, found)  # the user's Block is the view
        state.fallback = found
    return found


def _recorded(block: Any, state: State) -> RecordedBlock:
    from graphopt.recording.recorded import RecordedBlock

    found = state.recorded  # another thread may let go of it
    if found is None:
        found = state.recorded = RecordedBlock(block, state.config)
    return found


def why_not_whole(block: Any, config: Config) -> str:
    """Why a Block is not compiled whole, whatever its graph is; empty if it may be."""
    reason = why_not_traceable(block)
    if reason:
        return reason
    layer = None if config.strict or config.plans_memory else looks_up_words(block)
    if layer is None:
        return ""
    return f"{describe(layer)} asks for words in use only, which a graph cannot"


def has_symbol(args: tuple[Any, ...]) -> bool:
    """Whether there is a Symbol among arguments."""
    mx = import_mxnet()
    if {*map(type, args)} == {mx.nd.NDArray}:  # as most calls have it
        return False
    return any(isinstance(leaf, mx.sym.Symbol) for leaf in _leaves(args))


def _leaves(args: Any) -> list[Any]:
    found: list[Any] = []
    stack = list(args)
    while stack:
        item = stack.pop()
        if isinstance(item, (list, tuple)):
            stack.extend(item)
        else:
            found.append(item)
    return found
