"""Telling whether a value of Python is what it was, and making it so again."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.nn.copies import Budget, copied, holds, put_back

mx = import_mxnet()
NAN = float("nan")


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (np.float32(0), np.float32(-0.0)),
        ([2], [2.0]),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": [1]}, {"a": [2]}),
        ({1, 2}, {1, 3}),
        (deque([1]), deque([2])),
        (range(3), range(4)),
        (slice(0, 2), slice(1, 2)),
        (np.dtype("float32"), np.dtype("float64")),
        (Decimal(1), Decimal(2)),
        (np.exp, np.sqrt),
        (partial(max, 1), partial(max, 2)),
        (np.zeros(3), np.ones(3)),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros(3), np.zeros(3, "float32")),
        (list(range(300)), list(range(301))),
        (list(range(300)), list(range(300))),  # another object
        (SimpleNamespace(a=1), SimpleNamespace(a=2)),
        (None, 0),
    ],
    ids=repr,
)
def test_what_is_not_the_same(value: Any, other: Any) -> None:
    assert holds(copied(value, Budget()), value)
    assert not holds(copied(value, Budget()), other)
    assert not holds(copied([value], Budget()), [other])


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1.5, 3 / 2),
        (NAN, float("nan")),
        (np.float32(2), np.float32(2)),
        ([1, [2]], [1, [2]]),
        (OrderedDict(a=1), OrderedDict(a=1)),
        (np.array([NAN]), np.array([NAN])),
        ("ab" * 2, "".join(["ab", "ab"])),
    ],
    ids=repr,
)
def test_what_is_the_same(value: Any, other: Any) -> None:
    assert holds(copied(value, Budget()), other)


def changes() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Values, and what is done to them."""
    return {
        "list": ([1, [2, 3]], lambda v: v[1].append(4)),
        "dict": ({"a": {"b": 1}}, lambda v: v["a"].update(c=2)),
        "counter": (Counter("ab"), lambda v: v.update("b")),
        "set": ({1}, lambda v: v.add(2)),
        "deque": (deque([1], maxlen=2), lambda v: v.append(2)),
        "namespace": (SimpleNamespace(a=[1]), lambda v: v.a.append(2)),
        "tuple": (([1], 2), lambda v: v[0].append(2)),
        "array": (np.zeros(3), lambda v: v.fill(1)),
        "long list": ([0] * 300, lambda v: v.append(1)),
    }


@pytest.mark.parametrize("name", sorted(changes()))
def test_what_is_written_into_is_put_back(name: str) -> None:
    value, change = changes()[name]
    copy, before = copied(value, Budget()), repr(value)
    change(value)
    assert not holds(copy, value)
    assert put_back(copy) is value
    assert repr(value) == before
    assert holds(copy, value)


def test_a_list_that_holds_itself() -> None:
    value: list[Any] = [1]
    value.append(value)
    copy = copied(value, Budget())
    assert holds(copy, value)
    value[0] = 2
    assert not holds(copy, value)
    assert put_back(copy)[0] == 1


def test_arrays_of_mxnet_may_be_others() -> None:
    value = [1, mx.nd.ones(2)]
    assert holds(copied(value, Budget()), [1, mx.nd.ones(2)])
    assert not holds(copied(value, Budget()), [2, value[1]])
    assert not holds(copied(value, Budget.thorough()), [1, mx.nd.ones(2)])


def test_of_much_only_another_length_is_seen() -> None:
    value = [[float(number)] * 100 for number in range(100)]
    copy = copied(value, Budget())
    value[99][0] = -1.0
    assert holds(copy, value)
    value[99].append(-1.0)
    assert not holds(copy, value)
    copy = copied(value, Budget.thorough())
    value[99][0] = -2.0
    assert not holds(copy, value)


def test_what_refuses_to_be_set() -> None:
    class Frozen(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: Any, value: Any) -> None:
            raise TypeError

    value = Frozen(a=1, b=[1])
    copy = copied(value, Budget())
    value["b"].append(2)
    assert put_back(copy) == {"a": 1, "b": [1]}
    dict.update(value, a=2)
    assert put_back(copy) == {"a": 2, "b": [1]}
