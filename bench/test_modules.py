"""Modules of Symbols, MXNet's interface before Gluon: optimized, as they are, and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphopt
from bench import workloads
from bench.conftest import THREADS
from bench.module_nets import (
    Classifier,
    LanguageModel,
    bound,
    digits,
    lenet,
    perceptron,
    resnet,
    sentences,
)
from bench.peers.client import Peers
from bench.report import Record
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error

mx = import_mxnet()

TARGETS = {"plain": 1.0}
LARGEST_ERROR = 1e-4
#: Of weights after steps, where gradients jump as a ReLU does.
LARGEST_JUMP = 0.1

#: A net and its batch, a smaller one, and what PyTorch's is called.
NETS: dict[str, tuple[Any, Any, str]] = {
    "LSTM language model, 32 x 30 of 10,000 words": (
        LanguageModel(),
        LanguageModel(50, 8, 4, 5),
        "words",
    ),
    "LeNet, 64 images": (
        Classifier(lenet, (64, 1, 28, 28)),
        Classifier(lenet, (2, 1, 28, 28)),
        "lenet",
    ),
    "text CNN, 50 x 56 words": (
        Classifier(sentences, (50, 56), 2, 5000),
        Classifier(sentences, (2, 7), 2, 5000),
        "sentences",
    ),
    "policy 17-64-64-6, 32 rows": (
        Classifier(perceptron, (32, 17), 6),
        Classifier(perceptron, (2, 17), 6),
        "perceptron",
    ),
    "digits 784-128-64-10, 128 rows": (
        Classifier(digits, (128, 784)),
        Classifier(digits, (2, 784)),
        "digits",
    ),
    "ResNet-18, 8 images": (
        Classifier(resnet, (8, 3, 224, 224), 100),
        Classifier(resnet, (1, 3, 32, 32), 100),
        "",
    ),
}


@pytest.mark.parametrize("trains", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("name", NETS)
def test_module(
    name: str,
    trains: bool,
    benchmark: Any,
    counters: Callable[..., None],
    record: Callable[[Record], None],
    peers: Peers,
    quick: bool,
    rounds: int,
) -> None:
    net, small, peer = NETS[name]
    counters(f"module/{name}", _graph(small), frozen=False)
    net = small if quick else net
    batch = net.given()
    plain = bound(net.module(), batch)
    fast = bound(graphopt.optimize(net.module(), strict=True), batch)
    error = relative_error(_found(plain, batch), _found(fast, batch))
    assert error < (LARGEST_JUMP if "ResNet" in name else LARGEST_ERROR)
    run = _step if trains else _forward
    contenders: dict[str, Any] = {
        "graphopt": lambda: run(fast, batch),
        "plain": lambda: run(plain, batch),
    }
    notes: tuple[str, ...] = ()
    if peer and not quick:
        if peers.has("torch_module"):
            request = {
                "net": peer,
                "shape": batch.data[0].shape,
                "classes": getattr(net, "words", getattr(net, "classes", 0)),
                "units": getattr(net, "units", 0),
                "words": getattr(net, "vocabulary", 0),
            }
            contenders["pytorch"] = peers.start(
                "torch_module", trains=trains, threads=THREADS, **request
            )
        else:
            notes = (peers.missing("torch_module"),)
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        title = f"Module, {'a step of SGD' if trains else 'forward'}, float32"
        shown = figures(medians) | {"max error": error}
        record(Record(title, name, shown, ratios(medians), TARGETS, notes))


#: What SoftmaxOutput is given: shapes of predictions and labels, and its attributes.
LOSSES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "words, 960 of 10,000": ((960, 10_000), (960,), {}),
    "anchors of SSD, 32 x 8,732 of 21": (
        (32, 21, 8732),
        (32, 8732),
        {"multi_output": True, "use_ignore": True, "normalization": "valid"},
    ),
    "pixels, 4 x 256 x 256 of 21": ((4, 21, 256, 256), (4, 256, 256), {"multi_output": True}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_softmax_output(
    name: str, benchmark: Any, record: Callable[[Record], None], quick: bool, rounds: int
) -> None:
    """Forward and backward, as executors run them."""
    shape, labels, attrs = LOSSES[name]
    if quick:
        shape, labels = (tuple(min(extent, 9) for extent in one) for one in (shape, labels))
    loss = mx.sym.SoftmaxOutput(mx.sym.var("x"), mx.sym.var("label"), **attrs)
    executors = {}
    for contender in ("graphopt", "plain"):
        executor = loss.simple_bind(mx.cpu(), grad_req={"x": "write"}, x=shape, label=labels)
        executor.arg_dict["x"][:] = np.random.default_rng(1).standard_normal(shape)
        executor.arg_dict["label"][:] = (
            np.arange(executor.arg_dict["label"].size).reshape(labels) % 8
        )
        fast = contender == "graphopt"
        executors[contender] = graphopt.optimize(executor, strict=True) if fast else executor

    def step(executor: Any) -> None:
        executor.forward(is_train=True)
        executor.backward()

    for executor in executors.values():
        step(executor)
    found = [{"gradient": e.grad_dict["x"].asnumpy()} for e in executors.values()]
    error = relative_error(found[1], found[0])
    assert error < LARGEST_ERROR
    assert "fuse-loss-heads: 1 kernel" in executors["graphopt"].explain()
    contenders = {key: lambda e=executor: step(e) for key, executor in executors.items()}
    medians = race(benchmark, contenders, rounds, quick)
    if medians:
        shown = figures(medians) | {"max error": error}
        record(Record("SoftmaxOutput, a step, float32", name, shown, ratios(medians), TARGETS, ()))


def _graph(net: Any) -> Any:
    module = net.module()
    batch = net.given()
    symbol = net.symbol(net.steps)[0] if isinstance(net, LanguageModel) else module.symbol
    arrays = [*batch.data, *batch.label]
    shapes = dict(zip(("data", "softmax_label"), (a.shape for a in arrays), strict=True))
    return workloads.optimized_graph(graphopt.lift(symbol, shapes), "training")


def _forward(module: Any, batch: Any) -> None:
    module.forward(batch, is_train=False)
    module.get_outputs()[0].wait_to_read()


def _step(module: Any, batch: Any) -> None:
    module.forward_backward(batch)
    module.update()


def _found(module: Any, batch: Any) -> dict[str, Any]:
    """Probabilities, and parameters after two steps."""
    module.forward(batch, is_train=False)
    found = {"outputs": module.get_outputs()[0].asnumpy()}
    for _ in range(2):
        _step(module, batch)
    return found | {name: array.asnumpy() for name, array in module.get_params()[0].items()}
