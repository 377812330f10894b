"""What stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from graphopt.compat import import_mxnet
from graphopt.recording.calls import INVOKE

mx = import_mxnet()


@pytest.fixture
def numpy_interface() -> Iterator[None]:
    mx.npx.set_np()
    yield
    mx.npx.reset_np()


def replaced() -> list[Any]:
    """What is replaced while a Block is recorded."""
    register, autograd = mx.ndarray.register, mx.autograd
    return [
        register._imperative_invoke,
        register._verify_all_legacy_ndarrays,
        register._verify_all_np_ndarrays,
        autograd.set_recording,
        autograd.set_training,
        mx.nd.NDArray.__setitem__,
        mx.np.ndarray.__setitem__,
        mx.nd.NDArray._get_index_nd,
        mx.gluon.Parameter._finish_deferred_init,
        mx.gluon.HybridBlock._call_cached_op,
        mx.nd.CachedOp.__call__,
        mx.gluon.block._check_all_np_ndarrays,
    ]


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    before = replaced()
    yield
    assert replaced() == before
    assert before[0] is INVOKE
