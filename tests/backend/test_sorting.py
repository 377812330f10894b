"""Engines compared before what sorts: rounding that changes places is no difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from graphopt.backend import choosing, sorting
from graphopt.backend.candidates import Candidates
from graphopt.backend.choice import (
    CACHED_OP,
    CONVOLUTION_KERNELS,
    EXACT_CONVOLUTIONS,
    EXECUTOR_ONEDNN,
)
from graphopt.backend.infer import with_types
from graphopt.backend.lower import Lowered, lower
from graphopt.backend.random_feeds import random_feeds
from graphopt.backend.sorting import chooses, without_choosing
from graphopt.compat import import_mxnet
from graphopt.errors import GraphError
from graphopt.ir.graph import Graph
from graphopt.ir.ops import is_known
from graphopt.ir.parser import parse
from graphopt.testing import run_pass
from tests.passes.fuse_convolutions_support import Clock

CONVOLVED = """
    %c = Convolution(%x, %w, %b) {kernel=(3, 3), num_filter=48, pad=(1, 1)}
    %d = Convolution(%c, %v, %e) {kernel=(3, 3), num_filter=32, pad=(1, 1)}
    %f = Flatten(%d)"""
PARAMS = "param %w: ?, param %b: ?, param %v: ?, param %e: ?"


def sorted_net(tail: str) -> Graph:
    text = f"graph g(%x: f32[1,16,40,40], {PARAMS}) {{ {CONVOLVED} {tail} }}"
    return with_types(parse(text))


def run_on_kernels(graph: Graph, feeds: Mapping[str, Any]) -> Lowered:
    fused = run_pass(graph, "fuse-convolutions", target=Clock("winograd4"), frozen=True).graph
    params = {name: value for name, value in feeds.items() if name != "x"}
    lowered = lower(fused, params)
    lowered(x=feeds["x"])
    return lowered


def test_names_are_operators():
    assert all(map(is_known, sorting.CHOOSING))


def test_cut():
    graph = with_types(
        parse("""graph g(%x: f32[3,8]) {
            %a = tanh(%x)
            %b = topk(%a) {k=2, ret_typ="both"}
            %c = argsort(%b#1)
            %d = elemwise_add(%c, %b)
            return %d, %a }""")
    )
    cut = without_choosing(graph)
    assert chooses(graph)
    assert not chooses(cut)
    assert [node.name for node in cut.inputs] == ["x", "b_given0", "b_given1", "c_given0"]
    assert [cut[value.node].name for value in cut.outputs] == ["d", "a"]
    assert cut.find("d").inputs == tuple(
        cut.find_input(name).out() for name in ("c_given0", "b_given0")
    )
    assert [str(node.type) for node in cut.inputs][1:] == ["f32[3,2]"] * 3


@pytest.mark.parametrize(
    "tail",
    [
        "%o = argsort(%f) return %o",
        '%o = topk(%f) {k=20000, ret_typ="indices"} %p = square(%o) return %p, %d',
    ],
)
def test_places_changed_by_rounding(tail: str, monkeypatch: pytest.MonkeyPatch):
    graph = sorted_net(tail)
    feeds = random_feeds(graph, seed=3)
    choice = run_on_kernels(graph, feeds).choice
    assert not choice.failed
    assert CONVOLUTION_KERNELS in choice.measured_ms
    monkeypatch.setattr(sorting, "CHOOSING", frozenset())
    failed = run_on_kernels(graph, feeds).choice.failed
    assert set(failed) == {CONVOLUTION_KERNELS, EXACT_CONVOLUTIONS}, "places were to change"


@pytest.mark.parametrize(
    "draw",
    [
        "%r = _random_normal() {shape=(1, 51200)}",
        "%s = square(%f) %t = _plus_scalar(%s) {scalar=0.1} %r = sample_normal(%f, %t)",
        '%r = Dropout(%f) {p=0.5, mode="always"}',
    ],
)
def test_values_that_are_drawn(draw: str):
    graph = sorted_net(f"{draw} %o = broadcast_add(%f, %r) return %o")
    feeds = random_feeds(graph, seed=3)
    choice = run_on_kernels(graph, feeds).choice
    assert not choice.failed
    assert {CONVOLUTION_KERNELS, EXECUTOR_ONEDNN} <= set(choice.measured_ms)


def test_dropout_is_compared_where_it_draws_nothing():
    assert not chooses(sorted_net("%o = Dropout(%f) {p=0.5} return %o"))


@pytest.mark.parametrize("fastest", [EXECUTOR_ONEDNN, CACHED_OP])
def test_other_values_are_found(monkeypatch: pytest.MonkeyPatch, fastest: str):
    graph = sorted_net("%o = argsort(%f) return %o")
    feeds = random_feeds(graph, seed=3)

    def spoiled(self: Candidates, arrays: Mapping[str, Any]) -> Any:
        makes = by_name(self, arrays)
        wrong = dict(arrays)
        wrong["w"] = arrays["w"] * 1.01
        return {
            name: make if name == CACHED_OP else by_name(self, wrong)[name]
            for name, make in makes.items()
        }

    by_name = Candidates.by_name
    monkeypatch.setattr(Candidates, "by_name", spoiled)
    times = {fastest: 1.0, CACHED_OP: 2.0}
    monkeypatch.setattr(
        choosing, "race", lambda engines, *_: {n: times.get(n, 3.0) for n in engines}
    )
    choice = run_on_kernels(graph, feeds).choice
    assert choice.engine == CACHED_OP
    assert "changed output 0 beyond" in choice.failed[CONVOLUTION_KERNELS]
    # What is not the fastest is not looked at closer.
    assert (EXECUTOR_ONEDNN in choice.failed) == (fastest == EXECUTOR_ONEDNN)


def test_what_comes_after_is_compared_too():
    graph = sorted_net("%o = argsort(%f) %p = sin(%o) return %p")
    feeds = random_feeds(graph, seed=3)
    lowered = run_on_kernels(graph, feeds)
    form = lowered.form
    arrays = {n: import_mxnet().nd.array(feeds[n]) for n in ("x", "w", "b", "v", "e")}
    apart = sorting.WithoutChoosing(form, arrays)
    apart.compare(CACHED_OP, CACHED_OP)
    apart._values["o_given0"] = apart._values["o_given0"] + 1
    with pytest.raises(GraphError, match="output 0"):
        apart.compare(CACHED_OP, CACHED_OP)


def test_columns_are_as_exact_as_their_largest_number():
    array = np.array([[400.0, 0.5], [1e-3, np.inf]], "float32")
    np.testing.assert_array_equal(sorting._scale(array[None]), [400, 1])
    np.testing.assert_array_equal(sorting._scale(array), 400)
    np.testing.assert_array_equal(sorting._scale(array[None, None]), 400)
    assert sorting._scale(array).dtype == np.float32
    assert sorting._scale(np.arange(3)).tolist() == [1]
    assert sorting._scale(np.zeros((0, 3), "float32")).tolist() == [1]


def test_rounding_of_large_numbers_is_no_difference():
    """Some numbers near zero are off by more than what is small beside one."""
    graph = with_types(
        parse("""graph g(%x: f32[1,64,12,12], param %w: f32[32,64,3,3]) {
          %c = Convolution(%x, %w) {kernel=(3, 3), num_filter=32, no_bias=True} return %c }""")
    )
    feeds = random_feeds(graph, seed=3)
    feeds["x"] = feeds["x"] * np.float32(1e3)
    lowered = run_on_kernels(graph, feeds)
    assert CONVOLUTION_KERNELS not in lowered.choice.failed
    want = lower(graph, {"w": feeds["w"]}, engine=CACHED_OP)(x=feeds["x"])[0].asnumpy()
    wrong = want + 2e-3 * np.abs(want).max() * np.float32(want == want.min())
    with pytest.raises(GraphError, match="engine changed out beyond"):
        sorting.compare_columns({"out": want}, {"out": wrong}, "engine")


def test_small_tiles_where_large_ones_round_too_much():
    """The difference of two equal channels of large numbers is nothing but rounding."""
    graph = with_types(
        parse("""graph g(%x: f32[1,64,12,12], param %w: f32[32,64,3,3], %s: f32[1,32,10,10]) {
          %c = Convolution(%x, %w) {kernel=(3, 3), num_filter=32, no_bias=True}
          %d = elemwise_sub(%c, %s) return %d }""")
    )
    feeds = random_feeds(graph, seed=3)
    feeds["x"] = feeds["x"] * np.float32(10)
    feeds["s"] = np.zeros((1, 32, 10, 10), np.float32)
    params = {"w": feeds["w"]}
    feeds["s"] = lower(graph, params, engine=CACHED_OP)(x=feeds["x"], s=feeds["s"])[0].asnumpy()
    fused = run_pass(graph, "fuse-convolutions", target=Clock("winograd4"), frozen=True).graph
    lowered = lower(fused, params)
    found = lowered(x=feeds["x"], s=feeds["s"])[0].asnumpy()
    assert CONVOLUTION_KERNELS in lowered.choice.failed
    assert EXACT_CONVOLUTIONS in lowered.choice.measured_ms
    assert EXACT_CONVOLUTIONS not in lowered.choice.failed
    assert np.abs(found).max() < 1e-3
