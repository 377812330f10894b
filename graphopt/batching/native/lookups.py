"""Embeddings that blocks read: each distinct row is looked up, and multiplied, once.

In a batch of sentences most words come many times. What a block computes from a word's row alone,
such as products with the input weights, is computed for the distinct words ahead of the block, and
rows of that are what the block reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphopt.backend.arrays import array_of
from graphopt.backend.invoke import invoke
from graphopt.batching.native.programs import Block, Native, Operator, Rows, Split, split_of
from graphopt.batching.recorder import RECORDING
from graphopt.batching.runs import Ints
from graphopt.batching.signature import Run, Signature
from graphopt.compat import import_mxnet
from graphopt.ir.ops import canonical

#: Integers are told apart without sorting, if the largest is at most so many times their number.
_DENSE = 16


@dataclass(slots=True)
class Lookup:
    """A group of an embedding's calls.

    Attributes:
        group: its number.
        store: of its rows.
        prepared: what is computed from its rows alone, with the number of its first output; output
            0 are the rows.
    """

    group: int
    store: int
    prepared: dict[Rows, int] = field(default_factory=dict)
    outputs: int = 1

    def output(self, split: Split) -> int:
        """The number of the first of what is computed ahead for a part of a program."""
        if split.prepare not in self.prepared:
            self.prepared[split.prepare] = self.outputs
            self.outputs += len(split.prepare.spec.emit)
        return self.prepared[split.prepare]


@dataclass(frozen=True, slots=True)
class Table:
    """What blocks read of a lookup that was run.

    Attributes:
        index: (rows of the group,) int32, which of the distinct rows each is.
        outputs: arrays with a row for each distinct one.
    """

    index: Any
    outputs: tuple[Any, ...]


def is_embedding(signature: Signature) -> bool:
    """Whether a signature looks up a row for each number, in a matrix that all samples share."""
    source = signature.source
    if len(signature.outs) != 1 or signature.inputs != 1 or signature.form != "rows":
        return False
    if isinstance(source, Operator):
        return canonical(source.op) == "Embedding" and source.template[0] is None
    if not isinstance(source, Block):
        return False
    nodes = [node for node in source.graph if not node.is_input]
    return len(nodes) == 1 and canonical(nodes[0].op) == "Embedding"


def lookup_of(
    group: int, store: int, signature: Signature, readers: Sequence[int], in_blocks: Set[int]
) -> Lookup | None:
    """A lookup for a group, if it is an embedding that nobody but blocks reads."""
    out = signature.outs[0]
    if not is_embedding(signature) or not readers or not set(readers) <= in_blocks:
        return None
    is_ours = out.ctx.device_type == "cpu" and out.dtype in ("float32", "float64")
    return Lookup(group, store) if is_ours else None


def part(
    native: Native,
    signature: Signature,
    arguments: Sequence[tuple[Ints, Ints]],
    lookups: Mapping[int, Lookup],
) -> tuple[Lookup, Split] | None:
    """The argument whose rows are all a lookup's, and the program parted there."""
    if not isinstance(native, Rows):
        return None
    for position, (stores, _) in enumerate(arguments):
        lookup = lookups.get(int(stores[0]))
        if lookup is None or (stores != stores[0]).any():
            continue
        if position not in signature.splits:
            signature.splits[position] = split_of(signature.source, position)
        split = signature.splits[position]
        if split is not None:
            return lookup, split
    return None


def run_lookup(lookup: Lookup, run: Run, numbers: Any, state: int) -> Table:
    """Look up and compute what blocks read.

    Args:
        lookup: what to run.
        run: looks up rows.
        numbers: (rows,) of the words, any dtype.
        state: autograd's flags.

    Raises:
        MXNetError: an array does not fit.
    """
    nd = import_mxnet().nd
    distinct, index = distinct_of(numbers.asnumpy())
    ctx = numbers.context
    (rows,) = run([array_of(distinct, ctx)])
    outputs = [rows]
    for prepare in lookup.prepared:
        learned = []
        for group in prepare.learned:
            arrays = [parameter(ctx) for parameter in group]
            learned.append(arrays[0] if len(arrays) == 1 else nd.add_n(*arrays))
        attrs = {
            "spec": str(prepare.spec),
            "flat": True,
            "zero_states": True,
            "stash": bool(state & RECORDING),
        }
        found = invoke("graphopt_recurrence", [rows, *learned], attrs)
        outputs += found[: len(prepare.spec.emit)]
    return Table(array_of(index, ctx), tuple(outputs))


def distinct_of(numbers: Any) -> tuple[Any, Any]:
    """The distinct numbers of an array in ascending order, and which of them each is, as int32."""
    is_integer = numbers.dtype.kind in "iu"
    if not is_integer or numbers.min() < 0 or numbers.max() > _DENSE * len(numbers):
        distinct, index = np.unique(numbers, return_inverse=True)
        return distinct, index.astype(np.int32)
    seen = np.bincount(numbers) > 0
    distinct = np.flatnonzero(seen).astype(numbers.dtype)
    return distinct, (np.cumsum(seen, dtype=np.int32) - 1)[numbers]
