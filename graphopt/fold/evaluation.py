"""Makes recorded calls, batched: a net of one sample to ``graphopt.batching``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from graphopt.batching.lazy import Lazy, real
from graphopt.batching.library import Tag
from graphopt.batching.recorder import Real
from graphopt.batching.signature import Slot
from graphopt.batching.sums import settled
from graphopt.compat import import_mxnet
from graphopt.fold.job import Job
from graphopt.fold.making import joined, make, part_of
from graphopt.fold.nodes import Call, Node

mx = import_mxnet()


class Evaluation:
    """Makes the calls of a job: what ``graphopt.batching`` runs as its net, with one sample."""

    name = "fold"

    def __init__(self) -> None:
        self._job: Job | None = None
        self._tags: dict[Any, Tag] = {}

    def __call__(self, job: Job, arrays: list[Any]) -> list[Any]:
        """The joined arrays of each list of nodes; ``arrays`` are the job's, with rows."""
        given = dict(zip(job.arrays, arrays, strict=True))
        values: dict[Call, Any] = {}
        unbatched: dict[Node, Any] = {}

        def value_of(leaf: Any) -> Any:
            if type(leaf) is not Node:
                return given.get(id(leaf), leaf)
            if leaf.batch:
                return part_of(leaf, values[leaf._call])
            if leaf not in unbatched:
                unbatched[leaf] = self._shared(part_of(leaf, values[leaf._call]), len(unbatched))
            return unbatched[leaf]

        for call in job.calls:
            values[call] = make(call, [value_of(leaf) for leaf in call.leaves])
        return [
            joined(nodes, [part_of(node, values[node._call]) for node in nodes])
            for nodes in job.wanted
        ]

    @contextmanager
    def of(self, job: Job) -> Iterator[None]:
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
