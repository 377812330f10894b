"""Errors of operators that ran before, which MXNet tells of where somebody waits for results.

It tells once: whoever waits first gets the error, and others read memory that nobody wrote. An
operator that failed also spoils those behind it that share its scratch, whoever called them. So
before engines are tried, and parameters computed in, what they read is waited for, and such an
error is the user's: nothing is kept of what was computed, and no other way of computing is tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graphopt.compat import import_mxnet

mx = import_mxnet()


class LateError(mx.MXNetError):  # type: ignore[name-defined]
    """An operator failed before the call that waits for it, or shares something with it."""


def wait_for(arrays: Iterable[Any]) -> None:
    """Wait until arrays are there.

    Raises:
        LateError: an operator failed.
    """
    try:
        for array in arrays:
            array.wait_to_read()
    except mx.MXNetError as error:
        raise LateError(str(error)) from None
