"""The nets that benches run, by name: Gluon's vision zoo and the models of the demo."""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import graphopt
from graphopt.compat import import_mxnet
from graphopt.demo import models
from graphopt.demo.checking import Arrays
from graphopt.demo.models import Example
from graphopt.ir.graph import Graph
from graphopt.passes import PIPELINES

#: Graphs of other people's models, where this machine has them.
DATA = Path(os.environ.get("GRAPHOPT_DATA") or Path(__file__).parents[2] / "shared" / "data")

#: The six nets of the inference figures, and the extent each is built for.
CNNS = {
    "resnet50_v1": 224,
    "mobilenet1_0": 224,
    "vgg16": 224,
    "densenet121": 224,
    "inception_v3": 299,
    "squeezenet1_0": 224,
}

#: Extents for a check; nets that are missing pool over a fixed window and take only their own.
SMALL = {"resnet50_v1": 64, "mobilenet1_0": 64, "vgg16": 32}

ENCODER = {"batch": 8, "length": 128, "width": 768, "heads": 12, "layers": 4}
SMALL_ENCODER = {"batch": 2, "length": 16, "width": 64, "heads": 4, "layers": 4}

#: Training steps whose gradients are compared; small enough to run as a check too.
TRAINED: dict[str, Callable[[], Example]] = {
    "resnet50_v1": lambda: models.zoo("resnet50_v1", 4, 96),
    "resnet18_v2": lambda: models.zoo("resnet18_v2", 4, 96),
    "mobilenet1_0": lambda: models.zoo("mobilenet1_0", 4, 96),
    "vgg11": lambda: models.zoo("vgg11", 2, 32),
    "densenet121": lambda: models.zoo("densenet121", 2, 224),
    "squeezenet1_0": lambda: models.zoo("squeezenet1_0", 2, 224),
    "encoder": lambda: models.encoder(batch=4, length=32, width=128, heads=4),
    "lstm": lambda: models.lstm(length=20, batch=16, features=57, hidden=64),
}


def gradients(net: Any) -> Arrays:
    """Those of a net's parameters, by name."""
    parameters = net.collect_params().values()
    return {p.name: p.grad().asnumpy() for p in parameters if p.grad_req != "null"}


def zoo_names() -> list[str]:
    """Every vision model of Gluon's zoo."""
    vision = import_mxnet().gluon.model_zoo.vision
    return sorted(
        name
        for name, make in vars(vision).items()
        if inspect.isfunction(make) and not name.startswith("get_")
    )


def zoo_graph(name: str, batch: int = 1) -> Graph:
    """The graph of a zoo model at the extent it is built for; no parameter is made."""
    vision = import_mxnet().gluon.model_zoo.vision
    extent = 299 if name == "inception_v3" else 224
    net = getattr(vision, name)(prefix=f"{name}_")
    return graphopt.lift(net, {"data": (batch, 3, extent, extent)})


def calibrated(symbol: Any, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The feeds, with statistics of BatchNorm that fit what flows through the net.

    With statistics drawn at random activations grow from layer to layer, up to 1e7 in deep nets,
    and a tolerance says little. As after training, each BatchNorm is to put out numbers around 1.
    """
    document = json.loads(symbol.tojson())
    norms = [i for i, node in enumerate(document["nodes"]) if node["op"].startswith("BatchNorm")]
    if not norms:
        return dict(feeds)
    for i in norms:
        attrs = {"use_global_stats": "False", "output_mean_var": "True"}
        document["nodes"][i]["attrs"] = document["nodes"][i].get("attrs", {}) | attrs
    document["heads"] = [[i, output, 0] for i in norms for output in (1, 2)]
    statistics = import_mxnet().sym.load_json(json.dumps(document))
    needed = {name: feeds[name] for name in statistics.list_inputs()}
    found = run_symbol(statistics, needed, training=True)
    fitted = dict(feeds)
    for number, i in enumerate(norms):
        mean, inverse_deviation = found[2 * number : 2 * number + 2]
        names = [document["nodes"][source]["name"] for source, *_ in document["nodes"][i]["inputs"]]
        # A layer that sees one number a channel has no variance to go by.
        if inverse_deviation.max() < 30:
            fitted[names[3]], fitted[names[4]] = mean, inverse_deviation**-2
    return fitted


def run_symbol(
    symbol: Any, feeds: Mapping[str, np.ndarray], *, training: bool = False
) -> list[np.ndarray]:
    """Outputs of MXNet's executor.

    Without its oneDNN fusions, on by default: they get some graphs with several outputs wrong.
    """
    mx = import_mxnet()
    arrays = {name: mx.nd.array(array, dtype=array.dtype) for name, array in feeds.items()}
    with mock.patch.dict(os.environ, MXNET_SUBGRAPH_BACKEND="NONE"):
        executor = symbol.bind(
            mx.cpu(),
            {name: arrays[name] for name in symbol.list_arguments()},
            grad_req="null",
            aux_states={name: arrays[name] for name in symbol.list_auxiliary_states()},
        )
    return [array.asnumpy() for array in executor.forward(is_train=training)]


def optimized_graph(graph: Graph, mode: Any = "inference") -> Graph:
    """After the default pipeline; in strict mode, so that no pass fails unseen.

    What would be measured is taken as it is: counters must not depend on the clock.
    """
    return graphopt.run(graph, unmeasured(mode), mode=mode, strict=True).graph


def unmeasured(mode: Any) -> str:
    """The pipeline of a mode, without what a pass would measure."""
    steps = PIPELINES[mode].replace("import-rnn", "import-rnn{measure=False}")
    return steps.replace("select-convolution,", "")


def in_float64(example: Example, find: Callable[[Example], Arrays]) -> Arrays:
    """What ``find`` finds of the example in float64, by MXNet; the net is left as it was."""
    calls = tuple(tuple(x.astype("float64") for x in args) for args in example.calls)
    example.net.cast("float64")
    try:
        return find(replace(example, calls=calls))
    finally:
        example.net.cast("float32")


def distance(exact: Arrays, found: Arrays) -> float:
    """How far arrays are from exact ones, as a part of these, all together."""
    apart = sum(float(np.square(found[name] - array).sum()) for name, array in exact.items())
    return math.sqrt(apart / sum(float(np.square(array).sum()) for array in exact.values()))


def save_inputs(example: Example, folder: Path) -> list[str]:
    """The arrays of the example's call as files."""
    paths = []
    for number, array in enumerate(example.calls[0]):
        path = folder / f"{example.name}-input{number}.npy"
        np.save(path, array.asnumpy())
        paths.append(str(path))
    return paths


def save_checkpoint(example: Example, folder: Path) -> tuple[Path, Path]:
    """The net as a Symbol file and a params file."""
    mx = import_mxnet()
    symbol = example.net(mx.sym.var("data"))
    aux = set(symbol.list_auxiliary_states())
    arrays = {
        f"{'aux' if name in aux else 'arg'}:{name}": parameter.data()
        for name, parameter in example.net.collect_params().items()
    }
    paths = folder / f"{example.name}-symbol.json", folder / f"{example.name}-0000.params"
    symbol.save(str(paths[0]))
    mx.nd.save(str(paths[1]), arrays)
    return paths


def save_weights(example: Example, folder: Path) -> Path:
    """All parameters as one numpy file."""
    path = folder / f"{example.name}.npz"
    arrays = {name: p.data().asnumpy() for name, p in example.net.collect_params().items()}
    np.savez(path, **arrays)
    return path
