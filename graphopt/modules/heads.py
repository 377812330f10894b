"""Gradients of outputs, as executors are given them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from graphopt.backend.documents import document_of
from graphopt.backend.refused import RefusedError
from graphopt.cached import cached_property
from graphopt.compat import import_mxnet
from graphopt.ir.ops import info
from graphopt.ir.ops.facts import Gradient
from graphopt.kernels.bridge.memory import is_known, memory_of

mx = import_mxnet()


def _like(head: Any, output: Any) -> Any:
    """A gradient in the dtype of its output and dense, as MXNet's executor copies it."""
    dense = head if head.stype == "default" else head.tostype("default")
    return dense if dense.dtype == output.dtype else dense.astype(output.dtype)


class Heads:
    """Gradients of the outputs of one Symbol, one for each."""

    def __init__(self, symbol: Any, written: Collection[Any]) -> None:
        """Nothing is asked of the Symbol before it is needed.

        Args:
            symbol: what has the outputs.
            written: arrays that backward writes while it may still read gradients of outputs.
        """
        self._symbol, self._written = symbol, written
        self._ones: dict[int, Any] = {}

    def of(self, given: Any, outputs: Sequence[Any]) -> list[Any]:
        """Those given; ``None`` where there is none and one is needed.

        Args:
            given: an array, a list in the order of the outputs, a dict by name, or nothing.
            outputs: arrays.

        What is given beyond them is ignored, as in MXNet.

        Raises:
            RefusedError: one has another shape than its output.
            TypeError: one is no array.
        """
        names = self._names
        if isinstance(given, Mapping):
            given = [given.get(name) for name in names]
        elif given is None or isinstance(given, mx.nd.NDArray):
            given = [] if given is None else [given]
        given = given[: len(names)]
        for name, head in zip(names, given, strict=False):
            if head is not None and not isinstance(head, mx.nd.NDArray):
                raise TypeError(f"the gradient of {name!r} is a {type(head).__name__}, no NDArray")
        given = [*given, *[None] * (len(names) - len(given))]
        # What nothing reads may be any array; autograd would make one of ones.
        found = [
            output if is_unread or (is_loss and head is None) else head
            for head, output, (is_loss, is_unread) in zip(given, outputs, self._losses, strict=True)
        ]
        for name, head, output in zip(names, found, outputs, strict=True):
            if head is not None and head.shape != output.shape:
                raise RefusedError(
                    f"the gradient of {name!r} is {head.shape}, the output {output.shape}"
                )
        return [
            h if h is None else self._apart(_like(h, o))
            for h, o in zip(found, outputs, strict=True)
        ]

    def known(self, heads: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Ones in place of those that are ``None``."""
        missing = [at for at, head in enumerate(heads) if head is None]
        for at in set(missing).difference(self._ones):
            self._ones[at] = mx.nd.ones_like(outputs[at])
        return [self._ones[at] if head is None else head for at, head in enumerate(heads)]

    def _apart(self, head: Any) -> Any:
        """The gradient, or a copy where it lies in memory that backward writes.

        MXNet's executor copies all of them; through time by hand, one step's gradient of a state is
        what the next one is given.
        """
        is_apart = is_known(mx) and memory_of(mx, head) not in self._written_memory
        return head if is_apart else head.copy()

    @cached_property
    def _written_memory(self) -> set[int]:
        return {memory_of(mx, array) for array in self._written}

    @cached_property
    def _names(self) -> list[str]:
        found: list[str] = self._symbol.list_outputs()
        return found

    @cached_property
    def _losses(self) -> list[tuple[bool, bool]]:
        """Of each output, whether it is a loss's, which needs no gradient, and is never read."""
        document = document_of(self._symbol)
        found = []
        for at, *_ in document["heads"]:
            node = document["nodes"][at]
            facts = info(node["op"])
            reads = node.get("attrs", {}).get("out_grad") in ("True", "true", "1")
            has_none = facts.gradient is Gradient.NONE
            found.append((facts.loss, has_none or (facts.loss and not reads)))
        return found
