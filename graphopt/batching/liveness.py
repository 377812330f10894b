"""Rows whose gradient MXNet would not compute sample by sample, and how it is kept from the others.

A row that no result is computed from takes part in the backward of its group all the same, with a
gradient of zero. Where the slope of the operator is infinite, as that of the square root of zero or
of an exponential that overflows, the product is no number, which sums over rows then spread. So
such operators read their arguments through a mask, which is written once it is known which rows
results are computed from: for what ran because a sample read a value, that is after all samples
have ended; for what is kept and asked for later, then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.backend.arrays import array_of
from graphopt.batching.native.programs import Block, Operator
from graphopt.batching.recorder import RECORDING
from graphopt.batching.runs import Ints
from graphopt.batching.signature import Signature
from graphopt.compat import import_mxnet
from graphopt.ir.ops import canonical

if TYPE_CHECKING:
    from graphopt.batching.native.stages import Planned

#: Operators with an infinite slope, or one that overflows, at a finite argument.
_STEEP = (
    "arccos arccosh arcsin arctanh broadcast_div broadcast_hypot broadcast_mod broadcast_power cbrt"
    " cosh elemwise_div erfinv exp expm1 gamma gammaln log log10 log1p log2 nanprod norm prod rcbrt"
    " reciprocal rsqrt sinh sqrt tan _hypot _hypot_scalar _linalg_det _linalg_inverse"
    " _linalg_potrf _linalg_potri _linalg_slogdet _linalg_sumlogdiag _linalg_trsm _mod _power"
    " _rdiv_scalar _rmod_scalar _rpower_scalar"
)


def is_steep(signature: Signature) -> bool:
    """Whether a call is differentiated by a slope that may be infinite."""
    if signature.steep is None:
        source = signature.source
        if isinstance(source, Block):
            found = any(_is_steep(node.op, node.attrs.get("scalar")) for node in source.graph)
        elif isinstance(source, Operator):
            found = _is_steep(source.op, dict(source.attrs).get("scalar"))
        else:
            found = _is_steep(signature.name, None)
        signature.steep = bool(signature.state & RECORDING) and found
    return signature.steep


def _is_steep(op: str, scalar: Any) -> bool:
    name = canonical(op)
    if name == "_power_scalar":
        return scalar is None or not 1 <= float(scalar) <= 2
    return name in _STEEP.split()


class Liveness:
    """Rows that results are computed from."""

    def __init__(self, groups: Sequence[Planned], totals: Sequence[int]) -> None:
        """No row is, so far; ``groups`` are in an order in which they can run."""
        self._groups = groups
        self._live = {
            store + at: np.zeros(totals[store + at], dtype=bool)
            for signature, store, *_ in groups
            for at in range(len(signature.outs))
        }
        self._maker = {
            store + at: number
            for number, (signature, store, *_) in enumerate(groups)
            for at in range(len(signature.outs))
        }

    def rows_of(self, store: int) -> Any:
        """As :meth:`rows`, of the group that made a store."""
        return self.rows(self._groups[self._maker[store]])

    def rows(self, group: Planned) -> Any:
        """Of each of a group's rows, whether a result is computed from it."""
        signature, store, *_ = group
        found = self._live[store]
        for at in range(1, len(signature.outs)):
            found = found | self._live[store + at]
        return found

    def reach(self, stores: Ints, rows: Ints) -> None:
        """Results are computed from these rows, and so from all that those are computed from."""
        pending: list[int] = []
        self._mark(stores, rows, pending)
        while pending:
            number = -heapq.heappop(pending)
            while pending and pending[0] == -number:
                heapq.heappop(pending)
            group = self._groups[number]
            for stores, rows, live in _read(group, self.rows(group)):
                self._mark(stores[live], rows[live], pending)

    def _mark(self, stores: Ints, rows: Ints, pending: list[int]) -> None:
        for store in np.unique(stores).tolist():
            known = self._live.get(store)  # leaves have none
            if known is None:
                continue
            chosen = rows[stores == store]
            if not known[chosen].all():
                known[chosen] = True
                heapq.heappush(pending, -self._maker[store])


def _read(group: Planned, live: Any) -> Iterable[tuple[Ints, Ints, Any]]:
    """Of each argument store and row of all rows, and which of them live rows are computed from."""
    signature, _, total, arguments, lengths = group
    for stores, rows in arguments:
        count = len(rows)
        if lengths is not None:
            reads = np.repeat(live, lengths)
        elif count == total and signature.form == "rows":
            reads = live
        elif total and count % total == 0 and signature.form == "rows":
            reads = np.repeat(live, count // total)
        elif count and total % count == 0 and signature.form == "rows":
            reads = live.reshape(count, -1).any(axis=1)
        else:
            reads = np.full(count, live.any())
        yield stores, rows, reads


class Guard:
    """A mask of rows: what comes back to the others is not passed on."""

    def __init__(self, store: int, live: Any, ctx: Any) -> None:
        """Of the group that makes ``store``; ``live`` is the mask so far."""
        self.store, self._live = store, live
        self._mask = array_of(live.astype(np.float32), ctx)

    def write(self, live: Any) -> None:
        """From now on the mask is this one."""
        if not np.array_equal(live, self._live):
            self._live = live.copy()
            array_of(live.astype(np.float32), self._mask.context).copyto(self._mask)

    def __call__(self, array: Any) -> Any:
        """The array, of which only live rows get a gradient."""
        return import_mxnet().nd.where(self._mask, array, array.detach())
