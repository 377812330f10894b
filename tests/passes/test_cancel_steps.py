"""Steps that are cut from an array and joined again are the array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.passes.cancel_layout import CancelLayout
from graphopt.testing import assert_equivalent, run_pass

mx = import_mxnet()
NAME = CancelLayout.name

#: Steps of %x along each axis; %r is what is left of them.
CUT = {
    0: "%s = SliceChannel(%x) {axis=0, num_outputs=4, squeeze_axis=True}",
    -2: "%s = SliceChannel(%x) {axis=-2, num_outputs=4, squeeze_axis=True}",
}


def graph_of(lines: str) -> Graph:
    body = lines.replace("CUT0", f"{CUT[0]} : (?, ?, ?, ?)").replace(
        "CUT1", f"{CUT[-2]} : (?, ?, ?, ?)"
    )
    text = (
        "graph g(%p: f32[4,4,3], %q: f32[4,3], %big: f32[6,4,3]) {\n%x = tanh(%p)\n%y = sin(%q)\n"
        f"%z = tanh(%big)\n{body}\n%out = exp(%r)\nreturn %out\n}}"
    )
    return run_pass(parse(text), "infer-types", target=MXNetTarget()).graph


def ops(graph: Graph) -> list[str]:
    found = [f"{n.op}{n.attrs.text if n.attrs else ''}" for n in graph if not n.is_input]
    return [op for op in found if op not in ("tanh", "sin", "exp")]


CASES = {
    "all": ("CUT0\n%r = stack(%s, %s#1, %s#2, %s#3) {axis=0, num_args=4}", []),
    "all, counted from the last axis": (
        "CUT1\n%r = stack(%s, %s#1, %s#2, %s#3) {axis=1, num_args=4}",
        [],
    ),
    "one in front": (
        "CUT0\n%r = stack(%y, %s, %s#1, %s#2, %s#3) {axis=0, num_args=5}",
        ["Reshape{shape=(-4, 1, -1, 0)}", "Concat{dim=0, num_args=2}"],
    ),
    "one behind, in another axis": (
        "CUT1\n%r = stack(%s, %s#1, %s#2, %s#3, %y) {axis=-2, num_args=5}",
        ["Reshape{shape=(0, -4, 1, -1)}", "Concat{dim=1, num_args=2}"],
    ),
    "twice": (
        "CUT0\n%r = stack(%s, %s#1, %s#2, %s#3, %s, %s#1, %s#2, %s#3) {axis=0, num_args=8}",
        ["Concat{dim=0, num_args=2}"],
    ),
    "all, where others read one of them": (
        "CUT0\n%t = stack(%s, %s#1, %s#2, %s#3) {axis=0, num_args=4}\n%r = broadcast_add(%t, %s#2)",
        ["slice_axis{axis=0, begin=2, end=3}", "squeeze{axis=0}", "broadcast_add"],
    ),
    "one of another array in front": (
        "%a = slice_axis(%x) {axis=0, begin=0, end=1}\n%b = squeeze(%a) {axis=0}\n"
        "%c = SliceChannel(%z) {axis=0, num_outputs=6, squeeze_axis=True} : (?, ?, ?, ?, ?, ?)\n"
        "%r = stack(%b, %c, %c#1, %c#2, %c#3, %c#4, %c#5) {axis=0, num_args=7}",
        ["slice_axis{axis=0, begin=0, end=1}", "Concat{dim=0, num_args=2}"],
    ),
    "one step": (
        "CUT1\n%r = square(%s#1)",
        ["slice_axis{axis=1, begin=1, end=2}", "squeeze{axis=1}", "square"],
    ),
}

KEPT = {
    "another order": "CUT0\n%r = stack(%s#1, %s, %s#2, %s#3) {axis=0, num_args=4}",
    "another axis": "CUT0\n%r = stack(%s, %s#1, %s#2, %s#3) {axis=1, num_args=4}",
    "not all": "CUT0\n%r = stack(%s, %s#1, %s#2) {axis=0, num_args=3}",
    "more others than would be saved": (
        "CUT0\n%r = stack(%y, %y, %y, %y, %s, %s#1, %s#2, %s#3, %y) {axis=0, num_args=9}"
    ),
    "two steps": "CUT0\n%r = elemwise_add(%s#1, %s)",
    # Parts are of one row for these sizes alone.
    "a part of a split": (
        "%a = SliceChannel(%z) {axis=0, num_outputs=3} : (?, ?, ?)\n%r = square(%a#1)"
    ),
    "parts that are viewed": (
        "%a = SliceChannel(%y) {axis=0, num_outputs=4} : (?, ?, ?, ?)\n"
        + "".join(f"%v{n} = Reshape(%a#{n}) {{shape=(-1,)}}\n" for n in range(4))
        + "%r = stack(%v0, %v1, %v2, %v3) {axis=0, num_args=4}"
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_result(case: str) -> None:
    lines, expected = CASES[case]
    assert ops(run_pass(graph_of(lines), NAME).graph) == expected


@pytest.mark.parametrize("case", KEPT)
def test_kept(case: str) -> None:
    graph = graph_of(KEPT[case])
    assert run_pass(graph, NAME).graph is graph


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_equivalence(case: str, training: bool) -> None:
    graph = graph_of(CASES[case][0])
    after = run_pass(graph, NAME, mode="training" if training else "inference").graph
    assert_equivalent(graph, after, training=training, seeds=(0,), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_a_second_run_changes_nothing(case: str) -> None:
    graph = run_pass(graph_of(CASES[case][0]), NAME).graph
    assert run_pass(graph, NAME).graph is graph


def test_a_returned_part_keeps_its_name() -> None:
    graph = parse(
        "graph g(%x: f32[3,4]) {%a = SliceChannel(%x) {axis=0, num_outputs=3, squeeze_axis=True} : "
        "(f32[4], f32[4], f32[4]) return %a#1}"
    )
    assert run_pass(graph, NAME).graph is graph


class Parts(mx.gluon.HybridBlock):
    """A third of the rows of a batch."""

    def hybrid_forward(self, F, x):
        return F.relu(F.split(x, num_outputs=3, axis=0)[1] * 2)


@pytest.mark.parametrize("rows", [3, 6])
def test_files_are_for_any_size(rows: int, tmp_path: Path) -> None:
    net = Parts()
    net.initialize()
    fast = graphopt.optimize(net, mode="inference")
    fast(mx.nd.ones((rows, 2)))
    fast.export(str(tmp_path / "net"))
    loaded = mx.gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"])
    for others in (3, 6, 12, 24):
        x = mx.nd.random.uniform(-1, 1, shape=(others, 2))
        np.testing.assert_array_equal(loaded(x).asnumpy(), net(x).asnumpy())


class Joined(mx.gluon.HybridBlock):
    """All steps, and what they were cut from."""

    def hybrid_forward(self, F, x):
        return F.stack(*F.split(x, num_outputs=6, axis=1, squeeze_axis=True), axis=1)


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_the_callers_own_array_is_not_returned(mode: str) -> None:
    net = Joined()
    net.initialize()
    fast = graphopt.optimize(net, mode=mode)
    for _ in range(3):
        x = mx.nd.ones((2, 6, 4))
        found = fast(x)
        x[:] = 9
        assert found.asnumpy().max() == 1
        found[:] = 7
        assert x.asnumpy().max() == 9
