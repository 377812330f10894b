"""Outputs of graphs that ``graphopt opt`` writes are called as before, as a Module knows them."""

from __future__ import annotations

import numpy as np
import pytest

from graphopt.cli.output_names import with_output_names
from graphopt.ir.parser import parse


def unrolled(mx, cell):
    data = mx.sym.Embedding(mx.sym.var("data"), input_dim=4, output_dim=3, name="e")
    merged, states = cell.unroll(5, data, merge_outputs=True, layout="NTC")
    return mx.sym.Group([merged, *states])


@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell", "RNNCell"])
def test_outputs_of_unrolled_cells(graphopt, tmp_path, mx, kind, mode):
    symbol = unrolled(mx, getattr(mx.rnn, kind)(4, prefix="g_"))
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", (2, 5))], for_training=False)
    module.init_params(mx.init.Normal(0.5))
    module.save_checkpoint(str(tmp_path / "m"), 0)
    given = (tmp_path / "m-symbol.json", "--params", tmp_path / "m-0000.params", "--mode", mode)
    path = tmp_path / "o-symbol.json"
    assert graphopt("opt", *given, "--shape", "data:2,5", "-o", path).code == 0
    found = mx.mod.Module.load(str(tmp_path / "o"), 0, label_names=None)
    found.bind([("data", (2, 5))], for_training=False)
    assert found.output_names == module.output_names
    batch = mx.io.DataBatch([mx.nd.random.uniform(0, 3, shape=(2, 5)).floor()])
    for each in (module, found):
        each.forward(batch, is_train=False)
    for got, want in zip(found.get_outputs(), module.get_outputs(), strict=True):
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-4, atol=1e-5)


def test_outputs_that_passes_split(graphopt, tmp_path, mx):
    data = mx.sym.var("data")
    layers = [mx.sym.FullyConnected(data, num_hidden=3, name=f"fc{n}") for n in range(2)]
    mx.sym.Group(layers).save(str(tmp_path / "m-symbol.json"))
    given = (tmp_path / "m-symbol.json", "--shape", "data:2,4", "-p", "merge-parallel-gemm")
    assert graphopt("opt", *given, "-o", tmp_path / "o-symbol.json").code == 0
    made = mx.sym.load(str(tmp_path / "o-symbol.json"))
    assert made.list_outputs() == ["fc0_output", "fc1_output"]
    feeds = {
        name: mx.nd.random.uniform(shape=shape)
        for name, shape in zip(made.list_arguments(), made.infer_shape(data=(2, 4))[0], strict=True)
    }
    want = mx.sym.Group(layers).bind(mx.cpu(), feeds).forward()
    for got, wanted in zip(made.bind(mx.cpu(), feeds).forward(), want, strict=True):
        np.testing.assert_allclose(got.asnumpy(), wanted.asnumpy(), rtol=1e-5, atol=1e-6)


BEFORE = """\
graph net(%x: f32[2,4]) {
  %a = relu(%x) : f32[2,4]
  %b = exp(%a) : f32[2,4]
  %c = _copy(%x) : f32[2,4]
  return %a, %b, %c
}
"""


@pytest.mark.parametrize(
    ("body", "returned"),
    [
        ("%y = relu(%x) : f32[2,4] %z = exp(%y) : f32[2,4] return %y, %z, %z", ["a", "z", "z"]),
        ("%b = relu(%x) : f32[2,4] %z = exp(%b) : f32[2,4] return %b, %z, %x", ["a", "z", "x"]),
        ("%y = relu(%x) : f32[2,4] return %x, %x, %y", ["x", "x", "c"]),
    ],
    ids=["twice", "taken", "inputs"],
)
def test_what_is_named(body, returned):
    graph = parse("graph net(%x: f32[2,4]) { " + body + " }")
    named = with_output_names(graph, parse(BEFORE))
    assert [named[value.node].name for value in named.outputs] == returned
