"""Nets that are called as the process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

#: Calls of nets that the calling thread runs, and whose training step the bridge holds.
NETS = """
import atexit, sys
import graphopt
import mxnet as mx
from mxnet.gluon import nn

def layers():
    net = nn.HybridSequential()
    net.add(nn.Dense(8, activation="tanh"), nn.Dense(4))
    net.initialize(mx.init.Normal(0.5))
    return net

def inferred(net):
    return [net(x).asnumpy()]

def learnt(net):
    with mx.autograd.record():
        loss = (net(x) ** 2).sum()
    loss.backward()
    return [loss.asnumpy(), *(p.grad().asnumpy() for p in net.collect_params().values())]

x = mx.nd.ones((2, 6))
calls = {"inferred": inferred, "learnt": learnt, "budgeted": learnt}
ways = []
for name in sys.argv[1:]:
    net = layers()
    expected = calls[name](net)
    budget = {"memory": "1GiB"} if name == "budgeted" else {}
    ways.append((calls[name], graphopt.optimize(net, **budget), expected))
"""

EXIT_HANDLER = """
def last():
    for call, fast, expected in ways:
        found = [call(fast) for _ in range(8)]
        print(all(abs(a - b).max() < 1e-5 for at in found for a, b in zip(at, expected)))

atexit.register(last)
for call, fast, _ in ways:
    call(fast)
"""


def told(code: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NETS + code, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


CALLS = ["inferred", "learnt", "budgeted"]


def test_an_exit_handler_older_than_the_first_calls() -> None:
    assert told(EXIT_HANDLER, *CALLS) == ["True"] * 3


@pytest.mark.slow  # the same calls, and nothing loaded but what one of them needs
@pytest.mark.parametrize("call", CALLS)
def test_an_exit_handler_older_than_the_first_call(call: str) -> None:
    assert told(EXIT_HANDLER, call) == ["True"]
