"""Codes of reshapes, and what MXNet makes of them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphopt.compat import import_mxnet
from graphopt.ir.reshape import codes_for, reshaped

mx = import_mxnet()


@pytest.mark.parametrize(
    ("source", "target", "codes"),
    [
        ((4, 6), (4, 6, 1), (0, 0, 1)),
        ((4, 6), (4, 1, 6), (0, -4, 1, -1)),
        ((4, 6), (1, 4, 6), (-4, 1, -1, 0)),
        ((9, 1, 6), (1, 9, 6), (-4, 1, -1, -3)),
        ((1, 9, 6), (9, 1, 6), (-3, -4, 1, -1)),
        ((8, 5, 6), (2, 4, 5, 6), (-4, -1, 4, 0, 0)),
        ((2, 4, 5, 6), (8, 5, 6), (-3, 0, 0)),
        ((2, 3, 4), (2, 12), (0, -3)),
        ((2, 3, 4), (24,), (-1,)),
        ((2, 12), (2, 3, 4), (0, -4, -1, 4)),
        ((6,), (6,), (0,)),
        ((2, 3, 4), (4, 6), (-1, 6)),
        ((2, 3, 4, 5), (24, 5), (-1, 5)),
        ((2, 3, 4, 5), (2, 5, 12), (0, 5, 12)),
        ((), (1,), (1,)),
        ((1,), (), ()),
    ],
)
def test_codes(source: tuple[int, ...], target: tuple[int, ...], codes: tuple[int, ...]) -> None:
    assert codes_for(source, target) == codes
    assert reshaped(source, codes) == target


shapes = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4)


@given(shapes, st.randoms(use_true_random=False))
def test_mxnet_makes_the_target_of_them(source: list[int], random: object) -> None:
    factors = [3] * sum(e == 3 for e in source) + [2] * sum(e == 2 for e in source) + [1]
    random.shuffle(factors)
    cuts = sorted(random.choices(range(len(factors) + 1), k=random.randrange(4)))
    bounds = [0, *cuts, len(factors)]
    target = [math.prod(factors[a:b]) for a, b in itertools.pairwise(bounds)]
    codes = codes_for(source, target)
    assert reshaped(source, codes) == tuple(target)
    array = mx.nd.arange(math.prod(source)).reshape(tuple(source))
    made = mx.nd.Reshape(array, shape=codes)
    assert made.shape == tuple(target)
