"""What is replaced in MXNet while any thread records, and put back afterwards.

The replaced functions ask for the recorder of the calling thread; without one they do what they did
before.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

from graphopt.backend.turns import TURNS, Kind, Turn
from graphopt.batching import arithmetic, indexing, speedups  # noqa: F401 - they complete Lazy
from graphopt.batching.blocks import call_block
from graphopt.batching.kept import CALL, call_kept
from graphopt.batching.lazy import Lazy, real, refused
from graphopt.batching.operators import handle
from graphopt.batching.recorder import ACTIVE, PAUSED, RECORDING, TRAINING, Recorder, Unrecorded
from graphopt.batching.sums import PendingSum
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError
from graphopt.nn.optimized import Optimized
from graphopt.nn.sources import is_of_users

mx = import_mxnet()
_register = mx.ndarray.register
_autograd = mx.autograd
_NDArray = mx.nd.NDArray
_invoke = _register._imperative_invoke
_verify_slowly = _register._verify_all_legacy_ndarrays
_set_recording, _set_training = _autograd.set_recording, _autograd.set_training
_backward, _grad = _autograd.backward, _autograd.grad
_call_function = _autograd.Function.__call__
_setitem = _NDArray.__setitem__
_Parameter = mx.gluon.Parameter
_finish_deferred_init = _Parameter._finish_deferred_init
_zeros, _ones, _add_n = mx.nd.zeros, mx.nd.ones, mx.nd.add_n
_ADD_N = handle("add_n")
_default_ctx = mx.Context._default_ctx
_optimized_call = Optimized.__call__
_hybrid_call = vars(mx.gluon.HybridBlock).get("__call__")  # MXNet 1.9.1 has none
_block_call = mx.gluon.Block.__call__
_block_setattr = mx.gluon.Block.__setattr__
#: Functions of MXNet that fill an array they have just made.
_FRESH = (mx.ndarray.ndarray.array.__code__, mx.ndarray.ndarray.full.__code__)

_collects = False

_T = TypeVar("_T")


def recorded(recorder: Recorder, run: Callable[[], _T]) -> _T:
    """What ``run`` returns; this thread's calls of MXNet are recorded meanwhile."""
    turn, outer = Turn(), ACTIVE.recorder
    try:
        TURNS.enter(_KIND, turn)
        ACTIVE.recorder = recorder
        return run()
    finally:
        ACTIVE.recorder = outer
        turn.is_over = True
        TURNS.leave()


def autograd_state() -> int:
    """Autograd's flags of this thread."""
    return RECORDING * int(_autograd.is_recording()) + TRAINING * int(_autograd.is_training())


def set_autograd_state(state: int) -> None:
    """Set autograd's flags of this thread."""
    _set_recording(bool(state & RECORDING))
    _set_training(bool(state & TRAINING))


def _install() -> None:
    global _collects
    _register._imperative_invoke = _imperative_invoke
    _register._verify_all_legacy_ndarrays = _verify
    _autograd.set_recording, _autograd.set_training = _note_recording, _note_training
    _autograd.backward = _checked(_backward, "backward")
    _autograd.grad = _checked(_grad, "grad")
    _autograd.Function.__call__ = _call_unrecorded
    _NDArray.__setitem__ = _checked_setitem
    _Parameter._finish_deferred_init = _finish_unrecorded
    mx.nd.zeros, mx.nd.ones = _constant_zeros, _constant_ones
    mx.nd.add_n = _fast_sum
    mx.gluon.HybridBlock.__call__ = _hybrid
    mx.gluon.HybridBlock._call_cached_op = _call_graph
    mx.gluon.Block.__setattr__ = _noted_setattr
    Optimized.__call__ = _call_optimized  # type: ignore[method-assign]
    # Thousands of small objects are made, hardly one of them in a cycle: looking for cycles in
    # everything that lives in the process took a third of the time of recording.
    _collects = _collects or gc.isenabled()
    gc.disable()


def _remove() -> None:
    global _collects
    _register._imperative_invoke = _invoke
    _register._verify_all_legacy_ndarrays = _verify_slowly
    _autograd.set_recording, _autograd.set_training = _set_recording, _set_training
    _autograd.backward, _autograd.grad = _backward, _grad
    _autograd.Function.__call__ = _call_function
    _NDArray.__setitem__ = _setitem
    _Parameter._finish_deferred_init = _finish_deferred_init
    mx.nd.zeros, mx.nd.ones, mx.nd.add_n = _zeros, _ones, _add_n
    if _hybrid_call is not None:
        mx.gluon.HybridBlock.__call__ = _hybrid_call
    elif "__call__" in vars(mx.gluon.HybridBlock):
        del mx.gluon.HybridBlock.__call__
    mx.gluon.HybridBlock._call_cached_op = CALL
    mx.gluon.Block.__setattr__ = _block_setattr
    Optimized.__call__ = _optimized_call  # type: ignore[method-assign]
    if _collects:
        gc.enable()
    _collects = False


_KIND: Final = Kind(_install, _remove)


def _noted_setattr(block: Any, name: str, value: Any) -> None:
    recorder = ACTIVE.recorder
    if recorder is not None:
        if not recorder.is_in_turn and is_of_users(block, name):
            recorder.is_in_turn = True
            told = f"samples that read values go on in turn, as {name!r} of the Block is set"
            recorder.library.note(told)
        recorder.library.note_set(recorder, block, name, value)
    _block_setattr(block, name, value)


def _imperative_invoke(
    operator: int,
    args: Any,
    keys: Any,
    vals: Any,
    out: Any,
    is_np_op: bool,
    output_is_list: bool,
) -> Any:
    recorder = ACTIVE.recorder
    if recorder is None:
        return _invoke(operator, args, keys, vals, out, is_np_op, output_is_list)
    if out is not None or is_np_op:
        if out is not None:
            _before_write(recorder, out)
        args = [real(a) if isinstance(a, Lazy) else a for a in args]
        return _invoke(operator, args, keys, vals, out, is_np_op, output_is_list)
    found = recorder.call(operator, args, keys, vals)
    if output_is_list and type(found) is not list:
        return [found]
    return found


def _verify(op_name: str, func_name: str, args: Any, out: Any) -> None:
    """MXNet's check that no array is of ``mx.np``; its own imports a module at every call."""
    for array in args:
        if type(array) not in (Lazy, _NDArray, PendingSum):
            _verify_slowly(op_name, func_name, args, out)
            return
    if out is not None:
        _verify_slowly(op_name, func_name, args, out)


def _constant(make: Any) -> Any:
    """``mx.nd.zeros`` or ``ones``: asked for once per sample and leaf, made once."""

    def constant(shape: Any, ctx: Any = None, dtype: Any = None, **kwargs: Any) -> Any:
        recorder = ACTIVE.recorder
        if recorder is None or ctx is not None or kwargs or type(shape) is not tuple:
            return make(shape, ctx, dtype, **kwargs)
        device = getattr(_default_ctx, "value", None)
        key = (make, shape, dtype, id(device), recorder.state)
        found = recorder.constants.get(key)
        if found is None:
            found = make(shape, ctx, dtype)
            if type(found) is Lazy:
                recorder.constants[key] = found
                # Another device must not come to lie at its place: most live as long as a `with`.
                recorder.devices.append(device)
        else:
            recorder.calls += 1
        return found

    module: Any = speedups.load()[0]
    return constant if module is None else module.constant(constant, make, _default_ctx)


_constant_zeros, _constant_ones = _constant(_zeros), _constant(_ones)


def _sum(*data: Any, **kwargs: Any) -> Any:
    """``mx.nd.add_n``, most of what trees call, without what MXNet's own looks at before."""
    recorder = ACTIVE.recorder
    if recorder is None or kwargs or not data:
        return _add_n(*data, **kwargs)
    for x in data:
        if type(x) is not Lazy:
            return _add_n(*data)
    return recorder.call(_ADD_N, data, (), ())


def _before_write(recorder: Recorder, out: Any) -> None:
    written = out if isinstance(out, (list, tuple)) else (out,)
    if any(isinstance(array, Lazy) for array in written):
        raise UnsupportedError(
            "out= cannot be an array that a batched Block computes: use the returned array, or"
            " graphopt.batch(net, debug=True)"
        )
    # mx.nd.array() may fill its fresh array through an operator.
    recorder.before_write()


def _checked_setitem(self: Any, key: Any, value: Any) -> None:
    recorder = ACTIVE.recorder
    if recorder is None:
        _setitem(self, key, value)
        return
    if sys._getframe(1).f_code not in _FRESH:
        recorder.before_write()
    if isinstance(value, Lazy):
        value = real(value)
    with Unrecorded():
        _setitem(self, key, value)


def _finish_unrecorded(self: Any) -> None:
    with Unrecorded():
        _finish_deferred_init(self)


def _note_recording(is_recording: bool) -> bool:
    before: bool = _set_recording(is_recording)
    recorder = ACTIVE.recorder
    if recorder is not None:
        was_recording = recorder.state & (RECORDING | PAUSED)
        now = RECORDING if is_recording else PAUSED if was_recording else 0
        recorder.state = recorder.state & TRAINING | now
    return before


def _note_training(train_mode: bool) -> bool:
    before: bool = _set_training(train_mode)
    recorder = ACTIVE.recorder
    if recorder is not None:
        recorder.state = (recorder.state & ~TRAINING) | TRAINING * bool(train_mode)
    return before


def _checked(function: Any, name: str) -> Any:
    """``mx.autograd.backward`` or ``grad``: refused as ``Lazy.backward`` is."""

    def checked(heads: Any, *args: Any, **kwargs: Any) -> Any:
        if ACTIVE.recorder is not None:
            given = heads if isinstance(heads, (list, tuple)) else (heads,)
            if any(isinstance(head, Lazy) for head in given):
                raise refused(f"autograd.{name}() from")
        return function(heads, *args, **kwargs)

    return checked


def _call_unrecorded(self: Any, *inputs: Any) -> Any:
    """A user's ``autograd.Function`` runs at once, and what it returns are real arrays.

    MXNet ties its ``backward`` to the very arrays that it returns; the rows of recorded ones would
    be read elsewhere, without their gradient.
    """
    recorder = ACTIVE.recorder
    if recorder is None:
        return _call_function(self, *inputs)
    recorder.library.note(f"{type(self).__name__}: it is an autograd.Function")
    given = [real(x) if isinstance(x, Lazy) else x for x in inputs]
    with Unrecorded():
        return _call_function(self, *given)


def _call_hybrid(self: Any, *args: Any) -> Any:
    recorder = ACTIVE.recorder
    if recorder is None:
        return _block_call(self, *args)
    return call_block(recorder, self, args)


def _call_graph(self: Any, *args: Any) -> Any:
    """MXNet's call of the graph that it keeps of a hybridized Block."""
    recorder = ACTIVE.recorder
    return CALL(self, *args) if recorder is None else call_kept(recorder, self, args)


def _methods() -> tuple[Any, Any, Any]:
    """``Lazy.__getitem__``, ``HybridBlock.__call__`` and ``mx.nd.add_n`` while somebody records."""
    module: Any = speedups.load()[0]
    if module is None:
        return indexing.get, _call_hybrid, _sum
    speedups.configure()
    base = mx.gluon.HybridBlock
    found: tuple[Any, Any, Any] = module.foreign(
        Lazy, indexing.get, base, call_block, _block_call, _add_n, _ADD_N
    )
    return found


Lazy.__getitem__, _hybrid, _fast_sum = _methods()


def _call_optimized(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A Block that graphopt.optimize made: it would compile anew for every number of rows."""
    recorder = ACTIVE.recorder
    if recorder is None or kwargs:
        return _optimized_call(self, *args, **kwargs)
    if isinstance(self, mx.gluon.HybridBlock):
        return call_block(recorder, self, args)
    return _block_call(self, *args)
