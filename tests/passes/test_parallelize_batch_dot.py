from __future__ import annotations

import numpy as np
import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.backend.unfuse import unfuse
from graphopt.ir.graph import Graph
from graphopt.ir.node import PARALLEL_BATCH_DOT
from graphopt.ir.parser import parse
from graphopt.pipeline.manager import Result
from graphopt.testing import assert_equivalent, run_pass


def product(a: str, b: str, attrs: str = "") -> Graph:
    return with_types(
        parse(f"graph g(%a: {a}, %b: {b}) {{ %c = batch_dot(%a, %b) {{{attrs}}} return %c }}")
    )


def run(graph: Graph, options: str = "", **settings: object) -> Result:
    return run_pass(graph, f"parallelize-batch-dot{options}", target=MXNetTarget(), **settings)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if not node.is_input]


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("size", [(9, 3, 4, 5), (40, 33, 65, 17), (8, 1, 1, 1)])
def test_products_and_gradients(ta: bool, tb: bool, size: tuple[int, int, int, int]) -> None:
    batch, m, n, k = size
    a, b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    graph = product(
        f"f32[{batch},{a[0]},{a[1]}]",
        f"f32[{batch},{b[0]},{b[1]}]",
        f"transpose_a={ta}, transpose_b={tb}",
    )
    result = run(graph, mode="training")
    assert ops(result.graph) == [PARALLEL_BATCH_DOT]
    assert_equivalent(graph, result.graph, training=True)
    assert unfuse(result.graph) == with_types(unfuse(result.graph))
    assert_equivalent(graph, unfuse(result.graph))


@pytest.mark.parametrize(
    ("a", "b", "options", "settings", "why"),
    [
        ("f32[4,3,5]", "f32[4,5,2]", "", {}, "4 products are too few"),
        ("f64[9,3,5]", "f64[9,5,2]", "", {}, "it multiplies float64"),
        ("f32[9,99,5]", "f32[9,5,2]", "{max_mega_macs=0}", {}, "large enough for all threads"),
        ("f32[9,3,5]", "f32[9,5,2]", "", {"precise": True}, "another order"),
        ("f32[9,3,5]", "f32[9,5,2]", "", {"device": "gpu"}, "CPUs only"),
    ],
)
def test_refusals(a: str, b: str, options: str, settings: dict[str, object], why: str) -> None:
    graph = product(a, b)
    result = run(graph, options, **settings)
    assert result.graph.is_unchanged_from(graph)
    assert any(why in str(remark) for remark in result.remarks)


def test_gradients_are_added_where_asked() -> None:
    import graphopt
    from graphopt.compat import import_mxnet

    mx = import_mxnet()

    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F, a, b):
            return F.batch_dot(a, b)

    net = graphopt.optimize(Net())
    rng = np.random.default_rng(0)
    a, b = (mx.nd.array(rng.normal(size=s)) for s in ((9, 3, 5), (9, 5, 2)))
    a.attach_grad("add")
    b.attach_grad("write")
    for _ in range(3):
        with mx.autograd.record():
            c = net(a, b)
        c.backward()
    ones = np.ones((9, 3, 2), "float32")
    np.testing.assert_allclose(
        a.grad.asnumpy(), 3 * ones @ b.asnumpy().transpose(0, 2, 1), rtol=1e-5
    )
    np.testing.assert_allclose(b.grad.asnumpy(), a.asnumpy().transpose(0, 2, 1) @ ones, rtol=1e-5)


@pytest.mark.parametrize("sizes", [(9, 0, 4, 5), (9, 4, 0, 5), (9, 4, 5, 0), (0, 3, 4, 5)])
def test_extents_of_zero(sizes: tuple[int, int, int, int]) -> None:
    from graphopt.backend.invoke import invoke
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    batch, m, n, k = sizes
    with mx.util.np_shape(True):
        a, b = mx.nd.ones((batch, m, k)), mx.nd.ones((batch, n, k))
        a.attach_grad("add")
        b.attach_grad("write")
        a.grad[:] = 3
        b.grad[:] = 3
        with mx.autograd.record():
            made = invoke(PARALLEL_BATCH_DOT, [a, b], {"transpose_a": False, "transpose_b": True})
            c = made[0] if isinstance(made, list) else made
        c.backward()
        np.testing.assert_array_equal(c.asnumpy(), np.zeros((batch, m, n)))  # also without depth
        np.testing.assert_array_equal(a.grad.asnumpy(), np.full((batch, m, k), 3 + n))
        np.testing.assert_array_equal(b.grad.asnumpy(), np.full((batch, n, k), m))
