"""Nets in MXNet; runs in a peer's own Python, which graphopt does not mend."""

from __future__ import annotations

import numpy as np

for _name, _value in {"bool": bool, "object": object, "int": int, "float": float}.items():
    vars(np).setdefault(_name, _value)  # what MXNet reads and newer numpy has not

import mxnet  # noqa: E402

from bench import recurrence, tree_nets  # noqa: E402


def export(request: dict) -> dict:
    """An MXNet model to ONNX, with parameters as constants rather than inputs."""
    import onnx

    shapes = [tuple(shape) for shape in request["shapes"]]
    mxnet.onnx.export_model(request["symbol"], request["params"], shapes, np.float32, request["to"])
    model = onnx.load(request["to"])
    constants = {array.name for array in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    onnx.save(model, request["to"])
    return {}


class MXNet:
    """A hybridized net in a process that never heard of graphopt."""

    def __init__(self, request: dict) -> None:
        arrays = [mxnet.nd.array(np.load(path)) for path in request["inputs"]]
        self._net = mxnet.gluon.SymbolBlock.imports(request["symbol"], ["data"], request["params"])
        self._net.hybridize(static_alloc=True, static_shape=True)
        self._inputs = arrays
        self._backward = request.get("backward", False)
        if self._backward:
            arrays[0].attach_grad()

    def __call__(self) -> list:
        if not self._backward:
            found = self._net(*self._inputs)
            mxnet.nd.waitall()
            return [found.asnumpy()]
        with mxnet.autograd.record():
            found = self._net(*self._inputs)
        found.backward()
        mxnet.nd.waitall()
        return [found.asnumpy(), self._inputs[0].grad.asnumpy()]


class MXNetRecurrence:
    """A net of bench/recurrence.py, hybridized, in a process that never heard of graphopt."""

    def __init__(self, request: dict) -> None:
        net = recurrence.net_of(request["name"], recurrence.Size(*request["size"]))
        net.load_parameters(request["params"])
        self._net = recurrence.as_hybrid(request["name"], net)
        self._net.hybridize(static_alloc=True, static_shape=True)
        self._x = mxnet.nd.array(np.load(request["inputs"][0]))
        self._head = None
        if request.get("head"):
            self._head = mxnet.nd.array(np.load(request["head"]))
            self._x.attach_grad()

    def __call__(self) -> list:
        if self._head is None:
            found = self._net(self._x)
        else:
            with mxnet.autograd.record():
                found = self._net(self._x)
            found.backward(self._head)
        mxnet.nd.waitall()
        return [found.asnumpy()]


class MXNetTrees:
    """A net of bench/tree_nets.py; only those that are not sample by sample need graphopt."""

    def __init__(self, request: dict) -> None:
        self._steps, self._check = tree_nets.requested(request)

    def __call__(self) -> list:
        found = self._steps()
        mxnet.nd.waitall()
        return [found.asnumpy()]

    def found(self) -> list:
        """Of the batch to check, with the gradients."""
        return self._check.found()
