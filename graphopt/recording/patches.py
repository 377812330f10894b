"""What is replaced in MXNet while any thread records calls, and put back afterwards.

The replaced functions ask for the tape of the calling thread; without one they do what they did.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from graphopt.backend.turns import TURNS, Kind, Turn
from graphopt.batching.operators import name_of
from graphopt.compat import import_mxnet
from graphopt.errors import HigherOrderError
from graphopt.ir.ops import info
from graphopt.recording.active import ACTIVE, Unrecorded, flush_recorded
from graphopt.recording.arrays import PENDING, PendingNd, PendingNp
from graphopt.recording.calls import INVOKE
from graphopt.recording.children import CALL, child_of
from graphopt.recording.tape import Tape

mx = import_mxnet()
_register = mx.ndarray.register
_autograd = mx.autograd
_Nd, _Np = mx.nd.NDArray, mx.np.ndarray
_set_nd, _set_np, _plain_grad = _Nd.__setitem__, _Np.__setitem__, _autograd.grad
_get_index, _sync_copyfrom = _Nd._get_index_nd, _Nd._sync_copyfrom
_Parameter, _Hybrid = mx.gluon.Parameter, mx.gluon.HybridBlock
_finish_deferred_init = _Parameter._finish_deferred_init
_call_cached_op = _Hybrid._call_cached_op
_verify_nd, _verify_np = _register._verify_all_legacy_ndarrays, _register._verify_all_np_ndarrays
_check_np = mx.gluon.block._check_all_np_ndarrays
_GRAD: Final = inspect.signature(_plain_grad)
#: Notes on a Block whose graph could not be made with what flags.
_WITHOUT_GRAPH: Final = "_graphopt_without_graph"
#: Functions of MXNet that fill an array they have just made.
_FRESH: Final = frozenset(
    {
        mx.ndarray.ndarray.array.__code__,
        mx.ndarray.ndarray.full.__code__,
        mx.np.array.__code__,
    }
)


def _flushed_before(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        flush_recorded()
        return function(*args, **kwargs)

    return call


#: Functions that change what recorded calls depend on: autograd's state, gradients, other arrays
#: and numbers that are drawn.
_FLUSHED_BEFORE: Final = tuple(
    (owner, name, getattr(owner, name), _flushed_before(getattr(owner, name)))
    for owner, names in (
        (_autograd, ("set_recording", "set_training", "backward")),
        (_Nd, ("backward",)),
        (mx.kvstore.KVStore, ("pull", "pushpull", "broadcast", "row_sparse_pull")),
        (mx.random, ("seed",)),
    )
    for name in names
)


def recorded(tape: Tape, run: Callable[[], Any]) -> Any:
    """What ``run`` returns; this thread's calls of MXNet are recorded meanwhile.

    Not while samples are recorded, which replaces the same functions.
    """
    turn, outer = Turn(), ACTIVE.tape
    try:
        if not TURNS.try_enter(_KIND, turn):
            return run()
        ACTIVE.tape = tape
        try:
            found = run()
        except Exception:
            with suppress(Exception):
                tape.flush()  # the Block may have kept something, or hand it over in what it raises
            raise
        tape.flush(found)
        return found
    finally:
        ACTIVE.tape = outer
        turn.is_over = True
        TURNS.leave()


def _install() -> None:
    _register._imperative_invoke = _invoke
    for owner, name, _, flushed in _FLUSHED_BEFORE:
        setattr(owner, name, flushed)
    _autograd.grad = _grad
    _Nd.__setitem__, _Np.__setitem__ = _checked(_set_nd), _checked(_set_np)
    _Nd._get_index_nd, _Nd._sync_copyfrom = _index_of_real, _copy_from_numpy
    _Parameter._finish_deferred_init = _finish_unrecorded
    _Hybrid._call_cached_op, mx.nd.CachedOp.__call__ = _call_child, _run_graph
    _register._verify_all_legacy_ndarrays = _verified(_verify_nd, PendingNd, _Nd)
    _register._verify_all_np_ndarrays = _verified(_verify_np, PendingNp, _Np)
    mx.gluon.block._check_all_np_ndarrays = _check_returned


def _remove() -> None:
    _register._imperative_invoke = INVOKE
    for owner, name, function, _ in _FLUSHED_BEFORE:
        setattr(owner, name, function)
    _autograd.grad = _plain_grad
    _Nd.__setitem__, _Np.__setitem__ = _set_nd, _set_np
    _Nd._get_index_nd, _Nd._sync_copyfrom = _get_index, _sync_copyfrom
    _Parameter._finish_deferred_init = _finish_deferred_init
    _Hybrid._call_cached_op, mx.nd.CachedOp.__call__ = _call_cached_op, CALL
    _register._verify_all_legacy_ndarrays = _verify_nd
    _register._verify_all_np_ndarrays = _verify_np
    mx.gluon.block._check_all_np_ndarrays = _check_np


_KIND: Final = Kind(_install, _remove)


def _invoke(
    operator: int,
    args: Any,
    keys: Any,
    vals: Any,
    out: Any,
    is_np_op: bool,
    output_is_list: bool,
) -> Any:
    tape = ACTIVE.tape
    if tape is None:
        return INVOKE(operator, args, keys, vals, out, is_np_op, output_is_list)
    if out is None:
        return tape.call(operator, args, keys, vals, is_np=is_np_op, as_list=output_is_list)
    outputs = out if isinstance(out, (list, tuple)) else (out,)
    states = [args[at] for at in info(name_of(operator)).writes(len(args))]  # of an optimizer
    tape.flush_before_writing(*outputs, *states)
    with Unrecorded():
        return INVOKE(operator, args, keys, vals, out, is_np_op, output_is_list)


@functools.wraps(_plain_grad)
def _grad(*args: Any, **kwargs: Any) -> Any:
    if ACTIVE.tape is not None:
        given = _GRAD.bind(*args, **kwargs).arguments
        if given.get("create_graph"):
            raise HigherOrderError("autograd.grad(create_graph=True) within a recorded Block")
    flush_recorded()
    return _plain_grad(*args, **kwargs)


def _checked(function: Any) -> Any:
    def setitem(self: Any, key: Any, value: Any) -> None:
        tape = ACTIVE.tape
        if tape is None:
            function(self, key, value)
            return
        if type(self) in PENDING or sys._getframe(1).f_code not in _FRESH:
            tape.flush_before_writing(self)
        for array in (value, *(key if isinstance(key, tuple) else (key,))):
            if type(array) in PENDING:
                array.handle  # noqa: B018 - makes it
        with Unrecorded():
            function(self, key, value)

    return setitem


def _copy_from_numpy(self: Any, numbers: Any) -> None:
    if ACTIVE.tape is not None:
        ACTIVE.tape.flush_before_writing(self)
    _sync_copyfrom(self, numbers)


def _index_of_real(self: Any, key: tuple[Any, ...]) -> Any:
    """Index arrays are made ready at once, as MXNet insists on real ones."""
    if ACTIVE.tape is None:
        return _get_index(self, key)
    for array in key:
        if type(array) in PENDING:
            array.handle  # noqa: B018 - makes it
    with Unrecorded():
        return _get_index(self, key)


def _verified(slowly: Any, *kinds: Any) -> Any:
    """MXNet's check of which interface arrays are; its own imports a module at every call."""

    def verify(op_name: str, func_name: str, args: Any, out: Any) -> None:
        if out is not None or any(type(array) not in kinds for array in args):
            slowly(op_name, func_name, args, out)

    return verify


def _check_returned(found: Any) -> None:
    if type(found) is not PendingNp:
        _check_np(found)


def _finish_unrecorded(self: Any) -> None:
    if ACTIVE.tape is not None and self._deferred_init and ACTIVE.tape.draws():
        flush_recorded()  # an initializer draws behind what was drawn before
    with Unrecorded():
        _finish_deferred_init(self)


def _call_child(self: Any, *args: Any) -> Any:
    """MXNet's call of a hybridized child's graph, which is made first; see :func:`_run_graph`."""
    if ACTIVE.tape is not None and self._cached_op is None and not _has_graph(self, args):
        return _inlined(self, args)
    outer, ACTIVE.child = ACTIVE.child, self
    try:
        return _call_cached_op(self, *args)
    finally:
        ACTIVE.child = outer


def _has_graph(block: Any, args: Sequence[Any]) -> bool:
    """Whether MXNet can make a Block's graph; if not, its Python may do for arrays."""
    own = vars(block)
    if own.get(_WITHOUT_GRAPH) is block._flags:
        return False
    try:
        block._build_cache(*args)
    except Exception:  # noqa: BLE001 - Python says so again, if it fails for arrays as well
        if isinstance(block, mx.gluon.SymbolBlock):
            return True
        own[_WITHOUT_GRAPH] = block._flags  # which are others once it is hybridized again
        return False
    return True


def _inlined(block: Any, args: Sequence[Any]) -> Any:
    block.__dict__["_active"] = False
    try:
        return _Hybrid.forward(block, *args)  # which called this, maybe from a user's own forward
    finally:
        block.__dict__["_active"] = True


def _run_graph(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A call of a CachedOp, which is recorded if it is the called child's."""
    tape, block = ACTIVE.tape, ACTIVE.child
    if tape is None or kwargs or block is None or block._cached_op is not self:
        return CALL(self, *args, **kwargs)
    child = None if block._callback else child_of(block, self)
    if child is None:
        tape.flush()  # it may draw, or write into what recorded calls read
        return CALL(self, *args)
    if child.symbol is None:
        made: list[Any] = []
    elif child.is_taken_apart(block):

        def call(op: int, given: list[Any], attrs: dict[str, str]) -> Any:
            keys, values = [*attrs], [*attrs.values()]
            return tape.call(op, given, keys, values, is_np=child.is_np, as_list=True)

        made = child.one_by_one(call, args)
    else:
        made = tape.call_child(child, self, args)
    found = [made[place] if place >= 0 else args[~place] for place in child.places]
    return found if len(found) > 1 else found[0]
