"""mxnet-fold's API on graphopt's dynamic batching: code written for mxnet-fold runs unchanged.

Calls are recorded by hand, ``fold.record(0, layer, x)``, and made when ``fold([[node, ...]])`` asks
for results. A node is what its operator returns for its own arguments; how calls are joined is up
to ``graphopt.batching``, which never joins what would change a result.

Source: Looks et al., Deep Learning with Dynamic Computation Graphs (TensorFlow Fold), ICLR 2017;
the API is that of mxnet-fold (github.com/szha/mxnet-fold, 2017). None of its code is used.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from typing import Any

from graphopt.batching.batched import Batched
from graphopt.batching.lazy import Lazy, real
from graphopt.batching.library import Tag
from graphopt.batching.recorder import Real
from graphopt.batching.signature import Slot
from graphopt.batching.statistics import Statistics
from graphopt.batching.sums import settled
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, SampleError, UnsupportedError
from graphopt.frontend.gluon import descendants, describe

__all__ = ["Fold", "Node", "fold_unroll"]

mx = import_mxnet()
_NDArray: Any = mx.nd.NDArray


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
        self._evaluation = _Evaluation()
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
        layout = _flatten(args, leaves)
        key = (_key(op), layout, batch_axis, *map(_key, leaves))
        node = self._nodes.get(key)
        if node is None:
            step = 0
            for leaf in leaves:
                if type(leaf) is Node:
                    self._own(leaf)
                    step = max(step, leaf._call.step + 1)
            call = _Call(self._log, len(self._nodes), op, batch_axis, layout, leaves, step)
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
        wanted = [self._checked(number, group) for number, group in enumerate(nodes)]
        if not wanted:
            return []
        failure: BaseException
        try:
            job = _Job(wanted)
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
            name = _name(node._call.op)
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


class Node:
    """What a recorded call will return, or a part of it; equal for equal calls and parts."""

    __slots__ = ("_call", "_path", "batch")

    def __init__(self, call: _Call, path: tuple[Any, ...]) -> None:
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


class _Call:
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
        return f"node {self.number} ({_name(self.op)}, step {self.step})"


class _Job:
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
        needed: dict[int, _Call] = {}
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
        seen: dict[Any, tuple[_Call, Node]] = {}
        for call in self.calls:
            unbatched = [
                (at, leaf)
                for at, leaf in enumerate(call.leaves)
                if type(leaf) is Node and not leaf.batch
            ]
            if not unbatched:
                continue
            others = tuple(_key(leaf) for leaf in call.leaves if not _is_array(leaf))
            group = (_key(call.op), call.layout, call.axis, call.step, others)
            for at, leaf in unbatched:
                first, node = seen.setdefault((group, at), (call, leaf))
                if node != leaf:
                    raise InputError(
                        f"{first} and {call} are calls of one group with different no_batch()"
                        f" arguments, {node} and {leaf}: leave out no_batch(), and each call gets"
                        " its own"
                    )


class _Evaluation:
    """Makes the calls of a job: what ``graphopt.batching`` runs as its net, with one sample."""

    name = "fold"

    def __init__(self) -> None:
        self._job: _Job | None = None
        self._tags: dict[Any, Tag] = {}

    def __call__(self, job: _Job, arrays: list[Any]) -> list[Any]:
        """The joined arrays of each list of nodes; ``arrays`` are the job's, with rows."""
        given = dict(zip(job.arrays, arrays, strict=True))
        values: dict[_Call, Any] = {}
        unbatched: dict[Node, Any] = {}

        def value_of(leaf: Any) -> Any:
            if type(leaf) is not Node:
                return given.get(id(leaf), leaf)
            if leaf.batch:
                return _part(leaf, values[leaf._call])
            if leaf not in unbatched:
                unbatched[leaf] = self._shared(_part(leaf, values[leaf._call]), len(unbatched))
            return unbatched[leaf]

        for call in job.calls:
            values[call] = _make(call, [value_of(leaf) for leaf in call.leaves])
        return [
            _joined(nodes, [_part(node, values[node._call]) for node in nodes])
            for nodes in job.wanted
        ]

    @contextmanager
    def of(self, job: _Job) -> Iterator[None]:
        """Inside the block a job is run, and what it needs is kept."""
        self._job = job
        try:
            yield
        finally:
            self._job = None
            for tag in self._tags.values():
                tag.shared.array = None

    def collect_params(self) -> dict[str, Any]:
        """Of the Blocks that are called, as far as they are seen."""
        found: dict[str, Any] = {}
        for call in self._job.calls if self._job else ():
            block = getattr(call.op, "__self__", call.op)
            if isinstance(block, mx.gluon.Block):
                found.update(block.collect_params())
        return found

    def _shared(self, value: Any, number: int) -> Any:
        """A real array that stands, as a weight does, for all rows of a batched call.

        Its tag is the same in every call of the Fold, so that what was decided about it is found.
        """
        if not isinstance(value, Lazy) or value.recorder.library.net is not self:
            return value  # of debug=True, or a batched Block that uses a Fold
        value = settled(value)
        recorder, array = value.recorder, real(value)
        key = (number, value.kind, value.rows)
        tag = self._tags.setdefault(key, Tag(Slot()))
        tag.shared.array = array
        recorder.reals[id(array)] = Real(array, value.kind, tag, value.rows)
        return array


def _make(call: _Call, leaves: Sequence[Any]) -> Any:
    """What a call returns.

    Raises:
        InputError: it raised, or was split into another number of parts.
        UnsupportedError: it does what cannot be batched.
    """
    try:
        found = call.op(*_regrouped(call.layout, iter(leaves)))
    except UnsupportedError as error:
        text = str(error).replace("graphopt.batch(net, debug=True)", "Fold(debug=True)")
        raise UnsupportedError(f"{call}: {text}") from error
    except Exception as error:
        shapes = ", ".join(str(leaf.shape) for leaf in leaves if _is_array(leaf))
        raise InputError(
            f"{call} cannot be called with arrays of shapes {shapes or 'none'}, it raised"
            f" {_in_short(error)}: give arguments that it takes outside of a Fold"
        ) from error
    for path, count in call.splits:
        whole = Node(call, path)
        parts = _part(whole, found)
        if not isinstance(parts, (list, tuple, _NDArray)) or len(parts) != count:
            raise InputError(
                f"{whole} was split into {count}, but it is {_what(parts)}: split it into the parts"
                " that it has"
            )
    return found


def _part(node: Node, value: Any) -> Any:
    """What a node stands for, of all that its call returned."""
    for at, step in enumerate(node._path):
        try:
            value = value[step] if isinstance(step, int) else value.expand_dims(step[1])
        except (LookupError, TypeError, AttributeError, mx.MXNetError) as error:
            whole = Node(node._call, node._path[:at])
            raise InputError(
                f"{node} does not exist, as {whole} is {_what(value)}: take a part that it has"
            ) from error
    return value


def _joined(nodes: Sequence[Node], values: Sequence[Any]) -> Any:
    """The arrays of nodes as one."""
    for node, value in zip(nodes, values, strict=True):
        if not isinstance(value, _NDArray):
            raise InputError(f"{node} is {_what(value)}, no array: ask for its parts, by .split(n)")
    first = nodes[0]
    if not first.batch:
        other = next((node for node in nodes if node != first), None)
        if other is not None:
            raise InputError(f"{first} is no_batch(), and so cannot be joined with {other}")
        return values[0]
    axis = first._call.axis
    for node, value in zip(nodes, values, strict=True):
        if len(value.shape) <= axis:
            raise InputError(
                f"{node} has shape {value.shape}, without the batch axis {axis}: record an operator"
                " that keeps the axis"
            )
        if _off(axis, value) != _off(axis, values[0]):
            raise InputError(
                f"{first} of {values[0].dtype.__name__}{list(values[0].shape)} and {node} of"
                f" {value.dtype.__name__}{list(value.shape)} cannot be joined along axis {axis}:"
                " ask for them in two lists"
            )
    return values[0] if len(values) == 1 else mx.nd.concat(*values, dim=axis)


def _off(axis: int, value: Any) -> tuple[Any, ...]:
    """What arrays to be joined must have in common."""
    return (*value.shape[:axis], None, *value.shape[axis + 1 :], value.dtype)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (Node, _NDArray))


def _flatten(nested: Any, leaves: list[Any]) -> Any:
    """How nodes and arrays are nested; lists and tuples without any are leaves themselves."""
    kind = type(nested)
    if kind is not Node and kind is not _NDArray and isinstance(nested, (list, tuple)):
        start = len(leaves)
        layout = tuple([_flatten(item, leaves) for item in nested])
        if not nested or any(map(_is_array, leaves[start:])):
            return layout
        del leaves[start:]
    leaves.append(nested)
    return 0


def _regrouped(layout: Any, leaves: Iterator[Any]) -> Any:
    """The inverse of :func:`_flatten`, with lists."""
    if layout == 0:
        return next(leaves)
    return [_regrouped(part, leaves) for part in layout]


def _key(item: Any) -> Any:
    """Equal for arguments that are the same; arrays and unhashable objects only for themselves."""
    kind = type(item)
    if kind is Node:
        return item
    if isinstance(item, _NDArray):
        return id(item)
    if isinstance(item, (list, tuple)):
        return (kind, *map(_key, item))
    if isinstance(item, numbers.Number):
        return kind, repr(item)  # 0 and -0.0, or 1 and True, are equal
    try:
        hash(item)
    except TypeError:
        return kind, id(item)
    return kind, item


def _name(op: Any) -> str:
    if isinstance(op, mx.gluon.Block):
        return describe(op)
    return getattr(op, "__qualname__", None) or repr(op)


def _what(value: Any) -> str:
    if isinstance(value, _NDArray):
        return f"an array of shape {value.shape}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def _in_short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1].removeprefix("MXNetError: ") if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def fold_unroll(
    cell: Any, fold: Fold, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC"
) -> tuple[list[Node], tuple[Node, ...]]:
    """Record a recurrent cell over a sequence, step by step.

    Args:
        cell: a Gluon recurrent cell.
        fold: that records.
        length: number of steps.
        inputs: ``(1, length, C)``, or ``(length, 1, C)`` for layout ``TNC``; or a list of
            ``length`` arrays or nodes ``(1, C)``.
        begin_state: list of states ``(1, H)``, arrays or nodes; None are the cell's own.
        layout: of ``inputs``, if it is one array.

    Returns:
        The outputs of all steps, and the states after the last one.

    Raises:
        InputError: ``inputs`` does not have ``length`` steps, or ``layout`` is unknown.
        UnsupportedError: the cell keeps more between steps than its states.
    """
    keeping = (mx.gluon.rnn.ZoneoutCell, mx.gluon.contrib.rnn.VariationalDropoutCell)
    for block in descendants(cell):
        if isinstance(block, keeping):
            raise UnsupportedError(
                f"{describe(block)} keeps arrays between steps, which would be mixed with those of"
                " other sequences: unroll it inside a Block, and call that by graphopt.batch"
            )
    cell.reset()
    steps = _steps(length, inputs, layout)
    states: Any = begin_state
    if states is None:
        first = steps[0]
        states = (
            fold.record(0, cell.begin_state, 1).split(len(cell.state_info()))
            if isinstance(first, Node)
            else cell.begin_state(
                first.shape[0], func=mx.nd.zeros, ctx=first.ctx, dtype=first.dtype
            )
        )
    outputs = []
    for step in steps:
        output, after = fold.record(0, cell, step, states).split(2)
        outputs.append(output)
        states = after.split(len(states))
    return outputs, tuple(states)


def _steps(length: int, inputs: Any, layout: str) -> list[Any]:
    if layout not in ("NTC", "TNC"):
        raise InputError(f"layout {layout!r} is none of NTC, TNC")
    axis = layout.index("T")
    is_one = isinstance(inputs, _NDArray)
    if not is_one and not isinstance(inputs, (list, tuple)):
        raise InputError(f"inputs is a {type(inputs).__name__}: give an array, or a list of steps")
    if is_one and len(inputs.shape) < 2:
        raise InputError(f"inputs has shape {inputs.shape}: give an array of layout {layout}")
    found = inputs.shape[axis] if is_one else len(inputs)
    if found != length or length < 1:
        raise InputError(f"inputs has {found} steps, and length is {length}: give one per step")
    if not is_one:
        return list(inputs)
    steps = mx.nd.split(inputs, num_outputs=length, axis=axis, squeeze_axis=True)
    return [steps] if length == 1 else list(steps)
