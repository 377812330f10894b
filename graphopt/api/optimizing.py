"""``graphopt.optimize``: the function and the decorator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphopt.errors import InputError
from graphopt.memory.sizes import parse_size
from graphopt.nn.config import Config, OptimizeMode, checked_shapes
from graphopt.passes import registry
from graphopt.pipeline.base import Pass
from graphopt.pipeline.spec import build

_MODES = ("auto", "training", "inference")


def optimize(
    net: Any = ...,
    *,
    passes: str | Sequence[Pass] = "default",
    mode: OptimizeMode = "auto",
    memory: str | int | None = None,
    max_shapes: Mapping[str, Sequence[int]] | None = None,
    check: bool = False,
    precise: bool = False,
    strict: bool = False,
    record: bool | None = None,
) -> Any:
    """Make a model faster: same parameters, same outputs, same gradients.

    Args:
        net: a Gluon Block, a Block subclass, a function that returns a Block, or a Symbol. Left
            out, a decorator with these options is returned. Or a ``gluon.Trainer``, whose weights
            one kernel updates then; of the options it takes ``precise`` and ``strict``. Or an
            ``mx.mod.Module``, ``BucketingModule`` or ``SequentialModule``, bound or not, or an
            executor; these take all but ``mode`` and ``record``.
        passes: a pipeline: text, a name (``default``, ``training``, ``inference``, ``none``), or
            passes.
        mode: ``auto`` compiles a training and an inference graph and picks by autograd's state;
            parameters are computed into the latter, and anew when they were written to.
            ``training`` always takes the first; ``inference`` always the second with parameters as
            they are at the first call (``.reset()`` reads them anew).
        memory: budget of a training step, such as ``"900MB"`` (millions of bytes), ``"1.5GiB"`` or
            a number of bytes: for inputs, parameters, their gradients, and what the step computes.
            Values that do not fit are computed again in backward. Training then runs on MXNet's
            executors: one backward per call, and steps of several shapes share their memory.
        max_shapes: the largest shape of inputs, by name: training takes the memory of these at
            once, and all smaller shapes run in it. Without a budget nothing is computed again.
        check: compare every pass's result with the original, on the first call's values.
        precise: no pass may round differently.
        strict: raise where a pass fails or a Block cannot be compiled, instead of reporting it.
        record: where a Block cannot be traced (a plain Block, Python that asks for shapes), run its
            Python at every call and write down which operators it calls; they run as one compiled
            graph when it returns or reads a value. ``False`` takes such a Block child by child.
            Left out, the first calls tell which of these, or the Block as it is, is the fastest.

    Returns:
        For a Block, an instance of the same class with the same parameters and the methods
        ``receipts()``, ``remarks()``, ``graph()``, ``explain()``, ``report(path)``,
        ``memory_plan()``, ``export()``, ``on_trial`` and ``reset()``. For a class or function, the
        same that makes such Blocks. For a Symbol, a callable :class:`graphopt.api.model.Model`.
        For a Trainer, one of the same class with the same states and ``explain()``. For a module
        or a ``FeedForward``, one of the same class, with ``explain()``, ``executors()``,
        ``receipts()``, ``graph()`` and ``report(path)`` besides; for an executor, one on the same
        arrays. Compilation happens at the first call with new input types. What was given is left
        as it was.

    Raises:
        InputError: ``net`` is none of those, or an option has no such value.
        ParseError: the pipeline names an unknown pass.
    """
    config = checked_config(
        passes, mode, memory, max_shapes, check=check, precise=precise, strict=strict, record=record
    )
    if net is ...:
        return functools.partial(_optimize, config=config)
    return _optimize(net, config)


def checked_config(
    passes: str | Sequence[Pass],
    mode: OptimizeMode,
    memory: str | int | None = None,
    max_shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    check: bool,
    precise: bool,
    strict: bool,
    record: bool | None = None,
) -> Config:
    """What :func:`optimize` is asked for.

    Raises:
        InputError: an option has no such value, or two do not go together.
        ParseError: the pipeline names an unknown pass.
    """
    if mode not in _MODES:
        raise InputError(f"mode {mode!r} is none of {', '.join(_MODES)}")
    if passes != "default":
        build(passes, registry)
    return Config(
        passes if isinstance(passes, str) else tuple(passes),
        mode,
        check,
        precise,
        strict,
        None if memory is None else parse_size(memory),
        None if max_shapes is None else checked_shapes(max_shapes),
        record,
    )


def _optimize(net: Any, config: Config) -> Any:
    from graphopt.compat import import_mxnet
    from graphopt.nn.decorated import optimized_class
    from graphopt.nn.views import view

    mx = import_mxnet()
    if isinstance(net, mx.gluon.Trainer):
        return _trainer(net, config)
    if isinstance(net, mx.sym.Symbol):
        from graphopt.api.model import Model

        return Model(net, {}, config)
    if isinstance(net, mx.executor.Executor | mx.mod.BaseModule | mx.model.FeedForward):
        return _before_gluon(net, config)
    if inspect.isclass(net):
        if not issubclass(net, mx.gluon.Block):
            raise InputError(f"cannot optimize class {net.__name__}: it is no Gluon Block")
        return optimized_class(net, config)
    if isinstance(net, staticmethod | classmethod):
        return type(net)(_factory(net.__func__, config))
    if inspect.isfunction(net) or inspect.ismethod(net) or isinstance(net, functools.partial):
        return _factory(net, config)
    return view(net, config)


def _before_gluon(made: Any, config: Config) -> Any:
    """A view of a module, or an executor on the arrays of another."""
    from graphopt.compat import import_mxnet
    from graphopt.modules.binding import optimized_executor
    from graphopt.modules.feed_forward import feed_forward_view
    from graphopt.modules.module import view_of

    if config.record:
        raise InputError("record= is for Blocks; a Symbol is a graph already")
    if config.mode != "auto":
        raise InputError("mode= is for Blocks and Symbols; a module is told whether it trains")
    if isinstance(made, import_mxnet().executor.Executor):
        executor = optimized_executor(made, config)
        if executor is not made:
            executor.take_over(made)
        return executor
    if isinstance(made, import_mxnet().model.FeedForward):
        return feed_forward_view(made, config)
    return view_of(made, config)


def _trainer(trainer: Any, config: Config) -> Any:
    from graphopt.optimizers.trainer import trainer_view

    if replace(config, precise=False, strict=False) != Config():
        raise InputError(
            "a Trainer takes no options but precise= and strict=; the others are of nets"
        )
    return trainer_view(trainer, precise=config.precise, strict=config.strict)


def _factory(make: Any, config: Config) -> Any:
    @functools.wraps(make)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return _optimize(make(*args, **kwargs), config)

    return wrapper
