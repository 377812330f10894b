"""A Block that cannot be compiled whole, taken child by child.

The Block's own ``forward`` stays Python; every outermost child that can be traced is replaced by an
optimized view of it, in a shallow copy, so that the user's Block stays as it was.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.frontend.gluon import describe

#: Makes the optimized view of a HybridBlock.
Optimize = Callable[[Any], Any]


def partition(block: Any, optimize: Optimize, notes: list[str]) -> Any:
    """A copy of ``block`` whose hybridizable children are optimized.

    Args:
        block: any Block.
        optimize: applied to each outermost HybridBlock child, once per distinct child.
        notes: gets one sentence per child, telling what became of it.

    Returns:
        A Block of the same class, sharing all parameters.
    """
    return _clone(block, optimize, notes, {})


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


def _clone(block: Any, optimize: Optimize, notes: list[str], done: dict[int, Any]) -> Any:
    twin = copy.copy(block)
    done[id(block)] = twin
    replaced = {}
    parts = _parts(block)
    for name, child in block._children.items():
        if id(child) not in done:
            note = len(notes)  # of the child; those of its own children follow
            done[id(child)] = _child(name, child, optimize, notes, done)
            if parts:
                notes[note] += f" ({parts[name]})"
        replaced[name] = done[id(child)]
    for key, value in vars(block).items():
        twin.__dict__[key] = _swap(value, done)
    twin.__dict__["_children"] = OrderedDict(replaced)
    return twin


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


def _child(
    name: str, child: Any, optimize: Optimize, notes: list[str], done: dict[int, Any]
) -> Any:
    mx = import_mxnet()
    label = f"child {name!r}: {describe(child)}"
    if isinstance(child, mx.gluon.rnn.RecurrentCell):
        notes.append(f"{label} is left as it is: cells are stepped or unrolled by their owner")
        return child
    if isinstance(child, message_passing()):
        words = ", and asks for words in use only" if child.looks_up_words else ""
        notes.append(f"{label} is left as it is: it is one operator{words}")
        return child
    if isinstance(child, mx.gluon.HybridBlock):
        notes.append(f"{label} is compiled")
        return optimize(child)
    notes.append(f"{label} is no HybridBlock: its own code stays Python, its children are taken")
    return _clone(child, optimize, notes, done)


def _swap(value: Any, done: dict[int, Any]) -> Any:
    """The value with Blocks replaced, also inside plain lists, tuples and dicts."""
    if id(value) in done:
        return done[id(value)]
    if type(value) in (list, tuple):
        return type(value)(_swap(item, done) for item in value)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _swap(item, done)) for key, item in value.items())
    return value
