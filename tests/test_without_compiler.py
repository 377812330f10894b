"""Without a C++ compiler operators stay unfused, and nets compute what they do in MXNet.

Each test runs in a process of its own, as one that has found no bridge does not look again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

#: A wheel may have brought the bridge; weights are large enough for memory to be given back.
_NETS = """
from graphopt.kernels.bridge import build
build._shipped = build._kept
import graphopt
import mxnet as mx
import numpy as np
nn = mx.gluon.nn

def pair():
    made = []
    for _ in range(2):
        net = nn.HybridSequential()
        net.add(nn.Dense(300, in_units=800, activation="relu"), nn.Dense(4, in_units=300))
        net.initialize(mx.init.Constant(0.01))
        made.append(net)
    return made

def same(got, want):
    np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-6)

x = mx.nd.random.uniform(shape=(2, 800))
"""

_INFERENCE = """
for options in ({}, {"mode": "inference"}, {"memory": "100MB"}, {"strict": True}):
    net, plain = pair()
    fast = graphopt.optimize(net, **options)
    same(fast(x), plain(x))
"""

_LOADED = """
net, plain = pair()
fast = graphopt.optimize(net)
fast(x)
fast.export("net")
same(graphopt.load("net-symbol.json", "net-0000.params")(x), plain(x))
"""

_TRAINING = """
net, plain = pair()
fast = graphopt.optimize(net)
trainers = [
    graphopt.optimize(mx.gluon.Trainer(net.collect_params(), "adam")),
    mx.gluon.Trainer(plain.collect_params(), "adam"),
]
for _ in range(3):
    for each, trainer in zip((fast, plain), trainers):
        with mx.autograd.record():
            loss = each(x).sum()
        loss.backward()
        trainer.step(2)
    same(fast(x), plain(x))
"""

_STEPS = """
net, plain = pair()
loss = mx.gluon.loss.L2Loss()
trainer, own = [mx.gluon.Trainer(each.collect_params(), "adam") for each in (net, plain)]
step = graphopt.train_step(net, loss, trainer)
for _ in range(3):
    with mx.autograd.record():
        want = loss(plain(x), mx.nd.ones((2, 4)))
    want.backward()
    own.step(2)
    same(step(x, mx.nd.ones((2, 4))), want)
same(net(x), plain(x))
"""

_MEMORY = """
from graphopt.errors import MissingDependencyError
for options in ({"memory": "100MB"}, {"max_shapes": {"data": (2, 800)}}):
    net, plain = pair()
    fast = graphopt.optimize(net, **options)
    try:
        with mx.autograd.record():
            fast(x)
    except MissingDependencyError as error:
        assert "memory=" in str(error) and "C++ compiler" in str(error), error
    else:
        raise AssertionError("memory is not bounded")
    same(fast(x), plain(x))
"""

_EXPLAINED = """
net, plain = pair()
fast = graphopt.optimize(net)
same(fast(x), plain(x))
print(fast.explain())
"""

_DEMO = """
from graphopt.demo import main
planned = main._plan
main._plan = lambda quick: planned(quick)[2:4]
raise SystemExit(main.run_demo(quick=True))
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment |= {
        "GRAPHOPT_CACHE_DIR": str(folder / "cache"),
        "PATH": str(folder),
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        [sys.executable, "-c", _NETS + code],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(_INFERENCE + _LOADED + _TRAINING + _STEPS + _MEMORY, id="all"),
        pytest.param(_INFERENCE, id="inference", marks=pytest.mark.slow),
        pytest.param(_LOADED, id="loaded", marks=pytest.mark.slow),
        pytest.param(_TRAINING, id="training", marks=pytest.mark.slow),
        pytest.param(_STEPS, id="steps", marks=pytest.mark.slow),
        pytest.param(_MEMORY, id="memory", marks=pytest.mark.slow),
    ],
)
def test_nets_compute_as_in_mxnet(code: str, tmp_path: Path) -> None:
    told = run(code, tmp_path).stderr
    assert told.count("need a C++ compiler") == 1
    assert told.count("without them graphopt leaves operators unfused") == 1


def test_explain_tells_why_parameters_are_read(tmp_path: Path) -> None:
    told = run(_EXPLAINED, tmp_path).stdout
    assert "  parameters: read in every call, as writes to them are not noticed: graphopt" in told
    assert "fuse-convolutions refused: they need frozen parameters: use mode='inference'" in told


@pytest.mark.slow
def test_the_demo_shows_what_there_is(tmp_path: Path) -> None:
    shown = run(_DEMO, tmp_path).stdout
    for title in ("pass by pass", "graphopt.optimize(net) beside hybridize", "speed-up"):
        assert title in shown
