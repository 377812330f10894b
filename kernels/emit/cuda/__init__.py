"""Spec -> Python source of a CUDA kernel, for numba.

There are three forms. Where no element depends on another, the *flat* one walks the iteration space
in strides of the whole grid::

    kernel(p0, ..., e0, ...)

Else *teams*, each a warp or a block, walk rows, that is runs along the last axis::

    kernel(p0, ..., e0, ..., slots, per, segments, reach)

Team ``t`` has rows ``slot * per`` to ``(slot + 1) * per`` for ``slot = t // segments``, and of each
of them the segment ``t % segments`` of ``reach`` elements. Reductions need whole rows: one segment.

``p0, ...`` are the operands, inputs first, and ``e0, ...`` the extents. An output that is summed
over has parts, one for each slot and segment that adds to it (:func:`parts`): the kernel writes, or
adds to zeroed, parts, and a second kernel adds them up. No atomics: results repeat bit by bit.

Where columns come behind the axis that is reduced, a block of threads walks rows side by side
(:mod:`graphopt.kernels.emit.cuda.columns`), ``tiles`` blocks for all columns::

    kernel(p0, ..., e0, ..., tiles)

In the other forms elements come in chunks of ``width`` along the last axis, read and written at
once. With ``chunks`` a thread keeps that many of a row in registers, at the same columns of every
row, so that it computes each value once and holds sums over rows; without, it walks the row once
per reduction.

The source calls functions named after instructions; :mod:`graphopt.kernels.cuda` defines them.
"""

from graphopt.kernels.emit.cuda.columns import Columns
from graphopt.kernels.emit.cuda.emitter import Form, in_registers, is_flat, parts
from graphopt.kernels.emit.cuda.finish import emit_finish
from graphopt.kernels.emit.cuda.flat import Flat
from graphopt.kernels.emit.cuda.rows import EXCHANGES, Rows
from graphopt.kernels.spec import KernelSpec

__all__ = ["EXCHANGES", "Form", "emit_cuda", "emit_finish", "in_registers", "is_flat", "parts"]


def emit_cuda(spec: KernelSpec, form: Form) -> str:
    """Source of the function ``kernel`` and of the functions over warps that it calls.

    Args:
        spec: expanded and collapsed (:mod:`graphopt.kernels.expand`).
        form: how it walks.
    """
    if spec.columns:
        return Columns(spec, form).source()
    if is_flat(spec):
        return Flat(spec, form).source()
    return Rows(spec, form).source()
