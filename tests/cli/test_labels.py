"""What is said of files without the labels that losses read."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def checkpoint(tmp_path, mx):
    """A classifier that a Module saved, as arguments, with data and what it predicts."""
    scores = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(scores, name="softmax"))
    data = mx.io.NDArrayIter(
        mx.nd.random.normal(shape=(8, 6)), mx.nd.zeros(8), batch_size=4, label_name="softmax_label"
    )
    module.bind(data.provide_data, data.provide_label, for_training=False)
    module.init_params(mx.init.Normal(1))
    module.save_checkpoint(str(tmp_path / "m"), 1)
    given = tmp_path / "m-symbol.json", "--params", tmp_path / "m-0001.params"
    return (*given, "--shape", "data:4,6"), data, module


def test_a_label_that_is_gone_is_named(graphopt, checkpoint, tmp_path, mx):
    given, data, module = checkpoint
    ran = graphopt("opt", *given, "-o", tmp_path / "o-symbol.json")
    assert ran.code == 0
    assert ran.err.splitlines()[-1] == (
        "labels are no inputs of it: 'softmax_label'; give a Module label_names=None"
        " and bind it to data alone, or keep losses (and score) with --mode training"
    )
    found = mx.mod.Module.load(str(tmp_path / "o"), 0, label_names=None)
    found.bind(data.provide_data, for_training=False)
    got, want = found.predict(data).asnumpy(), module.predict(data).asnumpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_losses_that_are_kept_score(graphopt, checkpoint, tmp_path, mx):
    given, data, module = checkpoint
    ran = graphopt("opt", *given, "--mode", "training", "-o", tmp_path / "o-symbol.json")
    assert ran.code == 0
    assert "labels are" not in ran.err
    found = mx.mod.Module.load(str(tmp_path / "o"), 0)
    found.bind(data.provide_data, data.provide_label, for_training=False)
    np.testing.assert_allclose(
        [value for _, value in found.score(data, "acc")],
        [value for _, value in module.score(data, "acc")],
        atol=1e-6,
    )


def test_text_has_its_labels(graphopt, checkpoint, tmp_path):
    given, _, _ = checkpoint
    ran = graphopt("opt", *given, "-o", tmp_path / "o.gir")
    assert ran.code == 0
    assert "labels are" not in ran.err
