"""Gradients of outputs, as executors are given them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from graphopt.backend.documents import document_of
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.ir.ops import info

mx = import_mxnet()


class Heads:
    """Gradients of the outputs of one Symbol, one for each."""

    def __init__(self, symbol: Any) -> None:
        """Nothing is asked of the Symbol before it is needed."""
        self._symbol = symbol
        self._ones: dict[int, Any] = {}

    def of(self, given: Any, outputs: Sequence[Any]) -> list[Any]:
        """Those given; ``None`` where there is none and one is needed.

        Args:
            given: an array, a list in the order of the outputs, a dict by name, or nothing.
            outputs: arrays.

        Raises:
            InputError: they are too many, or one has another shape than its output.
            TypeError: one is no array.
        """
        names = self._names
        if isinstance(given, Mapping):
            given = [given.get(name) for name in names]
        elif given is None or isinstance(given, mx.nd.NDArray):
            given = [] if given is None else [given]
        if len(given) > len(names):
            raise InputError(f"{len(given)} gradients for {len(names)} outputs")
        for name, head in zip(names, given, strict=False):
            if head is not None and not isinstance(head, mx.nd.NDArray):
                raise TypeError(f"the gradient of {name!r} is a {type(head).__name__}, no NDArray")
        given = [*given, *[None] * (len(names) - len(given))]
        # What a loss does not read may be any array; autograd would make one of ones.
        found = [
            output if is_unread or (is_loss and head is None) else head
            for head, output, (is_loss, is_unread) in zip(given, outputs, self._losses, strict=True)
        ]
        for name, head, output in zip(names, found, outputs, strict=True):
            if head is not None and head.shape != output.shape:
                raise InputError(
                    f"the gradient of {name!r} is {head.shape}, the output {output.shape}"
                )
        return found

    def known(self, heads: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        """Ones in place of those that are ``None``."""
        missing = [at for at, head in enumerate(heads) if head is None]
        for at in set(missing).difference(self._ones):
            self._ones[at] = mx.nd.ones_like(outputs[at])
        return [self._ones[at] if head is None else head for at, head in enumerate(heads)]

    @cached_property
    def _names(self) -> list[str]:
        found: list[str] = self._symbol.list_outputs()
        return found

    @cached_property
    def _losses(self) -> list[tuple[bool, bool]]:
        """Of each output, whether it is a loss's, which needs no gradient, and never reads one."""
        document = document_of(self._symbol)
        found = []
        for at, *_ in document["heads"]:
            node = document["nodes"][at]
            is_loss = info(node["op"]).loss
            reads = node.get("attrs", {}).get("out_grad") in ("True", "true", "1")
            found.append((is_loss, is_loss and not reads))
        return found
