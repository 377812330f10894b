"""A Block that cannot be compiled whole, taken child by child.

The Block's own ``forward`` stays Python; every outermost child that can be traced is replaced by an
optimized view of it, in a twin that shares the user's ``__dict__``: what its code writes is seen by
the user's Block, and only what holds children is looked up elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.frontend.blocks import describe
from graphopt.frontend.gluon import why_not_traceable
from graphopt.nn.generated import set_own
from graphopt.nn.pairs import Pairs
from graphopt.nn.twin_children import Children
from graphopt.nn.twins import swap_attribute, twin_of

#: Makes the optimized view of a Block.
Optimize = Callable[[Any], Any]
#: Calls a view of a Block with such arguments; the last calls the twin that stands for it.
Try = Callable[[Any, tuple[Any, ...], Callable[[], Any]], Any]


def partition(block: Any, optimize: Optimize, notes: list[str], attempt: Try | None = None) -> Any:
    """A twin of ``block`` whose children that can be traced are optimized.

    Args:
        block: any Block.
        optimize: applied to each outermost child that can be traced, once per distinct child.
        notes: gets one sentence per child, telling what became of it.
        attempt: makes calls of children that cannot be traced; by default their twins make them.

    Returns:
        A Block of a subclass of its class, sharing all parameters and attributes.
    """
    made = _Partition(optimize, notes, attempt)
    twin = made.clone(block)
    made.swap_attributes()
    return twin


def message_passing() -> Any:
    """The class of layers over trees, which needs MXNet to be imported."""
    from graphopt.nn.recurrence import Recurrence

    return Recurrence


def looks_up_words(block: Any) -> Any:
    """A layer over trees that looks up each word in use once, in ``block`` or it; else ``None``.

    Which words these are depends on values. In a graph it looks up, and multiplies, the word of
    each node.
    """
    if isinstance(block, message_passing()):
        return block if block.looks_up_words else None
    found = (looks_up_words(child) for child in block._children.values())
    return next((layer for layer in found if layer is not None), None)


class _Partition:
    """Makes twins of a Block and of the Blocks in it."""

    def __init__(self, optimize: Optimize, notes: list[str], attempt: Try | None) -> None:
        self.optimize, self.notes, self.attempt = optimize, notes, attempt
        self.pairs = Pairs()
        self.twins: list[tuple[Any, Any]] = []  # after the user's Blocks

    def clone(self, block: Any, *, is_child: bool = False) -> Any:
        names: dict[str, Any] = {}
        runs = _runs(block)
        if runs:
            names["forward"] = _in_turn
        if is_child and self.attempt is not None:
            names |= _attempted(type(block), self.optimize(block), self.attempt)
        twin = twin_of(block, self.pairs, names)
        cls: Any = type(twin)
        pairs = self.pairs
        pairs.add(block, twin)
        pairs.add_methods(block, twin)
        parts = _parts(block)
        for name, child in block._children.items():
            if not pairs.knows(child):
                note = len(self.notes)  # of the child; those of its own children follow
                pairs.add(child, self._child(name, child))
                if parts:
                    self.notes[note] += f" ({parts[name]})"
        pairs.add(block._children, Children(block._children, pairs))
        self.twins.append((block, twin))
        if runs:
            parts_of_it = _parts_in_turn(block, runs, pairs, self.optimize, self.notes)
            set_own(cls, "_graphopt_parts", parts_of_it)
        return twin

    def swap_attributes(self) -> None:
        """Have twins look up what holds Blocks elsewhere, once all Blocks are known.

        Several may have one list, which has to be one for their twins as well.
        """
        for block, twin in self.twins:
            for key, value in list(vars(block).items()):
                swap_attribute(type(twin), key, value, self.pairs)

    def _child(self, name: str, child: Any) -> Any:
        label = f"child {name!r}: {describe(child)}"
        why_left = _why_left(child)
        if why_left:
            self.notes.append(f"{label} is left as it is: {why_left}")
            return child
        if not why_not_traceable(child):
            self.notes.append(f"{label} is compiled")
            return self.optimize(child)
        self.notes.append(
            f"{label} is no HybridBlock: its own code stays Python, its children are taken"
        )
        return self.clone(child, is_child=True)


def _attempted(base: type, view: Any, attempt: Try) -> dict[str, Any]:
    """What makes calls of a twin attempts of the view."""

    def call(twin: Any, *args: Any, **kwargs: Any) -> Any:
        def apart() -> Any:
            return base.__call__(twin, *args, **kwargs)

        return apart() if kwargs else attempt(view, args, apart)

    return {"__call__": call, "_graphopt_tried": view}


def tried_of(twin: Any) -> Any:
    """The view that calls of a child's twin may go to; ``None`` without."""
    return getattr(type(twin), "_graphopt_tried", None)


def parts_of(twin: Any) -> tuple[Any, ...]:
    """What a twin of a ``Sequential`` runs in turn, if that is not just its children."""
    return getattr(type(twin), "_graphopt_parts", ())


def _in_turn(twin: Any, x: Any) -> Any:
    """``forward`` of a ``Sequential`` some of whose children in a row are one graph."""
    children = twin._children
    are_same = isinstance(children, Children) and children.are_same
    for part in parts_of(twin) if are_same else children.values():
        x = part(x)
    return x


def _runs(block: Any) -> list[list[str]]:
    """Children of a ``Sequential`` by name, those in one list that may be one graph.

    Empty if no two are, or all of them: that one was tried.
    """
    if type(block).forward is not import_mxnet().gluon.nn.Sequential.forward:
        return []
    runs: list[list[str]] = []
    may_join = False
    for name, child in block._children.items():
        joins = _joins(child)
        if joins and may_join:
            runs[-1].append(name)
        else:
            runs.append([name])
        may_join = joins
    return runs if 1 < len(runs) < len(block._children) else []


def _joins(child: Any) -> bool:
    return _why_left(child) == "" and not why_not_traceable(child) and not looks_up_words(child)


def _parts_in_turn(
    block: Any,
    runs: list[list[str]],
    pairs: Pairs,
    optimize: Optimize,
    notes: list[str],
) -> tuple[Any, ...]:
    parts = []
    for names in runs:
        if len(names) == 1:
            parts.append(pairs.twin(block._children[names[0]]))
            continue
        first, last = names[0], names[-1]
        run = import_mxnet().gluon.nn.Sequential(prefix=f"{block.name}_{first}_to_{last}_")
        for name in names:
            run.register_child(block._children[name], name)
        parts.append(optimize(run))
        notes.append(f"children {first!r} to {last!r} of {describe(block)} are one graph")
    return tuple(parts)


def _parts(block: Any) -> dict[str, str]:
    """Which part of a Block with a recurrence each child is, by the order they were made in."""
    layers = import_mxnet().gluon.rnn.rnn_layer._RNNLayer
    core = [name for name, child in block._children.items() if isinstance(child, layers)]
    parts, part = {}, "pre: in front of the recurrence"
    for name in block._children if core else ():
        if name in core:
            part = "post: behind the recurrence"
            parts[name] = "core: the recurrence"
        else:
            parts[name] = part
    return parts


def _why_left(child: Any) -> str:
    """Why neither a child nor what it consists of is compiled; empty if it may be."""
    if isinstance(child, import_mxnet().gluon.rnn.RecurrentCell):
        return "cells are stepped or unrolled by their owner"
    if isinstance(child, message_passing()):
        words = ", and asks for words in use only" if child.looks_up_words else ""
        return f"it is one operator{words}"
    return ""
