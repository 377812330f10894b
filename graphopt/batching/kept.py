"""Hybridized children whose graph is not recorded as one call: its operators, one by one.

MXNet runs the Python of such a child in its first call, and keeps the graph. So what counts is that
graph, whatever the Python would do now. Python of graphs that have others in them (loops), or
operators of the user's, runs all the same, as its parts are recorded together with those of other
samples.
"""

from __future__ import annotations

from typing import Any, Final

from graphopt.batching.recorder import Recorder, Unrecorded
from graphopt.compat import import_mxnet
from graphopt.recording.children import child_of

mx = import_mxnet()
_block = mx.gluon.block
_Hybrid = mx.gluon.HybridBlock
#: MXNet's own, whatever is put in its place while something is recorded.
CALL: Final = _Hybrid._call_cached_op


def call_kept(recorder: Recorder, block: Any, args: tuple[Any, ...]) -> Any:
    """What a call of the graph that MXNet keeps of a Block returns; it is made first if need be."""
    with Unrecorded():
        if block._cached_op is None:
            block._build_cache(*args)
    child = child_of(block, block._cached_op)
    if child is None:
        return _run_python(block, args)
    flat, layout = _block._flatten(args, "input")
    if layout != block._in_format or child.is_np or block._callback:
        return CALL(block, *args)
    given = [array for array in flat if array is not None]
    inputs = [given[at] if is_data else at.data() for is_data, at in block._cached_op_args]
    shapes = child.learned(tuple(x.shape for x in inputs)) if child.open_nodes else {}
    if shapes is None:
        return CALL(block, *args)

    def call(op: int, read: list[Any], attrs: dict[str, str]) -> list[Any]:
        found = recorder.call(op, read, [*attrs], [*attrs.values()])
        return found if isinstance(found, list) else [found]

    made = child.one_by_one(call, inputs, shapes)
    found = [made[place] if place >= 0 else inputs[~place] for place in child.places]
    return _block._regroup(found, block._out_format)


def _run_python(block: Any, args: tuple[Any, ...]) -> Any:
    """The Block's own Python, whose graph has other graphs in it."""
    if type(block).forward is not _Hybrid.forward:
        return CALL(block, *args)
    ctx = mx.current_context()  # that of the arguments
    params = {name: p.data(ctx) for name, p in block._reg_params.items()}
    return block.hybrid_forward(mx.nd, *args, **params)
