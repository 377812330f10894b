"""Which operators leave rows apart: row i of the output depends on row i of the inputs alone.

A rule answers with a role per input: ``r`` for rows (samples come one behind the other along axis
0), ``s`` for shared (one array for all samples: weights). Its answer holds for any number of rows.
Operators without a rule, or that raise :class:`NotRowwiseError` here, are never batched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphopt.ir.ops import Kind, canonical, info

#: Attribute values are Python's or the strings of MXNet.
Attributes = Mapping[str, Any]
Shapes = Sequence[tuple[int, ...]]
Rule = Callable[[Attributes, Shapes], str]


class NotRowwiseError(Exception):
    """Rows cannot be told apart, or nobody looked; the text says why."""


def roles(op: str, attrs: Attributes, shapes: Shapes, *, training: bool) -> str:
    """The role of every input of an operator.

    Args:
        op: a name of MXNet's.
        attrs: its attributes, as Python values.
        shapes: of the inputs.
        training: whether it runs in training mode.

    Raises:
        NotRowwiseError: a batched call would compute something else, as far as is known.
    """
    name = canonical(op)
    facts = info(name, attrs)
    rule = _RULES.get(name)
    if any(not shape for shape in shapes):
        raise NotRowwiseError("an input has no axis")
    if rule is not None:
        return rule({**attrs, "__training__": training}, shapes)
    if facts.loss and name != "make_loss":
        raise NotRowwiseError("a loss head may divide by the batch size")
    if facts.kind in (Kind.ELEMENTWISE, Kind.BROADCAST) and not facts.writes(len(shapes)):
        return "r" * len(shapes)
    raise NotRowwiseError("no rule says that its rows are independent")


def is_random(op: str) -> bool:
    """Whether an operator draws numbers in some mode."""
    return info(op).random


def value(attrs: Attributes, key: str, default: Any = None) -> Any:
    """An attribute, as a Python value; MXNet's ``None`` and empty text give the default."""
    from graphopt.ir.attrs import from_mxnet

    found = attrs.get(key, default)
    if isinstance(found, str):
        found = from_mxnet({key: found}).get(key, default)
    return default if found is None else found


def axis_of(attrs: Attributes, rank: int, default: int, key: str = "axis") -> int:
    """One axis, counted from the front."""
    axis = int(value(attrs, key, default))
    return axis + rank if axis < 0 else axis


def axes_of(attrs: Attributes, rank: int) -> frozenset[int]:
    """The axes a reduction takes away; none stated means all."""
    stated = value(attrs, "axis", ())
    listed = tuple(stated) if isinstance(stated, (tuple, list)) else (stated,)
    found = {axis + rank if axis < 0 else axis for axis in listed}
    exclude = flag(attrs, "exclude")
    if not listed:
        return frozenset() if exclude else frozenset(range(rank))
    return frozenset(set(range(rank)) - found if exclude else found)


def flag(attrs: Attributes, key: str, default: bool = False) -> bool:
    """A boolean attribute."""
    return str(attrs.get(key, default)).lower() in ("true", "1")


def need(holds: bool, otherwise: str) -> None:
    """Raise unless a condition for independent rows holds."""
    if not holds:
        raise NotRowwiseError(otherwise)


def _rank(shapes: Shapes, least: int) -> int:
    need(len(shapes[0]) >= least, f"its input has fewer than {least} axes")
    return len(shapes[0])


def _data_and_weights(count: int, least: int = 2) -> Rule:
    """The first ``count`` inputs have rows, the others are weights."""

    def rule(attrs: Attributes, shapes: Shapes) -> str:
        _rank(shapes, least)
        return "r" * count + "s" * (len(shapes) - count)

    return rule


def _off_axis(default: int, key: str = "axis") -> Rule:
    """Works along one axis, which must not be axis 0; all inputs have rows."""

    def rule(attrs: Attributes, shapes: Shapes) -> str:
        rank = len(shapes[0])
        need(axis_of(attrs, rank, default, key) != 0, "it works along axis 0")
        need(all(len(shape) == rank for shape in shapes), "its inputs differ in rank")
        return "r" * len(shapes)

    return rule


def _norm(default: int) -> Rule:
    def rule(attrs: Attributes, shapes: Shapes) -> str:
        rank = _rank(shapes, 2)
        need(axis_of(attrs, rank, default) != 0, "it normalises along axis 0")
        return "rss"

    return rule


def _softmax(attrs: Attributes, shapes: Shapes) -> str:
    need(not flag(attrs, "use_length"), "it reads lengths")
    return _off_axis(-1)(attrs, shapes)


def _reduction(attrs: Attributes, shapes: Shapes) -> str:
    need(0 not in axes_of(attrs, len(shapes[0])), "it reduces axis 0")
    return "r"


def _search(default: int) -> Rule:
    def rule(attrs: Attributes, shapes: Shapes) -> str:
        need("axis" not in attrs or attrs["axis"] not in (None, "None"), "it searches all axes")
        return _off_axis(default)(attrs, shapes)

    return rule


def _argmax(attrs: Attributes, shapes: Shapes) -> str:
    need(value(attrs, "axis") is not None, "it searches all axes")
    return _off_axis(0)(attrs, shapes)


def _dot(attrs: Attributes, shapes: Shapes) -> str:
    need(not flag(attrs, "transpose_a"), "its first input is transposed")
    need(len(shapes[0]) >= 2, "its first input is a vector")
    return "rs"


def _all_rows(least: int) -> Rule:
    def rule(attrs: Attributes, shapes: Shapes) -> str:
        need(all(len(shape) >= least for shape in shapes), f"an input has under {least} axes")
        return "r" * len(shapes)

    return rule


def _layout(attrs: Attributes, shapes: Shapes) -> str:
    layout = value(attrs, "layout", "N")
    need(str(layout).startswith("N"), f"layout {layout} has its batch elsewhere")
    _rank(shapes, 3)
    return "r" + "s" * (len(shapes) - 1)


def _batch_norm(attrs: Attributes, shapes: Shapes) -> str:
    rank = _rank(shapes, 2)
    need(axis_of(attrs, rank, 1) != 0, "its channels are on axis 0")
    need(
        not attrs["__training__"] or flag(attrs, "use_global_stats"),
        "in training it takes statistics over the batch",
    )
    return "r" + "s" * (len(shapes) - 1)


def _dropout(attrs: Attributes, shapes: Shapes) -> str:
    need(0 not in tuple(value(attrs, "axes", ())), "one mask serves several rows")
    return "r"


def _leaky_relu(attrs: Attributes, shapes: Shapes) -> str:
    if value(attrs, "act_type", "leaky") == "prelu":
        # MXNet has slopes along axis 1 where they fit there, and else along axis 0.
        data, (*others, count) = shapes[0], shapes[1]
        need(count == 1 or data[1:2] == (count,), "its slopes lie along axis 0")
        need(others in ([], [1]), "its slopes lie along axis 0, too")
    return "r" + "s" * (len(shapes) - 1)


def _take(attrs: Attributes, shapes: Shapes) -> str:
    need(axis_of(attrs, len(shapes[0]), 0) == 0, "it takes along another axis")
    return "sr"


def _pick(attrs: Attributes, shapes: Shapes) -> str:
    need(value(attrs, "axis", -1) is not None, "it picks from the flat array")
    need(axis_of(attrs, _rank(shapes, 2), -1) != 0, "it picks along axis 0")
    return "rr"


def _transpose(attrs: Attributes, shapes: Shapes) -> str:
    axes = tuple(value(attrs, "axes", ()))
    need(bool(axes) and axes[0] == 0, "it moves axis 0")
    return "r"


def _swap(attrs: Attributes, shapes: Shapes) -> str:
    rank = len(shapes[0])
    moved = {axis_of(attrs, rank, 0, "dim1"), axis_of(attrs, rank, 0, "dim2")}
    need(0 not in moved, "it moves axis 0")
    return "r"


def _slice(attrs: Attributes, shapes: Shapes) -> str:
    begin, end, step = (tuple(value(attrs, k, ())) for k in ("begin", "end", "step"))
    whole = begin[:1] == (None,) and end[:1] == (None,) and step[:1] in ((), (None,), (1,))
    need(whole, "it slices axis 0")
    return "r"


def _repeat(attrs: Attributes, shapes: Shapes) -> str:
    need(value(attrs, "axis") is not None, "it repeats the flat array")
    return _off_axis(0)(attrs, shapes)


def _reverse(attrs: Attributes, shapes: Shapes) -> str:
    axis = value(attrs, "axis", 0)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    rank = len(shapes[0])
    need(all(a % rank != 0 for a in axes), "it reverses axis 0")
    return "r"


def _pad(attrs: Attributes, shapes: Shapes) -> str:
    need(tuple(value(attrs, "pad_width", (1, 1)))[:2] == (0, 0), "it pads axis 0")
    return "r"


def _where(attrs: Attributes, shapes: Shapes) -> str:
    need(len(shapes[0]) in (1, len(shapes[1])), "its condition has another rank")
    return "rrr"


def _instance(attrs: Attributes, shapes: Shapes) -> str:
    _rank(shapes, 3)
    return "rss"


def _topk(attrs: Attributes, shapes: Shapes) -> str:
    need(str(attrs.get("ret_typ", "indices")) != "mask", "its mask is not supported")
    return _search(-1)(attrs, shapes)


def _split_v2(attrs: Attributes, shapes: Shapes) -> str:
    return _off_axis(1)(attrs, shapes)


def _stack(attrs: Attributes, shapes: Shapes) -> str:
    need(axis_of(attrs, len(shapes[0]) + 1, 0) != 0, "it stacks along axis 0")
    return "r" * len(shapes)


def _gemm(attrs: Attributes, shapes: Shapes) -> str:
    need("axis" not in attrs, "its matrices lie along other axes")
    return _all_rows(3)(attrs, shapes)


def _refuse(why: str) -> Rule:
    def rule(attrs: Attributes, shapes: Shapes) -> str:
        raise NotRowwiseError(why)

    return rule


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


_RULES: dict[str, Rule] = {
    "FullyConnected": _data_and_weights(1),
    "Embedding": lambda attrs, shapes: "rs",
    "take": _take,
    "pick": _pick,
    "one_hot": lambda attrs, shapes: "r",
    "batch_take": _all_rows(1),
    "where": _where,
    "dot": _dot,
    "batch_dot": _all_rows(3),
    "_linalg_gemm2": _gemm,
    "Concat": _off_axis(1, "dim"),
    "stack": _stack,
    "SliceChannel": _off_axis(1),
    "_split_v2": _split_v2,
    "slice_axis": _off_axis(0),
    "slice": _slice,
    "SwapAxis": _swap,
    "transpose": _transpose,
    "repeat": _repeat,
    "reverse": _reverse,
    "Pad": _pad,
    "Dropout": _dropout,
    "LeakyReLU": _leaky_relu,
    "LayerNorm": _norm(-1),
    "InstanceNorm": _instance,
    "GroupNorm": _instance,
    "L2Normalization": _all_rows(2),
    "_contrib_div_sqrt_dim": _all_rows(2),
    "LRN": _all_rows(4),
    "SoftmaxActivation": _all_rows(2),
    "softmax": _softmax,
    "sort": _search(-1),
    "argsort": _search(-1),
    "topk": _topk,
    **_each("log_softmax softmin", _off_axis(-1)),
    **_each("sum mean max min prod nansum nanprod norm", _reduction),
    **_each("argmax argmin", _argmax),
    **_each("Convolution Deconvolution Pooling", _layout),
    **_each("BatchNorm CuDNNBatchNorm _contrib_BatchNormWithReLU", _batch_norm),
    **_each("add_n", _all_rows(1)),
    **_each("broadcast_to broadcast_axis broadcast_like", _refuse("it may stretch axis 0")),
    "MakeLoss": _refuse("a loss head may divide by the batch size"),
    "amp_cast": _all_rows(1),
}
