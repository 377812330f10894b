"""Recording in Python finds the same shortcuts as the compiled recorder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import graphopt
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, initialized

mx = import_mxnet()
nd, nn = mx.nd, mx.gluon.nn
REPOSITORY = Path(__file__).parents[2]


def first_and_all(net: Any, words: Any) -> Any:
    return net.embed(words).sum(axis=1) + net.embed(words[:, 0])


def numbers_of_words(net: Any, words: Any) -> Any:
    return net.embed(words).sum(axis=1) * words[:, 1].astype("float32") + words[:, -1]


def numbers_alone(net: Any, words: Any) -> Any:
    return words[:, 0] + words[:, 2]


def counted() -> list[Any]:
    """What is recorded of each net, whose values are those of plain MXNet."""
    samples = [(nd.array(row),) for row in ([[1, 2, 3]], [[4, 5, 6]], [[2, 2, 1]])]
    found: list[Any] = []
    for forward in (first_and_all, numbers_of_words, numbers_alone):
        net = initialized(Fn(forward, embed=nn.Embedding(7, 4)))
        batched = graphopt.batch(net)
        values = batched(samples).asnumpy()
        expected = nd.concat(*[net(*sample) for sample in samples], dim=0).asnumpy()
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
        told = batched.statistics
        found.append((told.calls, told.groups, told.operators))
    return found


def test_parts_of_rows_of_numbers_are_as_many_calls() -> None:
    script = (
        "import graphopt\n"
        "from graphopt.batching import speedups\n"
        "from tests.batching.test_python_recorder import counted\n"
        "print(counted()); print(speedups.load()[1])\n"
    )
    found = []
    for name in ("python", "fastest"):
        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script],
            env=os.environ | {"GRAPHOPT_RECORDER": name, "PYTHONPATH": str(REPOSITORY)},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(ran.stdout.splitlines())
    assert found[0][1] == "GRAPHOPT_RECORDER=python"
    assert found[0][0] == found[1][0]
