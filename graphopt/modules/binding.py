"""Symbols that are bound to optimized executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.analysis.sparse import has_sparse_gradient, makes_sparse
from graphopt.backend.documents import document_of, text_of
from graphopt.backend.refused import RefusedError
from graphopt.compat import import_mxnet
from graphopt.frontend.symbol import data_names
from graphopt.ir.types import dtype_name
from graphopt.modules.executor import OptimizedExecutor, executor_of
from graphopt.nn.config import Config

mx = import_mxnet()

_DEFAULT_STORAGE = ("0", "-1", "default", "undefined")
_REQUESTS = "write", "add", "null"
_NO_ARGUMENTS = "it has no arguments"


class BindingSymbol(mx.sym.Symbol):  # type: ignore[misc, name-defined]
    """A Symbol whose ``simple_bind`` makes an :class:`OptimizedExecutor`."""

    def __init__(self, symbol: Any, config: Config, data: Collection[str] = ()) -> None:
        """Bind such a Symbol.

        Args:
            symbol: what is bound.
            config: what the user asked for.
            data: names of arguments that change from call to call, besides those that
                ``simple_bind`` is given shapes of.
        """
        twin = symbol.__copy__()
        super().__init__(twin.handle)
        twin.handle = mx.base.SymbolHandle()  # this one frees it
        self.config, self.data = config, frozenset(data)

    def __reduce__(self) -> Any:
        """As the Symbol that it was made of."""
        return mx.sym.load_json, (text_of(self),)

    def simple_bind(
        self,
        ctx: Any,
        grad_req: Any = "write",
        type_dict: Mapping[str, Any] | None = None,
        stype_dict: Mapping[str, str] | None = None,
        group2ctx: Mapping[str, Any] | None = None,
        shared_arg_names: Sequence[str] | None = None,
        shared_exec: Any = None,
        shared_buffer: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """As MXNet's; arguments without shapes in ``kwargs`` are taken for parameters.

        Returns:
            An :class:`OptimizedExecutor`, or MXNet's where an argument is sparse or the graph is
            spread over contexts.

        Raises:
            RuntimeError: shapes or dtypes are missing or contradict each other.
            RefusedError: ``grad_req`` has other words than MXNet's, or not as many as arguments;
                or ``shared_exec`` has no such parameter or state.
        """
        reason = self._why_plain(stype_dict, group2ctx)
        if not self.list_arguments():
            reason = _NO_ARGUMENTS
        types = None if reason else self._types(kwargs, type_dict)
        if types is None:
            reason = reason or "its shapes or dtypes do not follow from those that were given"
            made = super().simple_bind(
                *(ctx, grad_req, type_dict, stype_dict, group2ctx, shared_arg_names),
                *(shared_exec, shared_buffer),
                **kwargs,
            )
            made.graphopt_why_plain = reason
            return made
        arguments, states = types
        requests = _requests(grad_req, [*arguments])
        arrays, gradients = {}, {}
        for name, (shape, dtype) in arguments.items():
            gradient = None
            if name not in (shared_arg_names or ()):
                arrays[name] = _buffer(shared_buffer, name, shape, dtype, ctx)
            elif shared_exec is None:
                arrays[name] = mx.nd.zeros(shape, ctx, dtype)
            else:
                arrays[name] = _shared(shared_exec.arg_dict, name, shape, dtype)
                if shared_exec.grad_dict.get(name) is not None:
                    gradient = _shared(shared_exec.grad_dict, name, shape, dtype)
            if gradient is None and requests[name] != "null":
                gradient = mx.nd.zeros(shape, ctx, dtype)
            gradients[name] = gradient if requests[name] != "null" else None
        aux = {
            name: mx.nd.zeros(shape, ctx, dtype)
            if shared_exec is None
            else _shared(shared_exec.aux_dict, name, shape, dtype)
            for name, (shape, dtype) in states.items()
        }
        data = {*kwargs, *self.data} & {*arguments}
        parent = shared_exec if isinstance(shared_exec, OptimizedExecutor) else None
        return executor_of(self, self.config, data, ctx, arrays, gradients, aux, requests, parent)

    def _why_plain(self, stype_dict: Any, group2ctx: Any) -> str:
        """Why MXNet's executor has to run it; empty if it need not."""
        if group2ctx:
            return "its parts run on several contexts"
        kinds = {name: kind for name, kind in (stype_dict or {}).items() if kind != "default"}
        for name, attributes in self.attr_dict().items():
            kind = attributes.get("__storage_type__", "0")
            if kind not in _DEFAULT_STORAGE:
                kinds[name] = kind
        if kinds:
            return f"argument {next(iter(kinds))!r} is sparse"
        for node in document_of(self)["nodes"]:
            op, attrs = node["op"], node.get("attrs", {})
            if makes_sparse(op, attrs) or has_sparse_gradient(op, attrs):
                return f"{node['name']!r} ({op}) asks for sparse arrays"
        return ""

    def _types(
        self, shapes: Mapping[str, Any], dtypes: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Shape and dtype of each argument and each state; ``None`` if they do not follow."""
        names, states = self.list_arguments(), self.list_auxiliary_states()
        known = {*names, *states}
        shapes = {n: s for n, s in shapes.items() if n in known and isinstance(s, tuple)}
        if dtypes is None:  # as in MXNet; where some are given, all others have to follow
            own = self.attr_dict()
            dtypes = {n: np.float32 for n in names if "__dtype__" not in own.get(n, {})}
        dtypes = {n: d for n, d in dtypes.items() if n in known}
        try:
            found, _, kept = self.infer_shape(**shapes)
            kinds, outputs, kept_kinds = self.infer_type_partial(**dtypes)
        except mx.MXNetError:
            return None  # MXNet's simple_bind says what is wrong
        if found is None or None in (*kinds, *outputs, *kept_kinds) or len({*names}) < len(names):
            return None
        return _typed(names, found, kinds), _typed(states, kept, kept_kinds)


def optimized_executor(executor: Any, config: Config, data: Collection[str] | None = None) -> Any:
    """An executor on the arrays of one of MXNet's, or that one where it has to run.

    Args:
        executor: an ``mx.executor.Executor``.
        config: what the user asked for.
        data: names of arguments that change from call to call; by default those that no usual
            parameter is named like.

    Raises:
        RefusedError: an array for a gradient has fewer numbers than its argument.
    """
    symbol = executor._symbol
    if twice := [name for name, n in Counter(symbol.list_arguments()).items() if n > 1]:
        executor.graphopt_why_plain = f"several of its arguments are named {twice[0]!r}"
        return executor
    arrays = executor.arg_dict
    if not arrays:
        executor.graphopt_why_plain = _NO_ARGUMENTS
        return executor
    gradients = executor.grad_dict if executor.grad_arrays else {}  # None if bound without any
    requests = _requests(executor._grad_req, [*arrays])
    reason = _why_kept(executor, arrays, gradients) or _why_unlike(arrays, gradients, requests)
    if reason:
        executor.graphopt_why_plain = reason
        return executor
    if data is None:
        data = data_names(symbol)
    made = executor_of(
        *(symbol, config, {*data} & {*arrays}, executor._ctx, arrays),
        *(gradients, executor.aux_dict, requests),
    )
    made.adopt(executor)
    return made


def _why_kept(executor: Any, arrays: Mapping[str, Any], gradients: Mapping[str, Any]) -> str:
    """Why MXNet's executor has to run, by contexts and kinds of arrays; empty if it need not."""
    if executor._group2ctx:
        return "its parts run on several contexts"
    for kind in (arrays, gradients, executor.aux_dict):
        for name, array in kind.items():
            if array is not None and array.stype != "default":
                return f"argument {name!r} is sparse"
    return ""


def _why_unlike(
    arrays: Mapping[str, Any], gradients: Mapping[str, Any], requests: Mapping[str, str]
) -> str:
    """Which gradient is to be of another dtype or shape than its argument; empty if none is.

    MXNet casts some and refuses others; engines of graphopt write gradients like arguments.

    Raises:
        RefusedError: it has too few numbers; MXNet writes behind its end.
    """
    for name, gradient in gradients.items():
        if gradient is None or requests[name] == "null":
            continue
        array = arrays[name]
        theirs, its = (f"{dtype_name(a.dtype)}{a.shape}" for a in (gradient, array))
        if gradient.size < array.size:
            raise RefusedError(
                f"the gradient of {name!r} is {theirs} and {name!r} {its}: give an array of its"
                " shape and dtype"
            )
        if theirs != its:
            return f"the gradient of {name!r} is {theirs} and {name!r} {its}"
    return ""


def _typed(names: Sequence[str], shapes: Any, dtypes: Any) -> dict[str, Any]:
    return dict(zip(names, zip(shapes, dtypes, strict=True), strict=True))


def _requests(grad_req: Any, names: Sequence[str]) -> dict[str, str]:
    """What is to become of each argument's gradient.

    Raises:
        RefusedError: one is not "write", "add" or "null", or a list is not one for each argument.
    """
    if grad_req is None or isinstance(grad_req, str):
        found = dict.fromkeys(names, "null" if grad_req is None else grad_req)
    elif isinstance(grad_req, Mapping):
        found = {name: grad_req.get(name, "null") for name in names}
    elif isinstance(grad_req, Sequence) and len(grad_req) == len(names):
        found = dict(zip(names, grad_req, strict=True))
    else:
        raise RefusedError(
            f"grad_req is {grad_req!r}: give one for all arguments, a dictionary by name, or a list"
            f" of {len(names)}"
        )
    for name, request in found.items():
        if request not in _REQUESTS:
            allowed = ", ".join(map(repr, _REQUESTS))
            raise RefusedError(f"grad_req of {name!r} is {request!r}: give one of {allowed}")
    return found


def _shared(arrays: Mapping[str, Any], name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """A parameter or a state of another executor.

    Raises:
        RefusedError: it does not fit; with arrays of their own, each would learn something else.
    """
    array = arrays.get(name)
    if array is None:
        raise RefusedError(
            f"there is no {name!r} to share: the default bucket, or the shared module, has to have"
            " all parameters and states"
        )
    if array.shape != shape or array.dtype != dtype:
        theirs, ours = (
            f"{dtype_name(kind)}{extents}"
            for kind, extents in ((array.dtype, array.shape), (dtype, shape))
        )
        raise RefusedError(
            f"{name!r} is {theirs} in what it is shared with and {ours} here: give all buckets, and"
            " modules that share, the same parameters and states"
        )
    return array


def _buffer(
    buffers: dict[str, Any] | None, name: str, shape: tuple[int, ...], dtype: Any, ctx: Any
) -> Any:
    """An array that executors of one shape share, as only one of them runs at a time."""
    array = (buffers or {}).get(name)
    if array is not None and array.shape == shape and array.dtype == dtype and array.ctx == ctx:
        return array
    made = mx.nd.zeros(shape, ctx, dtype)
    if buffers is not None and (array is None or array.size < made.size):
        buffers[name] = made
    return made
