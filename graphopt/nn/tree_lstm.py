"""Tree-LSTMs as Gluon layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.ir.types import dtype_name
from graphopt.nn.legacy import legacy
from graphopt.nn.recurrence import Recurrence


class _TreeLSTM(Recurrence):
    """What Tree-LSTMs have in common: states ``h`` and ``c``, and the gates' parameters."""

    def __init__(
        self,
        hidden_size: int,
        reduce: str,
        weights: Mapping[str, tuple[tuple[int, int], Any]],
        bias_initializer: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(self._message, reduce, self._update, (hidden_size, hidden_size), **kwargs)
        self._hidden_size = hidden_size
        with self.name_scope():
            for name, (shape, init) in weights.items():
                self._add(f"{name}_weight", shape, init)
                self._add(f"{name}_bias", shape[:1], bias_initializer)

    def _add(self, name: str, shape: tuple[int, ...], init: Any) -> None:
        parameter = self.params.get(name, shape=shape, init=init, allow_deferred_init=True)
        setattr(self, name, parameter)

    def _expected(self) -> tuple[int, str] | None:
        weight = self.i2h_weight
        columns = weight.shape[1]
        return (columns, dtype_name(weight.dtype)) if columns > 0 else None

    def _gates(self, F: Any, x: Any) -> Any:
        """Input, forget, update and output gate as far as they depend on the node's row."""
        return F.split(_dense(F, x, self.i2h_weight, self.i2h_bias), num_outputs=4)


class ChildSumTreeLSTM(_TreeLSTM):
    """The child-sum Tree-LSTM; ``layer(x, parents) -> (h, c)``, each (nodes, hidden_size).

    A node's input, output and update gates read the sum of its children's ``h``; it has a forget
    gate for each child. Any number of children, in no order. Tai, Socher and Manning, Improved
    Semantic Representations From Tree-Structured Long Short-Term Memory Networks (2015).

    Parameters have the names, shapes and gate order of the cell in MXNet's own example: ``i2h``
    (4 * hidden_size, input_size) for input, forget, update, output; ``hs2h`` (3 * hidden_size,
    hidden_size) for input, update, output; ``hc2h`` (hidden_size, hidden_size) for forget.

    Args:
        hidden_size: columns of ``h`` and ``c``.
        input_size: columns of ``x``; 0: learned from the first call.
    """

    def __init__(
        self,
        hidden_size: int,
        input_size: int = 0,
        *,
        i2h_weight_initializer: Any = None,
        hs2h_weight_initializer: Any = None,
        hc2h_weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        size = hidden_size
        weights = {
            "i2h": ((4 * size, input_size), i2h_weight_initializer),
            "hs2h": ((3 * size, size), hs2h_weight_initializer),
            "hc2h": ((size, size), hc2h_weight_initializer),
        }
        super().__init__(size, "sum", weights, bias_initializer, **kwargs)

    def _message(self, F: Any, x: Any, *states: Any) -> Any:
        hidden, cell = states
        kept = _dense(F, hidden, self.hc2h_weight, self.hc2h_bias)
        return hidden, F.sigmoid(self._gates(F, x)[1] + kept) * cell

    def _update(self, F: Any, x: Any, *reduced: Any) -> Any:
        hidden, cell = reduced
        own = self._gates(F, x)
        of = F.split(_dense(F, hidden, self.hs2h_weight, self.hs2h_bias), num_outputs=3)
        entering = F.sigmoid(own[0] + of[0]) * F.tanh(own[2] + of[1])
        cell = entering + cell
        return F.sigmoid(own[3] + of[2]) * F.tanh(cell), cell


class NaryTreeLSTM(_TreeLSTM):
    """The N-ary Tree-LSTM; ``layer(x, parents) -> (h, c)``, each (nodes, hidden_size).

    Every node has at most ``arity`` children, told apart by the order of their numbers, or by that
    of edges where these are given; each gate reads all of them, with weights for each place. Tai,
    Socher and Manning, Improved Semantic Representations From Tree-Structured Long Short-Term
    Memory Networks (2015).

    Parameters: ``i2h`` (4 * hidden_size, input_size) for input, forget, update, output; ``h2h``
    ((3 + arity) * hidden_size, arity * hidden_size) for input, update, output and the children's
    forget gates.

    Args:
        hidden_size: columns of ``h`` and ``c``.
        input_size: columns of ``x``; 0: learned from the first call.
        arity: how many children a node has at most.
    """

    def __init__(
        self,
        hidden_size: int,
        input_size: int = 0,
        arity: int = 2,
        *,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        size = hidden_size
        weights = {
            "i2h": ((4 * size, input_size), i2h_weight_initializer),
            "h2h": (((3 + arity) * size, arity * size), h2h_weight_initializer),
        }
        self._arity = arity
        super().__init__(size, f"concat{arity}", weights, bias_initializer, **kwargs)

    def _message(self, F: Any, x: Any, *states: Any) -> Any:
        return states

    def _update(self, F: Any, x: Any, *reduced: Any) -> Any:
        hidden, cells = reduced
        arity, size = self._arity, self._hidden_size
        own = self._gates(F, x)
        of = F.split(_dense(F, hidden, self.h2h_weight, self.h2h_bias), num_outputs=3 + arity)
        cells = [
            F.slice_axis(cells, axis=1, begin=n * size, end=(n + 1) * size) for n in range(arity)
        ]
        cell = F.sigmoid(own[0] + of[0]) * F.tanh(own[2] + of[1])
        for n in range(arity):
            cell = cell + F.sigmoid(own[1] + of[3 + n]) * cells[n]
        return F.sigmoid(own[3] + of[2]) * F.tanh(cell), cell


def _dense(F: Any, x: Any, weight: Any, bias: Any) -> Any:
    known = legacy((weight.var(), bias.var()))
    return F.FullyConnected(x, *known, num_hidden=weight.shape[0])
