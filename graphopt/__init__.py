"""graphopt: an optimizing compiler for Apache MXNet graphs.

``net = graphopt.optimize(net)`` returns a net with the same parameters, outputs and gradients that
runs faster. Importing this package imports neither mxnet nor numba; names load when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphopt.compat import install_import_hook

if TYPE_CHECKING:
    from graphopt import fold, memory, nn
    from graphopt.api.lifting import lift
    from graphopt.api.loading import load
    from graphopt.api.lowering import lower
    from graphopt.api.optimizing import optimize
    from graphopt.api.running import run
    from graphopt.batching.batched import batch
    from graphopt.errors import GraphoptError
    from graphopt.ir.graph import Graph
    from graphopt.ir.parser import parse
    from graphopt.nn.train_step import train_step
    from graphopt.optimizers.clipping import clip_global_norm

__version__ = "0.1.0.dev0"

_PUBLIC = {
    "Graph": "graphopt.ir.graph",
    "GraphoptError": "graphopt.errors",
    "batch": "graphopt.batching.batched",
    "clip_global_norm": "graphopt.optimizers.clipping",
    "lift": "graphopt.api.lifting",
    "load": "graphopt.api.loading",
    "lower": "graphopt.api.lowering",
    "optimize": "graphopt.api.optimizing",
    "parse": "graphopt.ir.parser",
    "run": "graphopt.api.running",
    "train_step": "graphopt.nn.train_step",
}

__all__ = [
    "Graph",
    "GraphoptError",
    "batch",
    "clip_global_norm",
    "fold",
    "lift",
    "load",
    "lower",
    "memory",
    "nn",
    "optimize",
    "parse",
    "run",
    "train_step",
]

#: Modules that are attributes, too.
_MODULES = ("fold", "memory", "nn")

install_import_hook()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"graphopt.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'graphopt' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC, *_MODULES})
