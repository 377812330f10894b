"""Recording in Python finds the same shortcuts as the compiled recorder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.batching.comparing import Fn, initialized
from tests.batching.test_native import made, samples

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
    given = [(nd.array(row),) for row in ([[1, 2, 3]], [[4, 5, 6]], [[2, 2, 1]])]
    found: list[Any] = []
    for forward in (first_and_all, numbers_of_words, numbers_alone):
        net = initialized(Fn(forward, embed=nn.Embedding(7, 4)))
        batched = graphopt.batch(net)
        values = batched(given).asnumpy()
        expected = nd.concat(*[net(*sample) for sample in given], dim=0).asnumpy()
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6)
        told = batched.statistics
        found.append((told.calls, told.groups, told.operators))
    return found


def trees() -> list[Any]:
    """What is recorded of trees, and their values to the last bit."""
    batched = graphopt.batch(made())
    found = batched(samples(30)).asnumpy().tobytes().hex()
    return [batched.statistics.calls, batched.statistics.groups, found]


@pytest.fixture(scope="module")
def in_python() -> list[str]:
    """What a process that records in Python tells."""
    script = (
        "import graphopt\n"
        "from graphopt.batching import speedups\n"
        "from tests.batching.test_python_recorder import counted, trees\n"
        "print(speedups.load()[1]); print(counted()); print(trees())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=os.environ | {"GRAPHOPT_RECORDER": "python", "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    found = ran.stdout.splitlines()
    assert found[0] == "GRAPHOPT_RECORDER=python"
    return found


def test_parts_of_rows_of_numbers_are_as_many_calls(in_python: list[str]) -> None:
    assert in_python[1] == str(counted())


def test_trees_are_the_same(in_python: list[str]) -> None:
    assert in_python[2] == str(trees())
