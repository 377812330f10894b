"""graphopt.batch: tuples, lists and dicts in samples and in results."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import SampleError
from tests.batching.comparing import Fn, check, flat, gradients, initialized, rand, same

mx = import_mxnet()
nn = mx.gluon.nn


def test_nested_arguments_and_results() -> None:
    def forward(net: Any, given: Any) -> Any:
        a, (b, c) = given["a"], given["bc"]
        return {"x": net.g(a), "more": [b + c, (c * 2, net.g(b))]}, given["name"]

    net = initialized(Fn(forward, g=nn.Dense(3, in_units=2)))
    samples = [
        ({"a": rand(1, 2), "bc": (rand(1, 2), rand(1, 2)), "name": n},) for n in ("s", "t", "u")
    ]
    batched = check(net, samples)
    found = batched(samples)
    assert found[0]["x"].shape == (3, 3)
    assert found[1] == ["s", "t", "u"]
    assert len(flat(found)) == 4


def test_what_samples_share_stays_shared() -> None:
    def forward(net: Any, state: Any, x: Any) -> Any:
        state["seen"] += 1
        return net.g(x + state["x"]) * state["seen"]

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    found = []
    for debug in (True, False):
        shared = {"seen": 0, "x": rand(1, 2, seed=1)}
        samples = [(shared, rand(1, 2, seed=n)) for n in range(3)]
        found.append(graphopt.batch(net, debug=debug)(samples))
    same(*found, 1e-5)


def test_containers_that_lead_back_or_meet_again() -> None:
    def total(net: Any, node: Any, seen: dict[int, Any]) -> Any:
        if id(node) not in seen:
            found = net.g(node["x"])
            for child in node["children"]:
                found = found + total(net, child, seen)
            seen[id(node)] = found
        return seen[id(node)]

    net = initialized(Fn(lambda net, root: total(net, root, {}), g=nn.Dense(2, in_units=2)))
    samples = []
    for sample in range(2):
        node: dict[str, Any] = {"x": rand(1, 2, seed=sample), "children": []}
        for level in range(30):  # each below is there twice
            above = {"x": rand(1, 2, seed=level), "children": [node, node]}
            node["parent"] = above
            node = above
        samples.append((node,))
    batched = graphopt.batch(net)
    same(batched(samples), graphopt.batch(net, debug=True)(samples), 1e-4)
    assert batched.statistics.calls < 200


def test_a_list_that_is_linked_far() -> None:
    def forward(net: Any, entry: Any) -> Any:
        found = net.g(entry[0])
        while entry[1] is not None:
            entry = entry[1]
        return found + entry[0]

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = []
    for sample in range(2):
        entry: Any = (rand(1, 2, seed=sample), None)
        for _ in range(3000):
            entry = (entry[0], entry)
        samples.append((entry,))
    same(graphopt.batch(net)(samples), graphopt.batch(net, debug=True)(samples), 1e-5)


class Pair(NamedTuple):
    first: Any
    second: Any


Plain = namedtuple("Plain", "a b")


def test_tuples_with_names_and_ordered_dicts() -> None:
    def forward(net: Any, pair: Pair, more: Any) -> Any:
        hidden = net.g(pair.first) + more["x"]
        return Pair(hidden, OrderedDict(b=hidden * 2, a=Plain(hidden - 1, pair.second)))

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [(Pair(rand(1, 2), n), OrderedDict(x=rand(1, 2))) for n in range(3)]
    found = check(net, samples)(samples)
    assert found.first.shape == (3, 2)
    assert [*found.second] == ["b", "a"]
    assert found.second["a"].b == [0, 1, 2]


def writing(net: Any, x: Any, state: Any, log: Any, table: Any) -> Any:
    hidden = mx.nd.tanh(net.g(x) + state["h"][-1])
    state["h"].append(hidden)
    state["pair"] = (hidden, hidden * 2)
    log.append(hidden * 3)
    log.append(len(log))
    table["x"] = x
    del state["old"]
    return net.g(state["h"][-1]) + hidden


def written_samples() -> list[Any]:
    shared = {"all": rand(1, 2, seed=9), "x": None}
    return [
        (
            rand(1, 2, seed=n),
            {"h": [rand(1, 2, seed=n + 5)], "old": rand(1, 2), "shared": shared},
            [],
            {},
        )
        for n in range(3)
    ]


def test_what_is_written_into_lists_and_dicts_stays() -> None:
    net = initialized(Fn(writing, g=nn.Dense(2, in_units=2)))
    batched = graphopt.batch(net)
    for _ in range(2):
        want, got = written_samples(), written_samples()
        firsts = [sample[1]["h"][0] for sample in got]
        lists = [sample[1]["h"] for sample in got]
        graphopt.batch(net, debug=True)(want)
        batched(got)
        for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
            assert mine[1]["h"] is lists[number]
            assert mine[1]["h"][0] is firsts[number]
            assert mine[3]["x"] is mine[0]
            assert [*mine[1]] == [*theirs[1]]
            same(mine, theirs, 1e-5)
        assert len({id(sample[1]["shared"]) for sample in got}) == 1


def test_what_is_written_has_gradients() -> None:
    net = initialized(Fn(writing, g=nn.Dense(2, in_units=2)))

    def run(batched: Any) -> Any:
        samples = written_samples()
        batched(samples)
        return [(s[1]["h"][1], s[1]["pair"][1], s[2][0]) for s in samples]

    want, theirs = gradients(lambda: run(graphopt.batch(net, debug=True)), net)
    found, ours = gradients(lambda: run(graphopt.batch(net)), net)
    same(found, want, 1e-5)
    for name, gradient in theirs.items():
        np.testing.assert_allclose(ours[name], gradient, rtol=1e-5, atol=1e-5)


def test_what_was_written_before_an_error_stays() -> None:
    def forward(net: Any, x: Any, log: list[Any]) -> Any:
        log.append(net.g(x))
        if len(log) > 2:
            raise ValueError("mine")
        return x

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [(rand(1, 2), [rand(1, 2)] * n) for n in range(4)]
    with pytest.raises(SampleError):
        graphopt.batch(net)(samples)
    assert [len(log) for _, log in samples] == [1, 2, 3, 4]
    for x, log in samples:
        same(log[-1], net.g(x), 1e-5)


def test_arrays_kept_from_a_call_are_arrays() -> None:
    kept: list[Any] = []

    def forward(net: Any, x: Any) -> Any:
        kept.append(net.g(x))
        return kept[-1] * 2

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [(rand(1, 2, seed=n),) for n in range(3)]
    batched = graphopt.batch(net)
    with mx.autograd.record():
        batched(samples)
    kept[1].backward()
    gradient = net.g.weight.grad().asnumpy()
    with mx.autograd.record():
        net.g(samples[1][0]).backward()
    np.testing.assert_allclose(gradient, net.g.weight.grad().asnumpy(), rtol=1e-5)
    kept.clear()
    batched(samples)
    kept[0].attach_grad()
    with mx.autograd.record():
        (kept[0] * 3).backward()
    assert kept[0].grad.asnumpy().tolist() == [[3, 3]]
    kept[2][:] = 7
    assert kept[2].asnumpy().tolist() == [[7, 7]]
