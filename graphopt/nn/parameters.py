"""What calls read of parameters: arrays of their own, or what was computed in place of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graphopt.compat import import_mxnet

#: A parameter, its list of arrays, and the place there of a context's and that one (``None``
#: without).
Watched = tuple[Any, Any, int, Any]


def is_there(parameter: Any, ctx: Any) -> bool:
    """Whether a parameter holds something there."""
    return parameter._data is not None and ctx in parameter.list_ctx()


def own_array(parameter: Any, ctx: Any) -> Any:
    """What it holds, whatever its ``data()`` makes of that."""
    return parameter._check_and_get(parameter._data, ctx)


def gradients_of(parameters: Iterable[Any]) -> list[Any]:
    """The dense arrays that MXNet has made for gradients, on all contexts."""
    trained = [p for p in parameters if p._grad is not None and p._grad_stype == "default"]
    return [array for parameter in trained for array in parameter._grad]


def is_computed(parameter: Any) -> bool:
    """Whether its class makes another array for every call, as where weights are dropped."""
    return getattr(parameter.data, "__func__", None) is not import_mxnet().gluon.Parameter.data


def is_replaced(parameter: Any, ctx: Any) -> bool:
    """Whether somebody put an array there that has not the parameter's gradient."""
    if parameter._grad is None or not is_there(parameter, ctx):
        return False
    return own_array(parameter, ctx).grad is None


def watched(parameter: Any, ctx: Any) -> Watched:
    """A parameter as it is."""
    arrays = parameter._data
    if not is_there(parameter, ctx):
        return parameter, arrays, 0, None
    array = own_array(parameter, ctx)
    at = next(at for at, each in enumerate(arrays) if each is array)
    return parameter, arrays, at, array


def is_retyped(known: Watched, ctx: Any) -> bool:
    """Whether a parameter holds an array of another dtype or shape now."""
    parameter, _, _, before = known
    if before is None or not is_there(parameter, ctx):
        return False
    now = own_array(parameter, ctx)
    return (now.dtype, now.shape) != (before.dtype, before.shape)


def with_new_arrays(known: Iterable[Watched]) -> list[Any]:
    """Those parameters that hold other arrays now."""
    return [
        parameter
        for parameter, arrays, at, array in known
        if parameter._data is not arrays or (array is not None and arrays[at] is not array)
    ]
