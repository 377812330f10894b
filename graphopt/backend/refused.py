"""What MXNet refuses, for programs that catch its errors."""

from __future__ import annotations

from graphopt.compat import import_mxnet
from graphopt.errors import InputError

mx = import_mxnet()


class RefusedError(InputError, mx.MXNetError):  # type: ignore[name-defined]
    """Shapes, dtypes, gradients or requests do not fit; also an MXNetError, which MXNet raises."""
