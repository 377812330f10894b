"""MXNet's operators that run over neighbouring axes, as kernel instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from graphopt.ir.attrs import Attrs
from graphopt.ir.graph import Graph
from graphopt.ir.node import Node
from graphopt.kernels.spec import Arg
from graphopt.passes.fusion.operators import (
    Build,
    Check,
    Emit,
    Row,
    all_of,
    flag,
    instruction,
    number,
    of_one_dtype,
    refuse,
    single,
)


def _axes_attr(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axes of a reduction: all without ``axis``; ``exclude`` takes the others."""
    given = attrs.get("axis")
    if given is None or given == ():
        return tuple(range(rank))
    axes = given if isinstance(given, tuple) else (given,)
    chosen = {int(axis) % rank if rank else int(axis) for axis in axes}
    if flag(attrs, "exclude"):
        chosen = set(range(rank)) - chosen
    return tuple(sorted(chosen))


def _numpy_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """``mx.np`` reduces nothing where it is given no axes."""
    return () if attrs.get("axis") == () else _axes_attr(attrs, rank)


def _one_axis(default: int) -> Callable[[Attrs, int], tuple[int, ...]]:
    return lambda attrs, rank: (int(number(attrs, "axis", default)) % max(rank, 1),)


def _of_activation(attrs: Attrs, rank: int) -> tuple[int, ...]:
    return (1,) if _mode(attrs) == "channel" else (rank - 1,)


def _spatial(_attrs: Attrs, rank: int) -> tuple[int, ...]:
    return tuple(range(2, rank))


def _by_mode(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """Of L2Normalization: samples, places or channels."""
    bounds = {"channel": (1, 2), "spatial": (2, rank)}
    return tuple(range(*bounds.get(_mode(attrs), (1, rank))))


def _check_row(axes: Callable[[Attrs, int], tuple[int, ...]], *more: Check) -> Check:
    def check(node: Node, graph: Graph) -> str | None:
        rank = graph.type_of(node.inputs[0]).rank
        if rank is None:
            return "the rank of its input is not known"
        found = axes(node.attrs, rank)
        if not found:
            return "it reduces no axes"
        if found[-1] - found[0] >= len(found):
            return f"it reduces axes {found}, which are no neighbours"
        return None

    return all_of(of_one_dtype, check, *more)


def _is_given(*names: str) -> Check:
    """Refuses attributes that have a value; ``dtype`` may repeat the dtype of the output."""

    def check(node: Node, _graph: Graph) -> str | None:
        for name in names:
            found = node.attrs.get(name)
            if found not in (None, -1, "None") and not (
                name.endswith("dtype") and found == node.type.dtype
            ):
                return f"it has {name}={found}"
        return None

    return check


def _check_temperature(node: Node, _graph: Graph) -> str | None:
    temperature = number(node.attrs, "temperature", 1.0)
    return None if temperature > 0 else f"its temperature is {temperature}"


def _check_length(node: Node, _graph: Graph) -> str | None:
    if flag(node.attrs, "use_length") or len(node.inputs) > 1:
        return "its rows have lengths of their own"
    return None


def _check_unused(node: Node, graph: Graph) -> str | None:
    """Outputs but the first are not computed."""
    for value in node.values[1:]:
        if graph.users(value) or graph.is_output(value):
            return f"output {value.index} is used"
    return None


def _check_norm(node: Node, _graph: Graph) -> str | None:
    order = int(number(node.attrs, "ord", 2))
    return None if order in (1, 2) else f"it is the norm of order {order}"


def _mode(attrs: Attrs) -> str:
    return str(attrs.get("mode") or "instance")


def _check_mode(*known: str) -> Check:
    return refuse(lambda attrs: _mode(attrs) not in known, "its mode has no translation")


def _check_matrix(node: Node, graph: Graph) -> str | None:
    """Of more axes MXNet takes the softmax along the last, and its gradient along axis 1."""
    rank = graph.type_of(node.inputs[0]).rank
    is_plain = rank == 2 or _mode(node.attrs) == "channel"
    return None if is_plain else f"its input has {rank} axes, not 2"


def _mean(emit: Emit, args: Sequence[Arg], _attrs: Attrs) -> Arg:
    return emit("div", emit("reduce_sum", args[0]), emit("extent"))


def _norm(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    if int(number(attrs, "ord", 2)) == 1:
        return emit("reduce_sum", emit("abs", args[0]))
    # Squares of large and small numbers leave the range of float32. Sums of scaled ones cost little
    # beside, where a scale by the largest number would be a second walk along the row.
    squares = emit("reduce_sum", emit("square", args[0]))
    # What is small among large ones counts for as much as is still normal once it is scaled, since
    # processors are slow below.
    large = _scaled_norm(emit, emit("max", emit("abs", args[0]), 2.0**20), 2.0**-80)
    small = _scaled_norm(emit, args[0], 2.0**90)
    length = emit("where", emit("lt", squares, 2.0**-80), small, emit("sqrt", squares))
    length = emit("where", emit("gt", squares, 2.0**120), large, length)
    return emit("with_slope", length, squares, emit("div", 0.5, length))


def _scaled_norm(emit: Emit, x: Arg, scale: float) -> Arg:
    squares = emit("reduce_sum", emit("square", emit("mul", x, scale)))
    return emit("mul", emit("sqrt", squares), 1 / scale)


def _softmax(name: str, negate: bool = False) -> Build:
    def build(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
        x = emit("neg", args[0]) if negate else args[0]
        return emit(name, emit("div", x, number(attrs, "temperature", 1.0)))

    return build


def _norm_layer(epsilon: float) -> Build:
    def build(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
        even = emit("normalize", args[0], single(attrs, "eps", epsilon))
        return emit("add", emit("mul", even, args[1]), args[2])

    return build


def _l2_normalization(emit: Emit, args: Sequence[Arg], attrs: Attrs) -> Arg:
    squares = emit("reduce_sum", emit("square", args[0]))
    return emit("mul", args[0], emit("rsqrt", emit("add", squares, single(attrs, "eps", 1e-10))))


def _reduction(name: str, build: Build, *more: Check) -> Row:
    axes = _numpy_axes if name.startswith("_np") else _axes_attr
    check = _check_row(axes, _is_given("dtype", "out_dtype", "initial"), *more)
    return Row(build, check, axes, reduces=True)


def _softmax_row(build: Build) -> Row:
    axis = _one_axis(-1)
    more = (_is_given("dtype"), _check_temperature, _check_length)
    return Row(build, _check_row(axis, *more), axis)


ROWS: Final[dict[str, Row]] = {
    **{name: _reduction(name, instruction("reduce_sum")) for name in ("sum", "_np_sum")},
    **{name: _reduction(name, _mean) for name in ("mean", "_npi_mean")},
    **{name: _reduction(name, instruction("reduce_max")) for name in ("max", "_np_max")},
    **{name: _reduction(name, instruction("reduce_min")) for name in ("min", "_np_min")},
    **{name: _reduction(name, instruction("reduce_prod")) for name in ("prod", "_np_prod")},
    "norm": _reduction("norm", _norm, _check_norm),
    "softmax": _softmax_row(_softmax("softmax")),
    "log_softmax": _softmax_row(_softmax("log_softmax")),
    "softmin": _softmax_row(_softmax("softmax", negate=True)),
    "SoftmaxActivation": Row(
        instruction("softmax"),
        _check_row(_of_activation, _check_mode("instance", "channel"), _check_matrix),
        _of_activation,
    ),
    "LayerNorm": Row(_norm_layer(1e-5), _check_row(_one_axis(-1), _check_unused), _one_axis(-1)),
    "InstanceNorm": Row(_norm_layer(1e-3), _check_row(_spatial, _check_unused), _spatial),
    "L2Normalization": Row(
        _l2_normalization,
        _check_row(_by_mode, _check_mode("instance", "channel", "spatial"), _check_unused),
        _by_mode,
    ),
}
