"""A net and its loss as one Block, for a step that is one graph."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.frontend.blocks import describe


def with_loss(net: Any, loss: Any, data: int, *, is_plain: bool) -> Any:
    """A Block that returns the losses of so many arrays of data, and of the labels behind them.

    Args:
        net: of the data.
        loss: of what the net returns, and of the labels.
        data: how many arrays the net takes.
        is_plain: whether one of both has Python that runs in every call.
    """
    return (_plain() if is_plain else _hybrid())(net, loss, data)


@cache
def _hybrid() -> type:
    class WithLoss(import_mxnet().gluon.HybridBlock):  # type: ignore[misc]
        """A net and its loss."""

        graphopt_reads_all = True  # backward begins at all that the loss returns

        def __init__(self, net: Any, loss: Any, data: int) -> None:
            super().__init__(prefix=f"{net.name}_with_loss_")
            self.net, self.loss, self._data = net, loss, data

        def graphopt_described(self) -> str:
            return _described(self)

        def register_child(self, block: Any, name: str | None = None) -> None:
            """As a Block: what can be traced need not be a HybridBlock."""
            import_mxnet().gluon.Block.register_child(self, block, name)

        def name_scope(self) -> Any:
            """None, which net and loss would refer to from then on, and be pickled with."""
            return nullcontext()

        def hybrid_forward(self, _F: Any, *arrays: Any) -> Any:  # noqa: N803 - Gluon's name
            """The losses of data and labels."""
            return self.loss(self.net(*arrays[: self._data]), *arrays[self._data :])

    return WithLoss


@cache
def _plain() -> type:
    class WithLoss(import_mxnet().gluon.Block):  # type: ignore[misc]
        """A net and its loss, one of which has Python that runs in every call."""

        def __init__(self, net: Any, loss: Any, data: int) -> None:
            super().__init__(prefix=f"{net.name}_with_loss_")
            self.net, self.loss, self._data = net, loss, data

        def graphopt_described(self) -> str:
            return _described(self)

        def forward(self, *arrays: Any) -> Any:
            """The losses of data and labels."""
            return self.loss(self.net(*arrays[: self._data]), *arrays[self._data :])

    return WithLoss


def _described(both: Any) -> str:
    """Of net and loss as one Block, in the user's words, who made none of them."""
    return f"{describe(both.net)} with {describe(both.loss)}"
