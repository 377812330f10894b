"""Gradients of arguments, where executors have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from graphopt.compat import import_mxnet

if TYPE_CHECKING:
    from graphopt.backend.lower import Lowered

mx = import_mxnet()


def own_arrays(
    arrays: Mapping[str, Any],
    gradients: Mapping[str, Any],
    grad_req: Mapping[str, str],
    names: Collection[str],
) -> dict[str, Any]:
    """Some arguments by name, each an array of its own in the same memory.

    Gradients are marked in these, as the user's arrays may have others.
    """
    own = {name: arrays[name].detach() for name in names}
    learned = [
        (own[name], gradients[name], grad_req[name])
        for name in names
        if gradients.get(name) is not None and grad_req.get(name, "null") != "null"
    ]
    if learned:
        mx.autograd.mark_variables(*map(list, zip(*learned, strict=True)))
    return own


def unread(
    lowered: Lowered, gradients: Mapping[str, Any], grad_req: Mapping[str, str]
) -> list[Any]:
    """Those of arguments that passes left no reader of: zeros, which backward writes in MXNet.

    Args:
        lowered: what has run.
        gradients: an array, or None, by the name of an argument.
        grad_req: "write", "add" or "null" by name.
    """
    engine = lowered.bound[0]
    assert engine is not None
    read = {*engine.inputs}
    return [
        gradient
        for name, gradient in gradients.items()
        if gradient is not None and grad_req.get(name) == "write" and name not in read
    ]
