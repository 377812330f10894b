"""Calls that are recorded, and nodes that stand for what they return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.blocks import describe

mx = import_mxnet()


class Node:
    """What a recorded call will return, or a part of it; equal for equal calls and parts."""

    __slots__ = ("_call", "_path", "batch")

    def __init__(self, call: Call, path: tuple[Any, ...]) -> None:
        """Nodes are made by :meth:`Fold.record`."""
        self._call, self._path = call, path
        self.batch = True

    def split(self, num: int) -> tuple[Node, ...]:
        """The parts of a call that returns a list or tuple of ``num`` (checked when it runs)."""
        if type(num) is not int or num < 1:
            raise InputError(f"{self} cannot be split into {num!r} parts: give a positive integer")
        self._call.splits.add((self._path, num))
        return tuple(self[at] for at in range(num))

    def __getitem__(self, key: int | slice) -> Any:
        """One part as a node, or a tuple of nodes for a slice with an end."""
        if isinstance(key, int):
            return Node(self._call, (*self._path, key))
        if isinstance(key, slice) and key.stop is not None and min(key.start or 0, key.stop) >= 0:
            return tuple(self[at] for at in range(key.stop)[key])
        raise InputError(
            f"{self} has no part {key!r}: give an integer, or a slice with an end such as [:2]"
        )

    def __iter__(self) -> Iterator[Node]:
        raise InputError(f"{self} has an unknown number of parts: unpack .split(n) instead")

    def expand_dims(self, axis: int) -> Node:
        """The node with an axis of length 1 inserted, as ``mx.nd.expand_dims``."""
        return Node(self._call, (*self._path, ("expand_dims", axis)))

    def no_batch(self) -> Node:
        """The node itself, from now on one array for all calls that read it.

        Calls of one operator at one step must not read different ones. Parts taken afterwards are
        ordinary nodes.
        """
        self.batch = False
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        return self._call is other._call and self._path == other._path

    def __hash__(self) -> int:
        return hash((id(self._call), self._path))

    def __repr__(self) -> str:
        parts = [f"[{p}]" if isinstance(p, int) else f".{p[0]}({p[1]})" for p in self._path]
        return "".join([str(self._call), *parts])


class Call:
    """A recorded call.

    Attributes:
        log: stands for the Fold from one reset to the next.
        leaves: arguments, flat; nodes, arrays and others.
        layout: how they are nested.
        step: one more than that of the deepest node among them, 0 without.
        splits: paths to parts, and how many they were split into.
    """

    __slots__ = ("axis", "layout", "leaves", "log", "number", "op", "splits", "step")

    def __init__(
        self, log: object, number: int, op: Any, axis: int, layout: Any, leaves: Any, step: int
    ) -> None:
        self.log, self.number, self.op, self.axis = log, number, op, axis
        self.layout, self.leaves, self.step = layout, leaves, step
        self.splits: set[tuple[tuple[Any, ...], int]] = set()

    def __repr__(self) -> str:
        return f"node {self.number} ({name_of(self.op)}, step {self.step})"


def name_of(op: Any) -> str:
    """What messages call an operator."""
    if isinstance(op, mx.gluon.Block):
        return describe(op)
    return getattr(op, "__qualname__", None) or repr(op)
