"""``graphopt.optimize``: the function and the decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from graphopt.errors import InputError, UnsupportedError
from graphopt.nn.config import Config, OptimizeMode
from graphopt.passes import registry
from graphopt.pipeline.base import Pass
from graphopt.pipeline.spec import build

_MODES = ("auto", "training", "inference")


def optimize(
    net: Any = None,
    *,
    passes: str | Sequence[Pass] = "default",
    mode: OptimizeMode = "auto",
    memory: str | int | None = None,
    check: bool = False,
    precise: bool = False,
    strict: bool = False,
) -> Any:
    """Make a model faster: same parameters, same outputs, same gradients.

    Args:
        net: a Gluon Block, a Block subclass, a function that returns a Block, or a Symbol. Left
            out, a decorator with these options is returned.
        passes: a pipeline: text, a name (``default``, ``training``, ``inference``, ``none``), or
            passes.
        mode: ``auto`` compiles a training and an inference graph and picks by autograd's state;
            ``training`` always the first; ``inference`` always the second with parameters frozen as
            they are at the first call (``.reset()`` reads them anew), which allows the most.
        memory: budget of a training step, such as ``"900MB"``; not available yet.
        check: compare every pass's result with the original, on the first call's values.
        precise: no pass may round differently.
        strict: raise where a pass fails or a Block cannot be compiled, instead of reporting it.

    Returns:
        For a Block, an instance of the same class with the same parameters and the methods
        ``receipts()``, ``remarks()``, ``graph()``, ``explain()``, ``report(path)``, ``export()``
        and ``reset()``. For a class or function, the same that makes such Blocks. For a Symbol, a
        callable :class:`graphopt.api.loading.Model`. Compilation happens at the first call with new
        input types. What was given is left as it was.

    Raises:
        InputError: ``net`` is none of those, or an option has no such value.
        ParseError: the pipeline names an unknown pass.
    """
    config = _config(passes, mode, memory, check=check, precise=precise, strict=strict)
    if net is None:
        return functools.partial(_optimize, config=config)
    return _optimize(net, config)


def _config(
    passes: str | Sequence[Pass],
    mode: OptimizeMode,
    memory: str | int | None,
    *,
    check: bool,
    precise: bool,
    strict: bool,
) -> Config:
    if mode not in _MODES:
        raise InputError(f"mode {mode!r} is none of {', '.join(_MODES)}")
    if memory is not None:
        raise UnsupportedError("memory= is not available in this version; leave it out")
    build(passes, registry)
    return Config(
        passes if isinstance(passes, str) else tuple(passes), mode, check, precise, strict
    )


def _optimize(net: Any, config: Config) -> Any:
    from graphopt.compat import import_mxnet
    from graphopt.nn.optimized import optimized_class, view

    mx = import_mxnet()
    if isinstance(net, mx.sym.Symbol):
        from graphopt.api.loading import Model

        return Model(net, {}, config)
    if inspect.isclass(net):
        if not issubclass(net, mx.gluon.Block):
            raise InputError(f"cannot optimize class {net.__name__}: it is no Gluon Block")
        return optimized_class(net, config)
    if inspect.isfunction(net) or isinstance(net, functools.partial):
        return _factory(net, config)
    return view(net, config)


def _factory(make: Any, config: Config) -> Any:
    @functools.wraps(make)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return _optimize(make(*args, **kwargs), config)

    return wrapper
