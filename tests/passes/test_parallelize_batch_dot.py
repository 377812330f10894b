from __future__ import annotations

import numpy as np
import pytest

from graphopt.api.lifting import lift
from graphopt.backend.infer import with_types
from graphopt.backend.symbol import to_symbol
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
@pytest.mark.parametrize(
    "size",
    [
        *(
            (9, 3, 4, 5),
            (40, 33, 65, 17),
            (8, 1, 1, 1),
            (9, 70, 3, 37),
            (9, 41, 1, 8),
            (8, 2, 70, 19),
        ),
        (1, 101, 70, 90),  # its rows are shared by threads
    ],
)
def test_products_and_gradients(ta: bool, tb: bool, size: tuple[int, int, int, int]) -> None:
    batch, m, n, k = size
    a, b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    graph = product(
        f"f32[{batch},{a[0]},{a[1]}]",
        f"f32[{batch},{b[0]},{b[1]}]",
        f"transpose_a={ta}, transpose_b={tb}",
    )
    result = run(graph, "{min_batch=1}", mode="training")
    assert ops(result.graph) == [PARALLEL_BATCH_DOT]
    assert_equivalent(graph, result.graph, training=True)
    assert unfuse(result.graph) == with_types(unfuse(result.graph))
    assert_equivalent(graph, unfuse(result.graph))


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize(("ta", "tb"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("outer", [(9,), (3, 4), (2, 3, 4)])
def test_gemm2(outer: tuple[int, ...], ta: bool, tb: bool, alpha: float) -> None:
    m, n, k = 3, 4, 5
    a, b = ((k, m) if ta else (m, k)), ((n, k) if tb else (k, n))
    lead = ",".join(map(str, outer))
    graph = with_types(
        parse(
            f"graph g(%a: f32[{lead},{a[0]},{a[1]}], %b: f32[{lead},{b[0]},{b[1]}])"
            " { %c = _linalg_gemm2(%a, %b)"
            f" {{transpose_a={ta}, transpose_b={tb}, alpha={alpha}}} return %c }}"
        )
    )
    result = run(graph, mode="training")
    expected = [PARALLEL_BATCH_DOT, *(["_mul_scalar"] if alpha != 1 else [])]
    assert [op for op in ops(result.graph) if op != "Reshape"] == expected
    assert ops(result.graph).count("Reshape") == (3 if len(outer) > 1 else 0)
    assert_equivalent(graph, result.graph, training=True)
    assert_equivalent(graph, unfuse(result.graph))


HEADS = """graph g(%q: f32[{b},{m},{hk}], %k: f32[{b},{n},{hk}], %v: f32[{b},{n},{hd}]) {{
  %q4 = Reshape(%q) {{shape=(0, 0, -4, {h}, -1)}}
  %qt = {q}
  %q3 = Reshape(%qt) {{shape=(-3, 0, 0)}}
  %k4 = Reshape(%k) {{shape=(0, 0, {h}, -1)}}
  %kt = transpose(%k4) {{axes={keys}}}
  %k3 = Reshape(%kt) {{shape=(-3, 0, 0)}}
  %v4 = Reshape(%v) {{shape=(0, 0, {h}, -1)}}
  %vt = transpose(%v4) {{axes=(0, 2, 1, 3)}}
  %v3 = Reshape(%vt) {{shape=(-3, 0, 0)}}
  %s = batch_dot(%q3, %k3) {{transpose_b={tb}}}
  %p = softmax(%s)
  %m3 = batch_dot(%p, %v3)
  %m4 = Reshape(%m3) {{shape=(-4, -1, {h}, 0, 0)}}
  %mt = {mixed}
  %m = Reshape(%mt) {{shape=(0, 0, -3)}}
  return {returned}
}}"""


def attention(
    b: int,
    m: int,
    n: int,
    h: int,
    k: int,
    d: int,
    *,
    turned: bool = False,
    swap: bool = False,
    returned: str = "%m",
) -> Graph:
    query = "SwapAxis(%q4) {dim1=1, dim2=2}" if swap else "transpose(%q4) {axes=(0, 2, 1, 3)}"
    text = HEADS.format(
        b=b,
        m=m,
        n=n,
        h=h,
        hk=h * k,
        hd=h * d,
        q=query,
        keys=(0, 2, 3, 1) if turned else (0, 2, 1, 3),
        tb=not turned,
        mixed=query.replace("q4", "m4"),
        returned=returned,
    )
    return with_types(parse(text))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [(2, 5, 7, 4, 3, 6), (3, 17, 33, 3, 16, 40), (1, 1, 9, 8, 1, 1)])
def test_heads_are_read_and_written_where_they_lie(
    turned: bool, size: tuple[int, int, int, int, int, int]
) -> None:
    graph = attention(*size, turned=turned, swap=turned)
    result = run(graph, mode="training")
    scores, mixed = (node for node in result.graph if node.op == PARALLEL_BATCH_DOT)
    heads = size[3]
    assert scores.attrs["heads_a"] == scores.attrs["heads_b"] == heads
    assert "heads_out" not in scores.attrs
    assert scores.attrs["transpose_b"]
    assert mixed.attrs["heads_b"] == mixed.attrs["heads_out"] == heads
    assert "heads_a" not in mixed.attrs
    assert not {"transpose", "SwapAxis"} & set(ops(result.graph))
    assert result.receipts[0].stats["transposes"] == 4
    assert_equivalent(graph, result.graph, training=True)
    assert_equivalent(graph, unfuse(result.graph))


def test_a_transpose_that_others_read_stays() -> None:
    graph = attention(2, 5, 7, 4, 3, 6, returned="%m, %kt, %m4")
    result = run(graph, mode="training")
    scores, mixed = (node for node in result.graph if node.op == PARALLEL_BATCH_DOT)
    assert scores.attrs["heads_b"] == 4
    assert "heads_out" not in mixed.attrs  # m4 is asked for as it was
    assert ops(result.graph).count("transpose") == 2
    assert_equivalent(graph, result.graph, training=True)


@pytest.mark.parametrize("turned", [False, True])
def test_heads_of_a_file_have_their_meaning_in_their_attributes(turned: bool) -> None:
    """What was exported with kernels has no transposes with it; it is read and put back too."""
    graph = attention(2, 5, 7, 4, 3, 6, turned=turned, returned="%m, %mt, %s")
    made = run(graph).graph
    read = with_types(lift(to_symbol(made), {n.name: n.type.shape for n in graph.inputs}))
    products = [node for node in read if node.op == PARALLEL_BATCH_DOT]
    assert [node.graphs for node in products] == [(), ()]
    assert products[1].attrs["heads_out"] == 4
    assert_equivalent(graph, read)
    plain = unfuse(read)
    assert ops(plain).count("batch_dot") == 2
    assert PARALLEL_BATCH_DOT not in ops(plain)
    assert plain == with_types(plain)
    assert_equivalent(graph, plain, training=True)


def test_one_array_of_heads_for_both_sides() -> None:
    graph = with_types(
        parse(
            """graph g(%x: f32[2,5,12]) {
  %x4 = Reshape(%x) {shape=(0, 0, 4, -1)}
  %xt = transpose(%x4) {axes=(0, 2, 1, 3)}
  %x3 = Reshape(%xt) {shape=(-3, 0, 0)}
  %s = batch_dot(%x3, %x3) {transpose_b=True}
  return %s
}"""
        )
    )
    result = run(graph, mode="training")
    assert ops(result.graph) == ["Reshape", PARALLEL_BATCH_DOT]
    assert_equivalent(graph, result.graph, training=True)
    assert_equivalent(graph, unfuse(result.graph))


@pytest.mark.parametrize(
    ("shape", "order", "flat"),
    [
        ((3, 4, 5, 6), (1, 0, 2, 3), (12, 5, 6)),  # heads first
        ((3, 4, 5, 6), (0, 3, 1, 2), (18, 4, 5)),
        ((4, 5, 3, 6), (0, 2, 1, 3), (4, 15, 6)),  # rows of all heads make one matrix
    ],
)
def test_other_transposes_stay(
    shape: tuple[int, ...], order: tuple[int, ...], flat: tuple[int, int, int]
) -> None:
    products, _, columns = flat
    graph = with_types(
        parse(
            f"""graph g(%x: f32[{",".join(map(str, shape))}], %y: f32[{products},{columns},2]) {{
  %xt = transpose(%x) {{axes={order}}}
  %x3 = Reshape(%xt) {{shape={flat}}}
  %s = batch_dot(%x3, %y)
  return %s
}}"""
        )
    )
    result = run(graph, "{min_batch=1}", mode="training")
    assert ops(result.graph) == ["transpose", "Reshape", PARALLEL_BATCH_DOT]
    assert_equivalent(graph, result.graph, training=True)


def test_the_operator_refuses_other_shapes() -> None:
    from graphopt.backend.invoke import invoke
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    four, three = mx.nd.ones((2, 5, 3, 4)), mx.nd.ones((6, 4, 7))
    for arrays, attrs, why in (
        ([four, three], {}, "heads_a"),
        ([four, three], {"heads_a": 2}, "heads_a"),
        ([four, three], {"heads_a": 3, "heads_out": 4}, "no whole number of 4 heads"),
        ([four, three], {"heads_a": 3, "transpose_b": True}, "cannot be multiplied|no matrices"),
    ):
        with pytest.raises(mx.MXNetError, match=why):
            invoke(PARALLEL_BATCH_DOT, arrays, {"transpose_a": False, "transpose_b": False} | attrs)


@pytest.mark.parametrize(
    ("a", "b", "options", "settings", "why"),
    [
        ("f32[1,3,5]", "f32[1,5,2]", "", {}, "1 products are too few"),
        ("f64[9,3,5]", "f64[9,5,2]", "", {}, "it multiplies float64"),
        ("f32[9,4,3,5]", "f32[9,4,5,2]", "", {}, "its operands have 4 axes, not 3"),
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


@pytest.mark.parametrize(
    ("shape", "attrs", "why"),
    [
        ("5,5", "", "not the last two of three or more"),
        ("5,9,4,5", "axis=-4", "not the last two of three or more"),
        ("1,5,5", "", "1 products are too few"),
    ],
)
def test_gemm2_that_stays(shape: str, attrs: str, why: str) -> None:
    graph = with_types(
        parse(
            f"graph g(%a: f32[{shape}], %b: f32[{shape}])"
            f" {{ %c = _linalg_gemm2(%a, %b) {{{attrs}}} return %c }}"
        )
    )
    result = run(graph)
    assert result.graph.is_unchanged_from(graph)
    assert any("_linalg_gemm2 stays" in str(r) and why in str(r) for r in result.remarks)


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
