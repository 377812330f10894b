"""What one call of a Fold computes."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.fold.arguments import is_array, key_of
from graphopt.fold.nodes import Call, Node

_NDArray: Any = import_mxnet().nd.NDArray


class Job:
    """What one call of a Fold computes.

    Attributes:
        wanted: lists of nodes.
        calls: that they need, in an order in which they can be made.
        arrays: among their arguments, by id.
    """

    def __init__(self, wanted: list[list[Node]]) -> None:
        """Find what is needed.

        Raises:
            InputError: calls that are alike read different arrays as one for all.
        """
        self.wanted = wanted
        needed: dict[int, Call] = {}
        found = [node._call for group in wanted for node in group]
        while found:
            call = found.pop()
            if call.number not in needed:
                needed[call.number] = call
                found.extend(leaf._call for leaf in call.leaves if type(leaf) is Node)
        self.calls = sorted(needed.values(), key=attrgetter("step", "number"))
        self.arrays = {
            id(leaf): leaf
            for call in self.calls
            for leaf in call.leaves
            if isinstance(leaf, _NDArray)
        }
        self._check_unbatched()

    def _check_unbatched(self) -> None:
        seen: dict[Any, tuple[Call, Node]] = {}
        for call in self.calls:
            unbatched = [
                (at, leaf)
                for at, leaf in enumerate(call.leaves)
                if type(leaf) is Node and not leaf.batch
            ]
            if not unbatched:
                continue
            others = tuple(key_of(leaf) for leaf in call.leaves if not is_array(leaf))
            group = (key_of(call.op), call.layout, call.axis, call.step, others)
            for at, leaf in unbatched:
                first, node = seen.setdefault((group, at), (call, leaf))
                if node != leaf:
                    raise InputError(
                        f"{first} and {call} are calls of one group with different no_batch()"
                        f" arguments, {node} and {leaf}: leave out no_batch(), and each call gets"
                        " its own"
                    )
