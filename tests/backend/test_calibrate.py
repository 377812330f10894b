"""Random feeds under which deep networks stay well conditioned."""

from __future__ import annotations

import numpy as np

from graphopt.backend.calibrate import calibrated_feeds
from graphopt.backend.infer import with_types
from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.target import MXNetTarget
from graphopt.ir.parser import parse


def deep(blocks: int):
    """A residual net of ``blocks`` blocks of convolution and BatchNorm."""
    inputs, body, last = ["%data: f32[1,4,8,8]"], [], "%data"
    for i in range(blocks):
        inputs += [f"param %w{i}_weight: f32[4,4,3,3]", f"param %g{i}_gamma: f32[4]"]
        inputs += [f"param %b{i}_beta: f32[4]", f"aux %m{i}_mean: f32[4]", f"aux %v{i}_var: f32[4]"]
        body.append(
            f"%c{i} = Convolution({last}, %w{i}_weight)"
            " {kernel=(3, 3), pad=(1, 1), num_filter=4, no_bias=True}"
        )
        reads = f"%c{i}, %g{i}_gamma, %b{i}_beta, %m{i}_mean, %v{i}_var"
        body.append(f"%n{i} = BatchNorm({reads}) {{fix_gamma=False}}")
        body.append(f"%s{i} = elemwise_add(%n{i}, {last})")
        last = f"%s{i}"
    return with_types(
        parse(f"graph deep({', '.join(inputs)}) {{ {' '.join(body)} return {last} }}")
    )


def test_outputs_of_a_deep_residual_net_stay_small() -> None:
    graph = deep(60)
    out = MXNetTarget().evaluate(graph, calibrated_feeds(graph))["output0"]
    assert 0.1 < np.abs(out).max() < 100
    wild = MXNetTarget().evaluate(graph, random_feeds(graph))["output0"]
    assert np.abs(wild).max() > 1e4


def test_depends_on_the_seed_only() -> None:
    graph = deep(2)
    first, again, other = (calibrated_feeds(graph, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["m0_mean"], other["m0_mean"])
    assert all(first[name].dtype == np.float32 for name in first)
    assert (first["v1_var"] > 0).all()


def test_a_graph_without_norms_gets_plain_random_values() -> None:
    graph = parse("graph g(%x: f32[3]) { %y = relu(%x) : f32[3] return %y }")
    assert np.array_equal(calibrated_feeds(graph)["x"], random_feeds(graph)["x"])
