"""FullyConnected flattens its input itself."""

from __future__ import annotations

import math

from graphopt.ir.node import Node
from graphopt.passes.layout.views import VIEWS, static_shape
from graphopt.rewrite import Edit, Rule
from graphopt.rewrite.rule import Replacement


def _drop_flatten(edit: Edit, node: Node) -> Replacement:
    """A view in front that only flattens, as FullyConnected with ``flatten`` would."""
    inner = edit.producer(node.inputs[0], VIEWS)
    if inner is None or not node.attrs.get("flatten", True):
        return None
    if inner.op != "Flatten":
        before, after = (static_shape(edit.type(v)) for v in (inner.inputs[0], inner.out()))
        if before is None or after is None or len(before) < 2:
            return None
        if before[0] != after[0] or math.prod(before) != math.prod(after):
            return None
    return edit.add(node.op, (inner.inputs[0], *node.inputs[1:]), node.attrs, like=node)


RULES = (Rule("drop-flatten", ("FullyConnected",), _drop_flatten),)
