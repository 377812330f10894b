"""Trees as specs: what prints parses back, the bridge computes what the oracle does."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np
import pytest

from graphopt.backend.invoke import invoke
from graphopt.compat import import_mxnet
from graphopt.errors import ParseError
from graphopt.kernels import bridge
from graphopt.kernels.recurrence.spec import parse as parse_rows
from graphopt.kernels.tree.interpret import run
from graphopt.kernels.tree.spec import TreeSpec, parse

mx = import_mxnet()

SUM = "f64[a,b] (f64[a,b], f64[a,b]) { %2 = add %1 %0; return %2:f64[a,b] }"
TANH = "f64[a,b] (f64[a,b], f64[a,b]) { %2 = add %1 %0; %3 = tanh %2; return %3:f64[a,b] }"
BIASED = "f64[a,b] (f64[a,b], f64[b]) { %2 = mul %1 %0; return %2:f64[a,b] }"

#: A message of a product and one that is the state, put together in two ways.
MESSAGE = (
    "recurrence f64 (3, 4) () (4x3) (3) ;; 3 = x1 @ m0 ;; "
    f"3 = t0 x0 -> {SUM} ;; 3 = t1 v0 -> {BIASED} ;; next ;; emit t2, x1"
)
UPDATE = (
    "recurrence f64 (4, 3, {wide}) () (4x{wide}, 3x4) () ;; 4 = x2 @ m0' + x1 @ m1 ;; "
    f"4 = t0 x0 -> {TANH} ;; next ;; emit t1"
)


def text_of(reduce: tuple[str, str]) -> str:
    wide = 4 * int(reduce[1][6:] or 1) if reduce[1].startswith("concat") else 4
    update = UPDATE.replace("{wide}", str(wide))
    return f"tree (4) ({', '.join(reduce)}) ;;; {MESSAGE} ;;; {update}"


REDUCTIONS = [("sum", "max"), ("mean", "sum"), ("max", "concat3")]


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_what_prints_parses_back(reduce: tuple[str, str]) -> None:
    spec = parse(text_of(reduce))
    assert parse(str(spec)) == spec
    assert spec.node_rows == (4,)
    assert spec.edge_rows == (3,)
    assert spec.messages == (3, 4)


def inputs_of(spec: TreeSpec, rows: int, nodes: int, edges: Any, *, indexed: bool) -> list[Any]:
    rng = np.random.default_rng(nodes)
    found = [rng.uniform(-1, 1, (rows, width)) for width in (*spec.node_rows, *spec.edge_rows)]
    if indexed:
        found.append(rng.integers(0, rows, nodes).astype(np.int32))
    found.append(np.array(edges, np.int32))
    for part in (spec.message, spec.update):
        found += [rng.uniform(-1, 1, shape) for shape in part.matrices]
        found += [rng.uniform(-1, 1, width) for width in part.vectors]
    return found


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_the_bridge_computes_what_the_oracle_does(reduce: tuple[str, str], indexed: bool) -> None:
    spec = parse(text_of(reduce))
    edges = [(0, 3), (1, 3), (2, 3), (3, 5), (4, 5), (5, 8), (7, 8), (0, 8), (6, 9)]
    inputs = inputs_of(spec, 3 if indexed else 10, 10, edges, indexed=indexed)
    attrs = {"spec": str(spec), "indexed": indexed}
    made = invoke("graphopt_tree", [mx.nd.array(a, dtype=a.dtype) for a in inputs], attrs)
    wanted = run(spec, inputs, indexed=indexed)
    for mine, theirs in zip(made, wanted, strict=True):
        np.testing.assert_allclose(mine.asnumpy(), theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients_are_differences_of_values(reduce: tuple[str, str]) -> None:
    spec = parse(text_of(reduce))
    edges = [(0, 3), (1, 3), (2, 3), (3, 5), (4, 5), (0, 5)]
    # Equal rows would be equally large, and each gets the gradient, as in MXNet.
    indexed = "max" not in reduce
    inputs = inputs_of(spec, 2 if indexed else 7, 7, edges, indexed=indexed)
    learned = [n for n, array in enumerate(inputs) if array.dtype == np.float64]
    arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
    for n in learned:
        arrays[n].attach_grad()
    head = np.random.default_rng(2).uniform(-1, 1, (7, 4))
    with mx.autograd.record():
        attrs = {"spec": str(spec), "indexed": indexed, "stash": True}
        made = invoke("graphopt_tree", arrays, attrs)[0]
    made.backward(mx.nd.array(head, dtype="float64"))

    def value(number: int, at: tuple[int, ...], step: float) -> float:
        moved = [a.copy() for a in inputs]
        moved[number][at] += step
        return float((run(spec, moved, indexed=indexed)[0] * head).sum())

    rng = np.random.default_rng(5)
    for n in learned:
        found = arrays[n].grad.asnumpy()
        for _ in range(6):
            at = tuple(int(rng.integers(0, extent)) for extent in found.shape)
            slope = (value(n, at, 1e-6) - value(n, at, -1e-6)) / 2e-6
            assert found[at] == pytest.approx(slope, rel=1e-6, abs=1e-8), (n, at)


def test_gradients_without_a_stash_are_computed_anew() -> None:
    spec = parse(text_of(("sum", "max")))
    inputs = inputs_of(spec, 4, 4, [1, 2, -1, 2], indexed=False)
    found = []
    for stash in (True, False):
        arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
        arrays[0].attach_grad()
        with mx.autograd.record():
            made = invoke("graphopt_tree", arrays, {"spec": str(spec), "stash": stash})[0]
        made.backward()
        found.append(arrays[0].grad.asnumpy())
    assert (found[0] == found[1]).all()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("tree (4)", "tree (x)", "states have columns"),
        ("tree (4)", "tree (5)", "states of"),
        ("(sum, max)", "(sum)", "2 messages for 1 reductions"),
        ("(sum, max)", "(sum, most)", "'most' is none of"),
        ("(sum, max)", "(sum, concat)", "'concat' is none of"),
        ("(sum, max)", "(sum, max2)", "'max2' is none of"),
        ("(sum, max)", "(sum, concat2)", "does not read messages"),
        (" ;;; ", " ;; ", "is no"),
        ("tree", "trees", "is no tree"),
    ],
)
def test_what_makes_no_sense_is_refused(old: str, new: str, told: str) -> None:
    with pytest.raises(ParseError, match=told):
        parse(text_of(("sum", "max")).replace(old, new, 1))


def test_parts_of_a_tree_have_no_states_of_their_own() -> None:
    spec = parse(text_of(("sum", "max")))
    rows = "recurrence f64 (3) (4) () () ;; next s0 ;; emit x0"
    with pytest.raises(ParseError, match="no states of its own"):
        TreeSpec((4,), ("sum", "max"), parse_rows(rows), spec.update)


@pytest.mark.parametrize(
    ("index", "told"), [([0, 1, 3], "node 2 has row 3 of 3"), ([0, -1, 2], "node 1 has row -1")]
)
def test_rows_that_are_not_there_are_told(index: list[int], told: str) -> None:
    spec = parse(text_of(("sum", "max")))
    inputs = inputs_of(spec, 3, 3, [-1, 0, 0], indexed=True)
    inputs[2] = np.array(index, np.int32)
    arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
    with pytest.raises(mx.MXNetError, match=told):
        invoke("graphopt_tree", arrays, {"spec": str(spec), "indexed": True})[0].wait_to_read()


def test_large_forests_take_all_threads_and_give_the_same() -> None:
    spec = parse(text_of(("sum", "max")))
    rng = np.random.default_rng(0)
    parents = [-1 if n % 12 == 0 else int(rng.integers(n - n % 12, n)) for n in range(6000)]
    inputs = inputs_of(spec, 6000, 6000, parents, indexed=False)
    arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
    whole = invoke("graphopt_tree", arrays, {"spec": str(spec)})[0].asnumpy()
    for first in (0, 3000, 5976):
        some = [a[first : first + 24] if len(a) == 6000 else a for a in inputs]
        some[2] = np.array([p - first if p >= 0 else -1 for p in parents[first : first + 24]])
        arrays = [mx.nd.array(a, dtype="int32" if n == 2 else a.dtype) for n, a in enumerate(some)]
        part = invoke("graphopt_tree", arrays, {"spec": str(spec)})[0].asnumpy()
        np.testing.assert_allclose(whole[first : first + 24], part, rtol=1e-13, atol=1e-13)


def test_levels_are_those_of_the_structure_at_hand() -> None:
    """The last ones are kept: neither of other trees, nor of parents where there are edges now."""
    spec = parse(text_of(("sum", "max")))
    for parents in ([1, -1, 3, -1], [1, 3, 1, -1], [1, 3, 1, -1]):
        inputs = inputs_of(spec, 4, 4, parents, indexed=False)
        arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
        made = invoke("graphopt_tree", arrays, {"spec": str(spec)})[0].asnumpy()
        np.testing.assert_allclose(made, run(spec, inputs)[0], rtol=1e-12, atol=1e-12)
    inputs = inputs_of(spec, 4, 4, [[1, 3], [1, -1]], indexed=False)
    arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
    with pytest.raises(mx.MXNetError, match="an edge leads from node 1 to node -"):
        invoke("graphopt_tree", arrays, {"spec": str(spec)})[0].wait_to_read()


# -- equal subtrees -------------------------------------------------------------------------------


def counted(run_: Any) -> tuple[int, int]:
    """Nodes that trees had while something ran, and of how many states were computed."""
    library = bridge.load(mx)
    counts = [(ctypes.c_int64 * 3)() for _ in range(2)]
    library.graphopt_tree_counts(counts[0])
    run_()
    mx.nd.waitall()
    library.graphopt_tree_counts(counts[1])
    return counts[1][0] - counts[0][0], counts[1][1] - counts[0][1]


def different(edges: list[tuple[int, int]], index: Any) -> int:
    """Nodes that differ in their row or in a child; numbers of children are smaller."""
    kinds: dict[Any, int] = {}
    kind_of: list[int] = []
    for node, row in enumerate(index):
        below = tuple(kind_of[source] for source, target in edges if target == node)
        kind_of.append(kinds.setdefault((int(row), below), len(kinds)))
    return len(kinds)


def values(spec: TreeSpec, inputs: list[Any], wanted: list[int], heads: Any, **attrs: Any) -> Any:
    """What a tree makes, and the gradients of some of its inputs."""
    arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
    for n in wanted:
        arrays[n].attach_grad()
    with mx.autograd.record():
        made = invoke("graphopt_tree", arrays, {"spec": str(spec), "stash": True} | attrs)
    made[0].backward(mx.nd.array(heads, dtype=heads.dtype))
    return made[0].asnumpy(), [arrays[n].grad.asnumpy() for n in wanted]


#: Edges among ten nodes: trees, and what is none.
SMALL = [(0, 2), (1, 2), (2, 5), (3, 5), (4, 5), (5, 8), (7, 8), (6, 8)]
TREES = {
    "trees": SMALL,
    "edge twice": [*SMALL, (2, 5)],
    "two parents": [*SMALL, (2, 8), (5, 9), (8, 9)],
}


@pytest.mark.parametrize("count", [2, 40, 300])
@pytest.mark.parametrize("structure", list(TREES))
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_equal_subtrees_are_computed_once(
    reduce: tuple[str, str], structure: str, count: int
) -> None:
    """Values are those of rows that nobody shares, and so are gradients, summed by row."""
    spec = parse(text_of((reduce[0], reduce[1].replace("3", "5"))))
    edges = [(a + 10 * n, b + 10 * n) for n in range(count) for a, b in TREES[structure]]
    inputs = inputs_of(spec, 2, 10 * count, edges, indexed=True)
    index = inputs[2]
    index[:10] = index[10:20]
    apart = [inputs[0][index], inputs[1][index], *inputs[3:]]
    heads = np.random.default_rng(1).uniform(-1, 1, (10 * count, 4))
    wanted = [n for n, array in enumerate(inputs) if array.dtype == np.float64]
    made, gradients = values(spec, inputs, wanted, heads, indexed=True)
    plain, plain_gradients = values(spec, apart, [n - (n > 2) for n in wanted], heads)
    assert (made == plain).all()
    for n in (0, 1):  # of rows
        sums = np.zeros_like(inputs[n])
        np.add.at(sums, index, plain_gradients[n])
        plain_gradients[n] = sums
    for mine, theirs in zip(gradients, plain_gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10)


def test_as_many_nodes_are_computed_as_differ() -> None:
    spec = parse(text_of(("sum", "max")))
    edges = [(a + 10 * n, b + 10 * n) for n in range(3) for a, b in SMALL]
    inputs = inputs_of(spec, 2, 30, edges, indexed=True)
    arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
    # In training so few nodes are one chunk.
    attrs = {"spec": str(spec), "indexed": True, "stash": True}
    found = counted(lambda: invoke("graphopt_tree", arrays, attrs))
    assert found == (30, different(edges, inputs[2]))
    assert found[1] < 30


def test_trees_with_much_in_common_come_together() -> None:
    """In chunks by their order, no tree would meet its equal."""
    spec = parse(text_of(("sum", "max")))
    edges = [(a + 10 * n, b + 10 * n) for n in range(400) for a, b in TREES["two parents"]]
    inputs = inputs_of(spec, 1000, 4000, edges, indexed=True)
    inputs[2] = np.tile(inputs[2][:2000], 2)
    arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
    nodes, computed = counted(
        lambda: invoke("graphopt_tree", arrays, {"spec": str(spec), "indexed": True})
    )
    assert nodes == 4000
    assert computed <= 2000


def test_rows_that_change_are_told_apart() -> None:
    """Levels that are kept are of these trees with these rows."""
    spec = parse(text_of(("sum", "max")))
    for row in (0, 1, 0):
        inputs = inputs_of(spec, 2, 4, [1, -1, 3, -1], indexed=True)
        inputs[2] = np.array([0, 0, row, 0], np.int32)
        arrays = [mx.nd.array(a, dtype=a.dtype) for a in inputs]
        attrs = {"spec": str(spec), "indexed": True, "stash": True}
        found = counted(partial(invoke, "graphopt_tree", arrays, attrs))
        assert found == (4, 2 if row == 0 else 4)
