"""Operators that move values against MXNet."""

import numpy as np
import pytest

from graphopt.backend.reference_ops import joining, shape

RNG = np.random.default_rng(7)


def case(op, *inputs, **attrs):
    return op, inputs, attrs


def x(*shape):
    return RNG.uniform(-2, 2, shape).astype("float32")


RESHAPES = [
    ((2, 3, 4), (4, 0, 2)),
    ((2, 3, 4), (-1,)),
    ((2, 3, 4), (6, 1, -1)),
    ((2, 3, 4), (-2, 1, 1)),
    ((2, 3, 4), (2, -2)),
    ((2, 3, 4), (-3, 4)),
    ((2, 3, 4), (0, -3)),
    ((2, 3, 4), (-4, 1, 2, -2)),
    ((2, 3, 4), (2, -4, -1, 3, -2)),
    ((2, 4, 6), (0, -4, 2, -1, 0)),
]
CASES = [
    *(case("Reshape", x(*shape), shape=spec) for shape, spec in RESHAPES),
    case("Reshape", x(10, 5, 4), shape=(-1, 0), reverse=True),
    case("Reshape", x(8, 3, 2), shape=(-3, 0), reverse=True),
    case("Reshape", x(8, 3, 2), shape=(2, 4, -4, 0, 0), reverse=True),
    case("Reshape", x(4, 6), target_shape=(0, 3), keep_highest=False),
    case("Reshape", x(4, 6), target_shape=(0, 0), keep_highest=True),
    case("reshape_like", x(4, 6), x(2, 12)),
    case("reshape_like", x(30, 7), x(15, 2, 4), lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2),
    case("Flatten", x(2, 3, 4)),
    case("transpose", x(2, 3, 4)),
    case("transpose", x(2, 3, 4), axes=(2, 0, 1)),
    case("SwapAxis", x(2, 3, 4), dim1=0, dim2=2),
    case("expand_dims", x(2, 3), axis=1),
    case("expand_dims", x(2, 3), axis=-1),
    case("squeeze", x(1, 3, 1)),
    case("squeeze", x(1, 3, 1), axis=-1),
    case("squeeze", x(1, 3, 1), axis=(0, 2)),
    case("squeeze", x(1, 1)),
    case("depth_to_space", x(2, 8, 2, 3), block_size=2),
    case("space_to_depth", x(2, 2, 4, 6), block_size=2),
    case("broadcast_to", x(1, 3), shape=(4, 0)),
    case("broadcast_axis", x(1, 3, 1), axis=(0, 2), size=(2, 4)),
    case("broadcast_axis", x(1, 3), axis=0, size=5),
    case("broadcast_like", x(1, 3), x(4, 3)),
    case("broadcast_like", x(1, 3, 1), x(5, 6), lhs_axes=(0, 2), rhs_axes=(0, -1)),
    case("shape_array", x(2, 3)),
    case("size_array", x(2, 3)),
    case("Concat", x(2, 3), x(2, 5), dim=1, num_args=2),
    case("Concat", x(2, 3), x(4, 3), dim=-2, num_args=2),
    case("_rnn_param_concat", x(3), x(4), dim=0, num_args=2),
    case("stack", x(2, 3), x(2, 3), axis=1, num_args=2),
    case("stack", x(2, 3), x(2, 3), axis=-1, num_args=2),
    case("SliceChannel", x(2, 6, 3), num_outputs=3),
    case("SliceChannel", x(2, 6, 3), num_outputs=3, axis=-1, squeeze_axis=True),
    case("_split_v2", x(7, 3), indices=(0, 2, 3), axis=0),
    case("_split_v2", x(7, 3), indices=(), axis=0, sections=3),
    case("_split_v2", x(2, 3), indices=(), axis=1, sections=3, squeeze_axis=True),
    case("tile", x(2, 3), reps=(2, 1, 3)),
    case("tile", x(2, 3), reps=2),
    case("repeat", x(2, 3), repeats=2, axis=-1),
    case("repeat", x(2, 3), repeats=3),
    case("reverse", x(2, 3, 4), axis=1),
    case("reverse", x(2, 3, 4), axis=(0, 2)),
    case(
        "Pad",
        x(2, 3, 4, 5),
        mode="constant",
        constant_value=1.5,
        pad_width=(0, 0, 0, 0, 1, 2, 3, 0),
    ),
    case("Pad", x(2, 3, 4, 5), mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 3, 0)),
    case("Pad", x(2, 3, 4, 5), mode="reflect", pad_width=(0, 0, 0, 0, 1, 2, 3, 0)),
    case("slice_axis", x(4, 5), axis=1, begin=1, end=3),
    case("slice_axis", x(4, 5), axis=-1, begin=-3, end=None),
    case("slice_axis", x(4, 5), axis=0, begin=0, end=-1),
    case("slice", x(4, 5, 6), begin=(1, None), end=(3, -1)),
    case("slice", x(4, 5, 6), begin=(None, 3, 0), end=(None, 0, 6), step=(-1, -2, 2)),
    case("slice", x(4, 5), begin=1, end=9),
    case("slice_like", x(4, 5, 6), x(2, 3, 4)),
    case("slice_like", x(4, 5, 6), x(2, 3, 4), axes=(0, -1)),
    case("Crop", x(1, 2, 6, 7), x(1, 2, 3, 4), num_args=2, offset=(1, 2)),
    case("Crop", x(1, 2, 6, 7), x(1, 2, 3, 4), num_args=2, center_crop=True),
    case("Crop", x(1, 2, 6, 7), num_args=1, h_w=(4, 4)),
    case("_slice_assign", x(4, 5), x(2, 2), begin=(1, 0), end=(3, 2)),
    case("_slice_assign_scalar", x(4, 5), scalar=2.0, begin=(1, 0), end=(3, 4), step=(1, 2)),
]

ALIASES = {
    "_crop_assign": "_slice_assign",
    "_crop_assign_scalar": "_slice_assign_scalar",
    "broadcast_axes": "broadcast_axis",
    "concat": "Concat",
    "crop": "slice",
    "flatten": "Flatten",
    "flip": "reverse",
    "pad": "Pad",
    "reshape": "Reshape",
    "split": "SliceChannel",
    "swapaxes": "SwapAxis",
}


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_value(agrees, op, inputs, attrs):
    agrees(op, inputs, attrs)


@pytest.mark.parametrize("alias", ALIASES)
def test_alias(agrees, alias):
    _, inputs, attrs = next(one for one in CASES if one[0] == ALIASES[alias])
    agrees(alias, inputs, attrs)


def test_every_name_has_a_case():
    assert set(joining.TABLE) | set(shape.TABLE) == {op for op, _, _ in CASES} | set(ALIASES)
