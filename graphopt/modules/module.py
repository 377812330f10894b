"""Optimized views of ``mx.mod.Module``, ``BucketingModule`` and ``SequentialModule``.

A view is an instance of a subclass of the user's own class with the same attributes but one: the
Symbols that it binds make optimized executors. One that is bound already goes on with the arrays
that it has. The user's object is not touched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from graphopt.api.model import Model
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.ir.graph import Graph
from graphopt.modules.binding import BindingSymbol, optimized_executor
from graphopt.modules.executor import OptimizedExecutor
from graphopt.modules.updates import Updates
from graphopt.nn.config import Config
from graphopt.pipeline.manager import Receipt

mx = import_mxnet()


class Shown:
    """What views have besides MXNet's methods."""

    def executors(self) -> list[Any]:
        """Those that are bound, of each bucket and each context."""
        raise NotImplementedError

    def explain(self) -> str:
        """What was done, on which engines it runs, what updates the weights, and why not more."""
        told = dict.fromkeys(_told(executor) for executor in self.executors())
        lines = [*told] or ["nothing is bound yet: call .bind() or .fit()"]
        updates = dict.fromkeys(module._graphopt_updates.explain() for module in self._graphopt())
        kept = dict.fromkeys(type(module).__name__ for module in self._graphopt_kept())
        left = [f"{name} is left as it is: nothing is known of its class" for name in kept]
        return "\n".join([*lines, *updates, *left])

    def receipts(self) -> dict[str, tuple[Receipt, ...]]:
        """Per compiled signature (mode and input types), a receipt per pass."""
        found: dict[str, tuple[Receipt, ...]] = {}
        for model in self._graphopt_models():
            found |= model.receipts()
        return found

    def graph(self) -> Graph:
        """The optimized graph compiled last, of the module (or bucket) used last.

        Raises:
            InputError: nothing was compiled yet.
        """
        return self._graphopt_last().graph()

    def report(self, path: str | Path) -> Path:
        """Write an HTML report about that graph; returns the path.

        Raises:
            InputError: nothing was compiled yet.
        """
        return self._graphopt_last().report(path)

    def _graphopt(self) -> list[Any]:
        """The modules in it."""
        raise NotImplementedError

    def _graphopt_kept(self) -> list[Any]:
        """Modules in it that are no views."""
        return []

    def _graphopt_models(self) -> list[Model]:
        found = [e.model for e in self.executors() if isinstance(e, OptimizedExecutor)]
        return [*{id(model): model for model in found}.values()]

    def _graphopt_last(self) -> Model:
        models = self._graphopt_models()
        if not models:
            raise InputError("the module has no compiled graph yet: bind it and call it once first")
        return models[-1]


class OptimizedModule(Shown):
    """Mixin in front of ``mx.mod.Module``; see the module's docstring."""

    _graphopt_updates: Updates
    _exec_group: Any

    def update(self) -> None:
        """Make the weights new by the gradients of the last backward, as MXNet's."""
        own = mx.mod.Module.update
        if _method_of(self, "update") is own and self.optimizer_initialized:  # type: ignore[attr-defined]
            self._params_dirty = True
            if self._graphopt_updates(self):
                return
        super().update()  # type: ignore[misc]

    def executors(self) -> list[Any]:
        """Those that are bound, one per context."""
        return [] if self._exec_group is None else list(self._exec_group.execs)

    def _graphopt(self) -> list[Any]:
        return [self]


class OptimizedBuckets(Shown):
    """Mixin in front of ``mx.mod.BucketingModule``; see the module's docstring."""

    _graphopt_config: Config
    _buckets: dict[Any, Any]
    _curr_module: Any

    def bind(self, *args: Any, **kwargs: Any) -> None:
        """Bind the default bucket, as MXNet's."""
        super().bind(*args, **kwargs)  # type: ignore[misc]
        self._graphopt_adopt()

    def switch_bucket(self, *args: Any, **kwargs: Any) -> None:
        """Go on with a bucket, bound now if it was not, as MXNet's."""
        super().switch_bucket(*args, **kwargs)  # type: ignore[misc]
        self._graphopt_adopt()

    def executors(self) -> list[Any]:
        """Those of all buckets, the one used now last."""
        return [executor for module in self._graphopt() for executor in module.executors()]

    def _graphopt(self) -> list[Any]:
        others = [m for m in self._buckets.values() if m is not self._curr_module]
        return others if self._curr_module is None else [*others, self._curr_module]

    def _graphopt_adopt(self) -> None:
        """Make views of modules that MXNet made of our Symbols."""
        for module in self._buckets.values():
            if not isinstance(module, OptimizedModule):
                module.__class__ = _class_of(type(module), OptimizedModule)  # type: ignore[arg-type]
                module._graphopt_updates = Updates(self._graphopt_config)


class OptimizedSequence(Shown):
    """Mixin in front of ``mx.mod.SequentialModule``; see the module's docstring."""

    _modules: list[Any]

    def executors(self) -> list[Any]:
        """Those of all modules that have views, in their order."""
        return [executor for module in self._graphopt() for executor in module.executors()]

    def _graphopt(self) -> list[Any]:
        return [each for view in self._graphopt_views() for each in view._graphopt()]

    def _graphopt_kept(self) -> list[Any]:
        own = [module for module in self._modules if not isinstance(module, Shown)]
        return [*own, *(each for view in self._graphopt_views() for each in view._graphopt_kept())]

    def _graphopt_views(self) -> list[Shown]:
        return [module for module in self._modules if isinstance(module, Shown)]


def module_view(module: Any, config: Config) -> Any:
    """An optimized view of a ``Module``."""
    twin = twin_of(module, OptimizedModule)
    names = [*module._data_names, *module._label_names, *module._state_names]
    twin._graphopt_updates = Updates(config)
    twin._symbol = BindingSymbol(module._symbol, config, names)
    if module._exec_group is not None:
        group = twin._exec_group = copy.copy(module._exec_group)
        group.symbol = twin._symbol
        group.execs = [optimized_executor(e, config, names) for e in group.execs]
        if group._default_execs is not None:
            group._default_execs = [
                optimized_executor(e, config, names) for e in group._default_execs
            ]
    return twin


def buckets_view(module: Any, config: Config) -> Any:
    """An optimized view of a ``BucketingModule``."""
    twin = twin_of(module, OptimizedBuckets)
    twin._graphopt_config = config
    twin._sym_gen = _binding(module._sym_gen, config, module._state_names)
    twin._buckets = {key: module_view(each, config) for key, each in module._buckets.items()}
    # Modules that were loaded have a current one, but not its key.
    current = (key for key, each in module._buckets.items() if each is module._curr_module)
    twin._curr_module = twin._buckets.get(next(current, None))
    return twin


def sequence_view(module: Any, config: Config) -> Any:
    """An optimized view of a ``SequentialModule``; modules without views stay as they are.

    Raises:
        InputError: there are such modules, and ``strict`` asked for it.
    """
    twin = twin_of(module, OptimizedSequence)
    twin._modules = [_part(each, config) for each in module._modules]
    return twin


def _part(module: Any, config: Config) -> Any:
    is_known = isinstance(module, tuple(_VIEWS))
    return view_of(module, config) if is_known or config.strict else copy.copy(module)


def view_of(module: Any, config: Config) -> Any:
    """An optimized view of a module.

    Raises:
        InputError: nothing is known of modules of its class.
    """
    for kind, make in _VIEWS.items():
        if isinstance(module, kind):
            return make(module, config)
    kinds = ", ".join(kind.__name__ for kind in _VIEWS)
    raise InputError(f"cannot optimize a {type(module).__name__}: of modules give {kinds}")


_VIEWS = {
    mx.mod.Module: module_view,
    mx.mod.BucketingModule: buckets_view,
    mx.mod.SequentialModule: sequence_view,
}


def twin_of(module: Any, mixin: type) -> Any:
    """An object like a user's, with its attributes, that has a mixin in front of its class."""
    twin: Any = object.__new__(_class_of(type(module), mixin))  # type: ignore[arg-type]
    twin.__dict__.update(module.__dict__)
    return twin


@cache
def _class_of(cls: type, mixin: type) -> type:
    if issubclass(cls, mixin):
        return cls
    return type(
        cls.__name__,
        (mixin, cls),
        {"__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__},
    )


def _binding(
    sym_gen: Callable[..., Any], config: Config, states: Any
) -> Callable[..., tuple[Any, Any, Any]]:
    """The same function, of Symbols that are bound to optimized executors."""

    def generate(*args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        symbol, data, labels = sym_gen(*args, **kwargs)
        names = [*(data or ()), *(labels or ()), *(states or ())]
        return BindingSymbol(symbol, config, names), data, labels

    return generate


def _method_of(module: Any, name: str) -> Any:
    """A method as the user's class has it."""
    bases = [base for base in type(module).__mro__ if not issubclass(base, Shown)]
    return next(vars(base)[name] for base in bases if name in vars(base))


def _told(executor: Any) -> str:
    if isinstance(executor, OptimizedExecutor):
        return executor.explain()
    return f"MXNet's executor runs it: {executor.graphopt_why_plain}"
