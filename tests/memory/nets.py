"""Nets whose training graphs differ in kind, as Symbols; and a run that shows every entry."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphopt.compat import import_mxnet
from graphopt.memory.training import Entry, TrainingGraph

Net = tuple[Any, dict[str, tuple[int, ...]]]
Array = np.ndarray[Any, Any]


def mlp() -> Net:
    """A multi-layer perceptron that ends in a loss."""
    mx = import_mxnet()
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc1")
    x = mx.sym.Activation(x, act_type="tanh", name="act")
    x = mx.sym.FullyConnected(x, num_hidden=3, name="fc2")
    return mx.sym.SoftmaxOutput(x, name="softmax"), {"data": (2, 5)}


def residual(units: int = 4, *, after: bool = False) -> Net:
    """Convolution, BatchNorm and ReLU around an identity; the ReLU after the sum, or before."""
    mx = import_mxnet()
    x = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), pad=(1, 1), name="c")
    for i in range(units):
        z = mx.sym.BatchNorm(x, name=f"bn{i}", fix_gamma=False)
        z = z if after else mx.sym.Activation(z, act_type="relu", name=f"relu{i}")
        z = mx.sym.Convolution(z, num_filter=4, kernel=(3, 3), pad=(1, 1), name=f"c{i}")
        x = mx.sym.elemwise_add(z, x, name=f"add{i}")
        x = mx.sym.Activation(x, act_type="relu", name=f"relu{i}") if after else x
    return x, {"data": (2, 3, 6, 6)}


def dropout() -> Net:
    """A mask that backward reads, and a product of a value with what was made of it."""
    mx = import_mxnet()
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    return mx.sym.Dropout(x, p=0.5, name="drop") * x * x, {"data": (3, 5)}


def lstm(steps: int = 12) -> Net:
    """An unrolled LSTM: gradients of shared weights of one shape, summed in chains."""
    mx = import_mxnet()
    cell = mx.rnn.LSTMCell(4, prefix="l_")
    words = mx.sym.Embedding(mx.sym.var("data"), input_dim=5, output_dim=4, name="embedding")
    out, _ = cell.unroll(steps, words, merge_outputs=True, layout="NTC")
    return mx.sym.sum(out, name="sum"), {"data": (2, steps)}


def branches() -> Net:
    """Split and concat, a value read by all, and two sums that hand their gradient on."""
    mx = import_mxnet()
    x = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(1, 1), name="c")
    parts = mx.sym.split(x, num_outputs=2, axis=1, name="split")
    a, b = mx.sym.tanh(parts[1]) + parts[0], parts[0] + parts[1]
    return mx.sym.concat(a * b, mx.sym.tanh(b), x, a, dim=1, name="join"), {"data": (2, 3, 4, 4)}


def heads() -> Net:
    """Several outputs, one read inside too; values without a gradient; gradients of zero."""
    mx = import_mxnet()
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    a = mx.sym.broadcast_mul(x, mx.sym.var("w", shape=(1, 4)), name="scaled")
    y = mx.sym.where(x > 0, x, a, name="where")
    y = mx.sym.BlockGrad(y, name="stop") + x.reshape((2, 4), name="same") + x * x
    return mx.sym.Group([mx.sym.mean(mx.sym.softmax(y)), x]), {"data": (2, 3)}


def recomputed() -> Net:
    """The residual net with everything but the sums marked for recomputation."""
    symbol, shapes = residual()
    for node in symbol.get_internals():
        if node.name.rstrip("0123") in ("bn", "relu", "c"):
            node._set_attr(__force_mirroring__="True")
    return symbol, shapes


def moves() -> Net:
    """Gradients that are forward operators: transposes, products, copies."""
    mx = import_mxnet()
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="fc")
    y = mx.sym.transpose(mx.sym.LayerNorm(x, name="norm"))
    y = mx.sym.dot(y, x, name="dot") - x.sum(axis=0, keepdims=True).broadcast_to((4, 4))
    y = mx.sym.batch_dot(y.expand_dims(0), y.expand_dims(0), transpose_b=True, name="products")
    y = mx.sym.swapaxes(y, dim1=1, dim2=2) + mx.sym.negative(y).tile((1, 1, 1))
    return mx.sym.stack(mx.sym.sqrt(mx.sym.square(y)), y, name="stack"), {"data": (4, 3)}


NETS: Mapping[str, Callable[[], Net]] = {
    "mlp": mlp,
    "residual": residual,
    "residual_after": lambda: residual(after=True),
    "recomputed": recomputed,
    "dropout": dropout,
    "lstm": lstm,
    "branches": branches,
    "heads": heads,
    "moves": moves,
}


def learned(symbol: Any) -> dict[str, str]:
    """A grad_req for all arguments but data and labels."""
    fed = ("data", "softmax_label")
    return {name: "write" for name in symbol.list_arguments() if name not in fed}


def watch(symbol: Any, graph: TrainingGraph, seed: int = 0) -> list[tuple[str, Array]]:
    """Name and content of each entry, in the order in which a training step writes them."""
    mx = import_mxnet()
    random = np.random.default_rng(seed)

    def array(name: str) -> Any:
        shape, dtype = graph.variables[name]
        values = random.integers(0, 5, shape) if name == "data" else random.normal(size=shape)
        return mx.nd.array(values, dtype=dtype)

    arguments = symbol.list_arguments()
    executor = symbol.bind(
        mx.cpu(),
        {name: array(name) for name in arguments},
        {name: array(name) for name in graph.gradients},
        {name: "write" if name in graph.gradients else "null" for name in arguments},
        {name: array(name) for name in symbol.list_auxiliary_states()},
    )
    seen: list[tuple[str, Array]] = []

    def look(name: str, handle: Any) -> None:
        array = mx.nd.NDArray(ctypes.cast(handle, mx.base.NDArrayHandle), writable=False)
        seen.append((name, array.asnumpy().copy()))

    executor.set_monitor_callback(look)
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(out.shape) * 0.5 for out in executor.outputs])
    mx.nd.waitall()
    return seen


def check_run(symbol: Any, graph: TrainingGraph) -> int:
    """Run a training step and compare sizes, sums and products; returns how many sums there are."""
    seen = watch(symbol, graph)
    value: dict[Entry, np.ndarray[Any, Any]] = {}
    for number, step in enumerate(graph.steps):
        if step.op == "_grad_add":  # MXNet lets the term add to it, which then holds the sum
            value[Entry(number)] = value[step.inputs[1]]
            continue
        for at, type_ in enumerate(step.outputs):
            value[Entry(number, at)] = seen.pop(0)[1]
            assert value[Entry(number, at)].shape == type_.shape
    assert not seen
    sums = 0
    for number, step in enumerate(graph.steps):
        if step.phase == "backward" and not step.of and step.op in ("add_n", "_copy"):
            # MXNet may write over the gradient of an output while others still need it.
            if any(graph.steps[entry.step].name.startswith("_head") for entry in step.inputs):
                continue
            terms = sum(value[entry] for entry in step.inputs)
            np.testing.assert_allclose(value[Entry(number)], terms, rtol=1e-4, atol=1e-5)
            sums += 1
        if step.op == "_backward_mul":
            head, left, right = step.inputs
            if left.step >= 0 and right.step >= 0:
                expected = value[head] * value[right]
                np.testing.assert_allclose(value[Entry(number)], expected, rtol=1e-4, atol=1e-5)
    return sums
