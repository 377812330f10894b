"""Operators that make arrays, and that reshape, turn, cut, join and repeat them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from graphopt.ir.constant import add_constant
from graphopt.ir.node import Value
from tests.strategies.builder import LARGEST, SHAPES, Builder, Shape


def reshape(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    size = math.prod(shape)
    options: list[tuple[object, Shape]] = [
        ((-1,), (size,)),
        ((0, -1), (shape[0], size // shape[0])),
        ((1, -1), (1, size)),
        (shape, shape),
        ((-1, 1), (size, 1)),
        ((-1, shape[-1]), (size // shape[-1], shape[-1])),
    ]
    if len(shape) >= 2:
        options += [((-3, -2), (shape[0] * shape[1], *shape[2:])), ((0, 0, -2), shape)]
    if shape[0] % 2 == 0:
        options.append(((-4, 2, -1, -2), (2, shape[0] // 2, *shape[1:])))
    attr, result = b.one_of(options)
    b.op("Reshape", [x], {"shape": attr}, [result])


def flatten(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    b.op("Flatten", [x], {}, [(shape[0], math.prod(shape[1:]))])


def transpose(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    times = 2 if b.chance(40) else 1
    for _ in range(times):
        if b.chance(25):
            x = b.op("transpose", [x], {}, [shape[::-1]])
            shape = shape[::-1]
            continue
        axes = tuple(b.draw(st.permutations(range(len(shape)))))
        shape = tuple(shape[a] for a in axes)
        x = b.op("transpose", [x], {"axes": axes}, [shape])


def swap_axes(b: Builder) -> None:
    x = b.need(lambda shape: len(shape) >= 2, (2, 3))
    shape = list(b.shapes[x])
    first, second = b.draw(st.permutations(range(len(shape))))[:2]
    shape[first], shape[second] = shape[second], shape[first]
    b.op("SwapAxis", [x], {"dim1": first, "dim2": second}, [tuple(shape)])


def axes_in_out(b: Builder) -> None:
    """Add an axis of one element, or take one away."""
    x = b.pick()
    shape = b.shapes[x]
    ones = [at for at, extent in enumerate(shape) if extent == 1]
    if ones and len(shape) > 1 and b.chance(50):
        at = b.one_of(ones)
        b.op("squeeze", [x], {"axis": at}, [shape[:at] + shape[at + 1 :]])
    elif len(shape) < 4:
        at = b.draw(st.integers(0, len(shape)))
        b.op("expand_dims", [x], {"axis": at}, [(*shape[:at], 1, *shape[at:])])


def piece(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    begin = b.draw(st.integers(0, shape[axis] - 1))
    end = b.draw(st.integers(begin + 1, shape[axis]))
    result = (*shape[:axis], end - begin, *shape[axis + 1 :])
    if b.chance(50):
        stop = None if end == shape[axis] and b.chance(50) else end
        b.op("slice_axis", [x], {"axis": axis, "begin": begin, "end": stop}, [result])
        return
    starts: list[int | None] = [None] * len(shape)
    stops: list[int | None] = [None] * len(shape)
    starts[axis], stops[axis] = begin, end
    b.op("slice", [x], {"begin": tuple(starts), "end": tuple(stops)}, [result])


def turn(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    op = b.one_of(["reverse", "repeat", "tile"])
    if op == "reverse":
        b.op(op, [x], {"axis": axis}, [shape])
    elif math.prod(shape) * 2 > LARGEST:
        return
    elif op == "repeat":
        b.op(
            op,
            [x],
            {"repeats": 2, "axis": axis},
            [(*shape[:axis], shape[axis] * 2, *shape[axis + 1 :])],
        )
    else:
        reps = tuple(2 if at == axis else 1 for at in range(len(shape)))
        b.op(op, [x], {"reps": reps}, [tuple(e * r for e, r in zip(shape, reps, strict=True))])


def concat(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    count = b.draw(st.integers(1, 3))
    inputs = [x]
    for _ in range(count - 1):
        inputs.append(  # noqa: PERF401 - a draw each
            b.pick(
                lambda s: (
                    s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
                    and len(s) == len(shape)
                )
            )
        )
    extent = sum(b.shapes[i][axis] for i in inputs)
    if math.prod(shape) * count <= LARGEST:
        result = (*shape[:axis], extent, *shape[axis + 1 :])
        b.op("Concat", inputs, {"dim": axis, "num_args": count}, [result])


def stack(b: Builder) -> None:
    x = b.pick(lambda shape: len(shape) < 4)
    if x is None:
        return
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape)))
    y = b.pick(lambda found: found == shape)
    b.op("stack", [x, y], {"axis": axis, "num_args": 2}, [(*shape[:axis], 2, *shape[axis:])])


def split(b: Builder) -> None:
    x = b.pick()
    shape = b.shapes[x]
    axis = b.draw(st.integers(0, len(shape) - 1))
    extent = shape[axis]
    parts = b.one_of([n for n in (1, 2, 3, 4) if extent % n == 0])
    squeeze = parts == extent and len(shape) > 1 and b.chance(40)
    one = shape[:axis] + (() if squeeze else (extent // parts,)) + shape[axis + 1 :]
    attrs = {"num_outputs": parts, "axis": axis, "squeeze_axis": squeeze}
    first = b.op("SliceChannel", [x], attrs, [one] * parts)
    if parts > 1 and not squeeze and b.chance(40):
        pieces = [Value(first.node, at) for at in range(parts)]
        if b.chance(30):
            pieces.reverse()
        b.op("Concat", pieces, {"dim": axis, "num_args": parts}, [shape])


def grow(b: Builder) -> None:
    x = b.pick(lambda shape: 1 in shape)
    if x is None:
        return
    shape = b.shapes[x]
    result = tuple(3 if extent == 1 else extent for extent in shape)
    if math.prod(result) > LARGEST:
        return
    if b.chance(50):
        b.op("broadcast_to", [x], {"shape": result}, [result])
        return
    like = b.pick(
        lambda s: len(s) == len(shape) and all(p in (q, 1) for p, q in zip(shape, s, strict=True))
    )
    b.op("broadcast_like", [x, like], {}, [b.shapes[like]])


def creation(b: Builder) -> None:
    shape = b.one_of(SHAPES)
    op = b.one_of(["_zeros", "_ones", "_full", "_arange", "constant"])
    dtype = b.dtype
    if op == "_arange":
        b.op(op, [], {"start": 0.0, "stop": 3.0, "dtype": dtype}, [(3,)])
    elif op == "constant":
        count = math.prod(shape)
        array = (np.arange(count, dtype=dtype).reshape(shape) - 2) / 4
        node = add_constant(b.graph, array, f"c{len(b.graph)}")
        b.shapes[node.out()] = shape
    else:
        attrs = {"shape": shape, "dtype": dtype}
        b.op(
            op, [], attrs | ({"value": b.one_of([0.0, 1.0, 2.5])} if op == "_full" else {}), [shape]
        )


LAYOUT = [
    reshape, flatten, transpose, swap_axes, axes_in_out, piece, turn, concat, stack, split, grow,
]  # fmt: skip
