"""Prints, as JSON, the MiB that calls of a net keep resident in this process."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphopt
from graphopt.compat import import_mxnet
from graphopt.demo import models

mx = import_mxnet()
gluon = mx.gluon

#: A net and the arguments of a call.
Case = tuple[Any, tuple[Any, ...]]


class LanguageModel(gluon.HybridBlock):  # type: ignore[misc, name-defined]
    """Two layers of LSTM between a table of words and scores of the next ones."""

    def __init__(self, words: int, width: int, **more: Any) -> None:
        super().__init__(**more)
        with self.name_scope():
            self.words = gluon.nn.Embedding(words, width)
            self.lstm = gluon.rnn.LSTM(width, 2, input_size=width)
            self.out = gluon.nn.Dense(words, flatten=False, in_units=width)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.out(self.lstm(self.words(x)))


def _of_zoo(name: str, size: int = 224) -> Callable[[], Case]:
    def make() -> Case:
        net = getattr(gluon.model_zoo.vision, name)()
        net.initialize(mx.init.Xavier(magnitude=2))
        net(mx.nd.zeros((1, 3, size, size)))  # parameters are made
        return net, (mx.nd.random.uniform(shape=(1, 3, size, size)),)

    return make


def _encoder() -> Case:
    example = models.encoder(1, 128, 768, 12, 0, 12)
    return example.net, example.calls[0]


def _language_model() -> Case:
    net = LanguageModel(10_000, 650)
    net.initialize(mx.init.Xavier())
    return net, (mx.nd.arange(35).reshape((35, 1)),)


#: Nets by name, of one sample each.
CASES: dict[str, Callable[[], Case]] = {
    "squeezenet1_0": _of_zoo("squeezenet1_0"),
    "resnet50_v1": _of_zoo("resnet50_v1"),
    "inception_v3": _of_zoo("inception_v3", 299),
    "vgg16": _of_zoo("vgg16"),
    "encoder, 12 layers of 768": _encoder,
    "LSTM language model, 2 x 650": _language_model,
}


def resident(which: str = "VmRSS") -> float:
    """MiB of this process: ``VmRSS`` now, ``VmHWM`` at most so far."""
    found = re.search(rf"{which}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def main() -> None:
    """Arguments: a case; plain or graphopt."""
    name, who = sys.argv[1:]
    net, arguments = CASES[name]()
    mx.nd.waitall()
    before = resident()
    if who == "plain":
        net.hybridize(static_alloc=True, static_shape=True)
    else:
        net = graphopt.optimize(net)
    for _ in range(4):
        net(*arguments).wait_to_read()
    mx.nd.waitall()
    parameters = sum(p.data().size for p in net.collect_params().values()) * 4 / 2**20
    found = {"parameters": parameters, "before": before}
    sys.stdout.write(json.dumps(found | {"kept": resident(), "most": resident("VmHWM")}) + "\n")


if __name__ == "__main__":
    main()
