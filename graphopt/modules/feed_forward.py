"""Optimized views of ``mx.model.FeedForward``, which is older than Modules.

MXNet binds anew, and copies all parameters, whenever the shape of what it predicts from changes, as
in detectors that look at an image in several sizes. A view has an executor for each shape, all on
the arrays of the model, and one compiled graph. ``fit`` is MXNet's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.modules.executor import OptimizedExecutor, executor_of
from graphopt.modules.module import Shown, twin_of
from graphopt.nn.config import Config

mx = import_mxnet()

#: Shapes that executors are kept for; the one that was used longest ago goes first.
_MOST_SHAPES: Final = 64
_TRAINING = "training is MXNet's: give a Module of the same Symbol to have steps optimized"


class OptimizedFeedForward(Shown):
    """Mixin in front of ``mx.model.FeedForward``; see the module's docstring."""

    _graphopt_config: Config
    _graphopt_executors: OrderedDict[Any, OptimizedExecutor]
    symbol: Any
    ctx: Any
    arg_params: Any
    aux_params: Any

    def executors(self) -> list[Any]:
        """One for each shape, the one used last at the end."""
        return [*self._graphopt_executors.values()]

    def explain(self) -> str:
        """What was done, on which engines it runs, and why not more."""
        told = dict.fromkeys(executor.explain() for executor in self.executors())
        return "\n".join([*(told or ["nothing was predicted yet"]), _TRAINING])

    def _init_predictor(self, input_shapes: Any, type_dict: Any = None) -> None:
        """Have an executor for such inputs, as MXNet's."""
        arrays = [*self.arg_params.values(), *(self.aux_params or {}).values()]
        if any(array.stype != "default" or array.ctx != self.ctx[0] for array in arrays):
            super()._init_predictor(input_shapes, type_dict)  # type: ignore[misc]
            return
        shapes = {name: tuple(shape) for name, shape, *_ in input_shapes}
        dtypes = {name: np.dtype((type_dict or {}).get(name, np.float32)) for name in shapes}
        key = (tuple(shapes.items()), tuple(dtypes.items()), tuple(map(id, arrays)))
        found = self._graphopt_executors.pop(key, None) or self._bound(shapes, dtypes, key)
        self._graphopt_executors[key] = found
        if len(self._graphopt_executors) > _MOST_SHAPES:
            self._graphopt_executors.popitem(last=False)
        self._pred_exec = found

    def _bound(
        self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, Any], key: Any
    ) -> OptimizedExecutor:
        for (_, others, arrays), executor in self._graphopt_executors.items():
            if (others, arrays) == key[1:]:
                return executor.reshape(partial_shaping=True, allow_up_sizing=True, **shapes)
        known = {name: array.shape for name, array in self.arg_params.items()} | dict(shapes)
        inferred, _, states = self.symbol.infer_shape(**known)
        names, kept = self.symbol.list_arguments(), self.symbol.list_auxiliary_states()
        arguments = {
            name: self.arg_params[name]
            if name in self.arg_params and name not in shapes
            else mx.nd.zeros(shape, self.ctx[0], dtypes.get(name, np.float32))
            for name, shape in zip(names, inferred, strict=True)
        }
        aux = {
            name: (self.aux_params or {}).get(name, mx.nd.zeros(shape, self.ctx[0]))
            for name, shape in zip(kept, states, strict=True)
        }
        data = [name for name in names if name in shapes or name not in self.arg_params]
        return executor_of(
            *(self.symbol, self._graphopt_config, data, self.ctx[0], arguments, {}, aux),
            dict.fromkeys(names, "null"),
        )

    def __getstate__(self) -> dict[str, Any]:
        """Executors are bound anew."""
        return {**super().__getstate__(), "_graphopt_executors": OrderedDict()}  # type: ignore[misc]

    def __reduce__(self) -> Any:
        """As a view of what it is of."""
        classes = type(self).__mro__
        model: Any = object.__new__(classes[classes.index(Shown) + 1])
        return _viewed, (model, self._graphopt_config, self.__getstate__())


def feed_forward_view(model: Any, config: Config) -> Any:
    """An optimized view of a ``FeedForward``."""
    twin = twin_of(model, OptimizedFeedForward)
    twin._graphopt_config, twin._graphopt_executors = config, OrderedDict()
    twin._pred_exec = None
    return twin


def _viewed(model: Any, config: Config, state: dict[str, Any]) -> Any:
    twin = feed_forward_view(model, config)
    twin.__dict__.update(state)
    return twin
