"""Runs blocks through the bridge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.backend.invoke import invoke
from graphopt.batching.native.block import NativeBlock
from graphopt.batching.native.lookups import Table
from graphopt.batching.recorder import RECORDING
from graphopt.compat import import_mxnet


def run_block(
    block: NativeBlock, stores: list[Any], tables: Mapping[int, Table], state: int
) -> None:
    """Fill the stores that a block exports.

    Args:
        block: what to run.
        stores: those the block reads are filled.
        tables: lookups that were run, by store.
        state: autograd's flags.

    Raises:
        MXNetError: an array does not fit.
    """
    nd = import_mxnet().nd
    ctx = block.calls[0].signature.outs[0].ctx
    learned = []
    for group in block.learned:
        arrays = [parameter(ctx) for parameter in group]
        learned.append(arrays[0] if len(arrays) == 1 else nd.add_n(*arrays))
    attrs = block.attrs
    if state & RECORDING:
        attrs = attrs | {"stash_size": block.stash_size}
    given = [stores[store] for store in block.externals]
    given += [tables[store].outputs[which] for store, which in block.looked_up]
    indices = [tables[store].index for store in block.indices]
    found = invoke("graphopt_schedule", [*given, block.numbers, *indices, *learned], attrs)
    for (store, shape), array in zip(block.exports, found, strict=False):
        stores[store] = array if len(shape) == 2 else nd.Reshape(array, shape=shape)
