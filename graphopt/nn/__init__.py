"""Gluon layers of graphopt, and optimized versions of the user's own Blocks.

``LSTM``, ``GRU`` and ``RNN`` are Gluon's layers over sequences of any length. They load MXNet when
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphopt.nn.rnn import GRU, LSTM, RNN

__all__ = ["GRU", "LSTM", "RNN"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'graphopt.nn' has no attribute {name!r}")
    from graphopt.nn import rnn

    return getattr(rnn, name)
