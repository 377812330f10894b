"""What a Fold has recorded is forgotten after each call, whatever comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.fold import Fold, Node

mx = import_mxnet()

#: What a call of a Fold may be given, of a node of it.
ASKED: dict[str, Callable[[Node], Any]] = {
    "nothing": lambda _: [],
    "no lists": lambda node: [node],
    "no nodes": lambda node: [[node, 1]],
    "an empty list": lambda node: [[node], []],
    "a node of another": lambda node: [[node, Fold().record(0, mx.nd.square, mx.nd.ones(1))]],
    "no sequence": lambda _: 1,
    "a part that is not there": lambda node: [[node[5]]],
}


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("asked", ASKED)
def test_all_is_forgotten_if_so_asked(asked: str, reset: bool) -> None:
    fold, x = Fold(), mx.nd.ones((1, 2))
    node = fold.record(0, mx.nd.square, x)
    if asked == "nothing":
        assert fold(ASKED[asked](node), reset=reset) == []
    else:
        with pytest.raises((InputError, TypeError)):
            fold(ASKED[asked](node), reset=reset)
    if reset:
        assert repr(fold) == "Fold(0 calls, 0 steps)"
        with pytest.raises(InputError, match="recorded before this one was reset"):
            fold([[node]])
    else:
        (found,) = fold([[node]])
        assert (found.asnumpy() == 1).all()
