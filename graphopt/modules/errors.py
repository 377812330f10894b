"""What executors raise, for programs that expect MXNet's errors."""

from __future__ import annotations

from graphopt.compat import import_mxnet
from graphopt.errors import InputError

mx = import_mxnet()


class ExecutorError(InputError, mx.MXNetError):  # type: ignore[misc, name-defined]
    """Shapes, gradients or requests do not fit; an MXNetError as well, which MXNet raises then."""
