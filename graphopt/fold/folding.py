"""The recorder of calls on single samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from graphopt.batching.batched import Batched
from graphopt.batching.statistics import Statistics
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, SampleError, UnsupportedError
from graphopt.fold.arguments import flatten, key_of
from graphopt.fold.evaluation import Evaluation
from graphopt.fold.job import Job
from graphopt.fold.nodes import Call, Node, name_of

mx = import_mxnet()


class Fold:
    """Records calls on single samples, and makes those that are alike together.

    >>> import mxnet as mx
    >>> fold = Fold()
    >>> x = [fold.record(0, mx.nd.square, mx.nd.array([[n]])) for n in (1, 2)]
    >>> fold([[fold.record(0, mx.nd.negative, node) for node in x]])[0].asnumpy().tolist()
    [[-1.0], [-4.0]]
    """

    def __init__(self, ctx: Any = None, *, debug: bool = False) -> None:
        """Nothing is recorded yet.

        Args:
            ctx: the ``mx.Context`` in which operators run; None is the current one.
            debug: make call by call, without any batching: same results.

        Raises:
            InputError: ``ctx`` is no Context.
        """
        if ctx is not None and not isinstance(ctx, mx.Context):
            raise InputError(f"ctx is a {type(ctx).__name__}: give an mx.Context such as mx.cpu()")
        self.ctx = ctx
        self._evaluation = Evaluation()
        self._batched = Batched(self._evaluation, debug=debug)
        self.reset()

    def record(self, batch_axis: int, op: Callable[..., Any], *args: Any) -> Node:
        """Write down a call, to be made later.

        Args:
            batch_axis: axis along which results are joined, such as 0 for ``(1, C)``.
            op: a Block, an ``mx.nd`` function, or any function of arrays. It is called with the
                arguments of one call, and must not depend on calls before.
            args: arrays and nodes, also in lists and tuples (which arrive as lists); anything else
                is handed on as it is.

        Returns:
            A node that stands for what the call returns; the same for equal arguments (arrays and
            other objects by identity, numbers and text by value).

        Raises:
            InputError: ``op`` cannot be called, ``batch_axis`` is negative or no integer, or a node
                is not of this Fold.
        """
        if type(batch_axis) is not int or batch_axis < 0:
            raise InputError(f"batch_axis is {batch_axis!r}: give an axis counted from 0")
        if not callable(op):
            raise InputError(f"op is a {type(op).__name__}: give a Block or a function")
        leaves: list[Any] = []
        layout = flatten(args, leaves)
        key = (key_of(op), layout, batch_axis, *map(key_of, leaves))
        node = self._nodes.get(key)
        if node is None:
            step = 0
            for leaf in leaves:
                if type(leaf) is Node:
                    self._own(leaf)
                    step = max(step, leaf._call.step + 1)
            call = Call(self._log, len(self._nodes), op, batch_axis, layout, leaves, step)
            node = self._nodes[key] = Node(call, ())
        return node

    def __call__(self, nodes: Sequence[Sequence[Node]], reset: bool = True) -> list[Any]:
        """Compute what was recorded, as far as the nodes need it; differentiable as any other call.

        Args:
            nodes: lists of nodes, each of one array.
            reset: forget everything recorded, also after an error.

        Returns:
            Per list one NDArray, the nodes' arrays joined along their batch axis: ``(1, C)`` of
            ``n`` nodes give ``(n, C)``. Of ``no_batch()`` nodes the one array itself.

        Raises:
            InputError: the nodes are not lists of nodes of this Fold, or their arrays do not fit
                together; or a call raised, the message names it.
            UnsupportedError: a call does what cannot be batched; the message names it.
        """
        failure: BaseException
        try:
            wanted = [self._checked(number, group) for number, group in enumerate(nodes)]
            if not wanted:
                return []
            job = Job(wanted)
            with self.ctx or nullcontext(), self._evaluation.of(job):
                found: list[Any] = self._batched([(job, list(job.arrays.values()))])
                return found
        except SampleError as error:
            failure = error.failures[0]
        except UnsupportedError as error:
            failure = error.__cause__ or error
        finally:
            if reset:
                self.reset()
        raise failure

    def reset(self) -> None:
        """Forget everything recorded; nodes from before cannot be used any more."""
        self._log = object()
        self._nodes: dict[Any, Node] = {}

    @property
    def statistics(self) -> Statistics:
        """Of the latest call."""
        return self._batched.statistics

    def explain(self) -> str:
        """What was batched in the latest call; what could not be so far, and why."""
        return "\n".join(["Fold", *self._batched.explain().splitlines()[1:]])

    def __repr__(self) -> str:
        """What is recorded: per step each operator, and how many calls of it."""
        steps: dict[int, dict[str, int]] = {}
        for node in self._nodes.values():
            counts = steps.setdefault(node._call.step, {})
            name = name_of(node._call.op)
            counts[name] = counts.get(name, 0) + 1
        lines = [f"Fold({len(self._nodes)} calls, {len(steps)} steps)"]
        for step, counts in sorted(steps.items()):
            ops = ", ".join(f"{count} x {name}" for name, count in counts.items())
            lines.append(f"  step {step}: {ops}")
        return "\n".join(lines)

    def _checked(self, number: int, group: Any) -> list[Node]:
        if not isinstance(group, (list, tuple)) or not group:
            raise InputError(
                f"entry {number} is {'empty' if group == [] else f'a {type(group).__name__}'}: give"
                " lists of nodes, such as fold([[a, b], [c]])"
            )
        for node in group:
            if type(node) is not Node:
                raise InputError(
                    f"entry {number} has a {type(node).__name__} in it: give nodes, which record()"
                    " returns"
                )
            self._own(node)
            if node._call.axis != group[0]._call.axis:
                raise InputError(
                    f"{group[0]} and {node} have batch axes {group[0]._call.axis} and"
                    f" {node._call.axis}: ask for them in two lists"
                )
        return list(group)

    def _own(self, node: Node) -> None:
        if node._call.log is not self._log:
            raise InputError(
                f"{node} is of another Fold, or was recorded before this one was reset: record it"
                " anew"
            )
