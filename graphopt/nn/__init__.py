"""Gluon layers of graphopt, and optimized versions of the user's own Blocks.

``LSTM``, ``GRU`` and ``RNN`` are Gluon's layers over sequences of any length; ``Recurrence``,
``ChildSumTreeLSTM`` and ``NaryTreeLSTM`` pass messages over trees and acyclic graphs. They load
MXNet when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphopt.nn.recurrence import Recurrence
    from graphopt.nn.rnn import GRU, LSTM, RNN
    from graphopt.nn.tree_lstm import ChildSumTreeLSTM, NaryTreeLSTM

_MODULES = {
    "ChildSumTreeLSTM": "tree_lstm",
    "GRU": "rnn",
    "LSTM": "rnn",
    "NaryTreeLSTM": "tree_lstm",
    "RNN": "rnn",
    "Recurrence": "recurrence",
}

__all__ = ["GRU", "LSTM", "RNN", "ChildSumTreeLSTM", "NaryTreeLSTM", "Recurrence"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'graphopt.nn' has no attribute {name!r}")
    return getattr(import_module(f"graphopt.nn.{_MODULES[name]}"), name)
