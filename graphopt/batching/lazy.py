"""An NDArray that is not there yet: a value of a recorded call, by the rows it will be.

It passes MXNet's own type checks; indexing.py and arithmetic.py add what Python writes with signs.
What is asked of it that needs elements (``asnumpy``, ``bool``, MXNet's C interface) goes through
its ``handle``, which waits until the call was run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.batching.kinds import Kind
from graphopt.compat import import_mxnet
from graphopt.errors import UnsupportedError

if TYPE_CHECKING:
    from graphopt.batching.recorder import Recorder

mx = import_mxnet()
_NDArray: Any = mx.nd.NDArray


class Lazy(_NDArray):
    """A value ``(rows, *kind.tail)`` that was recorded.

    Attributes:
        recorder: that wrote it down.
        run: its rows, see runs.py; of the first part where ``runs`` is not None.
        runs: its parts, where they do not lie together.
        depth: 0 for leaves, one more than the deepest argument for calls.
        array: the real array, once somebody asked for it.
    """

    __slots__ = ("array", "depth", "kind", "recorder", "rows", "run", "runs")
    writable = True

    def __init__(self, recorder: Recorder, run: int, rows: int, kind: Kind, depth: int) -> None:
        self.recorder = recorder
        self.run = run
        self.rows = rows
        self.kind = kind
        self.depth = depth
        self.runs: tuple[int, ...] | None = None
        self.array: Any = None

    def __del__(self) -> None:
        # NDArray's would free a handle, and so make one.
        pass

    @property
    def handle(self) -> Any:
        """MXNet's handle; waits for the value."""
        if self.array is None:
            self.array = self.recorder.library.materialize(self)
        return self.array.handle

    def asnumpy(self) -> Any:
        """As NDArray's; the values of all samples come from MXNet in one piece."""
        if self.array is not None:
            return super().asnumpy()
        return self.recorder.library.to_numpy(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Known without running anything, as are the other properties."""
        return (self.rows, *self.kind.tail)

    @property
    def ndim(self) -> int:
        """Rank."""
        return 1 + len(self.kind.tail)

    @property
    def size(self) -> int:
        """Number of elements."""
        count = self.rows
        for extent in self.kind.tail:
            count *= extent
        return count

    @property
    def dtype(self) -> Any:
        """As NDArray's: a numpy type."""
        return np.dtype(self.kind.dtype).type

    @property
    def context(self) -> Any:
        """Device."""
        return self.kind.ctx

    ctx = context

    @property
    def stype(self) -> str:
        """Lazy values are dense."""
        return "default"

    def detach(self) -> Any:
        """As NDArray's."""
        return mx.nd.BlockGrad(self)

    def copy(self) -> Any:
        """As NDArray's."""
        return mx.nd.identity(self)

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """As NDArray's."""
        if np.dtype(dtype) == np.dtype(self.kind.dtype):
            return self.copy() if copy else self
        return mx.nd.cast(self, dtype=dtype)

    def as_in_context(self, context: Any) -> Any:
        """Itself; moving to another device needs the value."""
        return self if context == self.kind.ctx else super().as_in_context(context)

    def attach_grad(self, grad_req: str = "write", stype: Any = None) -> None:
        """Refused within the call that computes it: the array does not exist yet."""
        self.after_call("attach_grad() on").attach_grad(grad_req, stype)

    def backward(
        self, out_grad: Any = None, retain_graph: bool = False, train_mode: bool = True
    ) -> None:
        """Refused within the call: all samples are one graph, which it would use up."""
        self.after_call("backward() from").backward(out_grad, retain_graph, train_mode)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.after_call("writing into")[key] = value

    def after_call(self, what: str) -> Any:
        """The array itself, to be changed.

        Raises:
            UnsupportedError: within the call that computes it; ``what`` is to be done to it.
        """
        from graphopt.batching.recorder import ACTIVE

        if ACTIVE.recorder is self.recorder:
            raise refused(what)
        return real(self)

    def __hash__(self) -> int:
        return id(self) // 16

    def __reduce__(self) -> Any:
        return super().__reduce__()


def real(x: Lazy) -> Any:
    """The array itself, waiting for it."""
    x.handle  # noqa: B018 - makes it
    return x.array


def refused(what: str) -> UnsupportedError:
    """What to raise where a value would be changed in place."""
    return UnsupportedError(
        f"{what} an array that a batched Block makes is not possible inside of it: make a new"
        " array instead (concat, stack, where), or use graphopt.batch(net, debug=True)"
    )
