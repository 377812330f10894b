"""Gradients of arguments, where executors have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graphopt.compat import import_mxnet

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
