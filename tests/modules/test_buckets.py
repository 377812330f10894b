"""Bucketing modules: one Symbol per length, with the same parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet

mx = import_mxnet()

WORDS, UNITS, BATCH = 20, 6, 4


def sym_gen(length: int) -> Any:
    """Of MXNet's own example: two LSTM cells unrolled, a word's chances at each step."""
    stack = mx.rnn.SequentialRNNCell()
    for layer in range(2):
        stack.add(mx.rnn.LSTMCell(UNITS, prefix=f"lstm_l{layer}_"))
    embedded = mx.sym.Embedding(mx.sym.var("data"), input_dim=WORDS, output_dim=5, name="embed")
    outputs, _ = stack.unroll(length, inputs=embedded, merge_outputs=True)
    scores = mx.sym.reshape(outputs, shape=(-1, UNITS))
    scores = mx.sym.FullyConnected(scores, num_hidden=WORDS, name="scores")
    label = mx.sym.reshape(mx.sym.var("softmax_label"), shape=(-1,))
    return mx.sym.SoftmaxOutput(scores, label, name="softmax"), ("data",), ("softmax_label",)


def sentences() -> Any:
    rng = np.random.default_rng(2)
    lines = [list(map(int, rng.integers(1, WORDS, n))) for n in rng.integers(2, 9, 40)]
    return mx.rnn.BucketSentenceIter(lines, BATCH, buckets=[4, 8], invalid_label=0)


def trained(module: Any, optimizer: str) -> dict[str, np.ndarray]:
    mx.random.seed(5)
    np.random.seed(5)
    import random

    random.seed(5)
    module.fit(
        sentences(),
        num_epoch=2,
        eval_metric=mx.metric.Perplexity(0),
        initializer=mx.init.Xavier(),
        optimizer=optimizer,
        optimizer_params={"learning_rate": 0.05},
    )
    return {name: array.asnumpy() for name, array in module.get_params()[0].items()}


def assert_same_outputs(plain: Any, fast: Any, data: Any) -> None:
    for batch in data:
        found = []
        for module in (plain, fast):
            module.forward(batch, is_train=False)
            found.append(module.get_outputs()[0].asnumpy())
        np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fit(optimizer: str) -> None:
    fast = graphopt.optimize(mx.mod.BucketingModule(sym_gen, default_bucket_key=8))
    assert isinstance(fast, mx.mod.BucketingModule)
    found = trained(fast, optimizer)
    want = trained(mx.mod.BucketingModule(sym_gen, default_bucket_key=8), optimizer)
    for name, array in want.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-4, err_msg=name)
    told = fast.explain()
    assert "data: float32[4, 4]" in told
    assert "data: float32[4, 8]" in told
    assert "reroll-recurrence" in told
    assert "one kernel updates" in told
    first, other = fast.executors()
    assert first.arg_dict["scores_weight"] is other.arg_dict["scores_weight"]


def test_bound_buckets() -> None:
    plain = mx.mod.BucketingModule(sym_gen, default_bucket_key=8)
    trained(plain, "adam")
    fast = graphopt.optimize(plain)
    assert_same_outputs(plain, fast, sentences())
    assert fast.graph().name == "softmax"
    assert len(fast.executors()) == 2


def test_loaded_buckets(tmp_path: Any) -> None:
    plain = mx.mod.BucketingModule(sym_gen, default_bucket_key=8)
    trained(plain, "sgd")
    plain.save_checkpoint(str(tmp_path / "net"), 1)
    fast = graphopt.optimize(
        mx.mod.BucketingModule.load(str(tmp_path / "net"), 1, sym_gen=sym_gen, default_bucket_key=8)
    )
    data = sentences()
    fast.bind(data.provide_data, data.provide_label, for_training=False)
    assert_same_outputs(plain, fast, data)
