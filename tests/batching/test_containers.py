"""graphopt.batch: tuples, lists and dicts in samples and in results."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import SampleError, UnsupportedError
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


def test_results_without_elements_are_a_list() -> None:
    """MXNet cannot join them."""
    net = initialized(Fn(lambda net, x: (net.g(x)[1:1], x), g=mx.gluon.nn.Dense(4, in_units=3)))
    batched = check(net, [(rand(2, 3),) for _ in range(3)], grads=False)
    found, joined = batched([(rand(2, 3),) for _ in range(3)])
    assert [each.shape for each in found] == [(0, 4)] * 3
    assert joined.shape == (6, 3)


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


def carrying(net: Any, x: Any, state: Any) -> Any:
    state["before"] = state["h"]
    state["h"] = mx.nd.tanh(net.g(x) + state["h"].detach())
    return state["h"] + x


def test_states_are_carried_from_step_to_step() -> None:
    net = initialized(Fn(carrying, g=nn.Dense(2, in_units=2)))
    found = []
    for debug in (True, False):
        batched = graphopt.batch(net, debug=debug)
        states = [{"h": rand(1, 2, seed=n)} for n in range(3)]
        for _ in range(3):
            values, slopes = gradients(
                lambda b=batched, s=states: b([(rand(1, 2, seed=7), each) for each in s]), net
            )
        found.append((values, states, slopes))
    same(found[1][:2], found[0][:2], 1e-5)
    for name, slope in found[0][2].items():
        np.testing.assert_allclose(found[1][2][name], slope, rtol=1e-5, atol=1e-5)


def test_containers_that_lead_back_are_written() -> None:
    def forward(net: Any, node: Any) -> Any:
        node["h"] = net.g(node["x"])
        return mx.nd.add_n(node["h"], *[forward(net, child) for child in node["kids"]])

    def root(seed: int) -> Any:
        found: dict[str, Any] = {"x": rand(1, 2, seed=seed), "kids": [], "parent": None}
        found["kids"] += [{"x": rand(1, 2, seed=n), "kids": [], "parent": found} for n in (8, 9)]
        return found

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    roots = [root(n) for n in range(3)]
    same(
        graphopt.batch(net)([(each,) for each in roots]),
        graphopt.batch(net, debug=True)([(root(n),) for n in range(3)]),
        1e-5,
    )
    for each in roots:
        same(each["kids"][1]["h"], net.g(each["kids"][1]["x"]), 1e-5)
        assert each["kids"][1]["parent"] is each


def test_sums_are_written_and_returned() -> None:
    def forward(net: Any, x: Any, log: list[Any]) -> Any:
        hidden = net.g(x)
        log.append(sum([hidden, hidden, x]))
        log.append([sum([hidden, x, x])])
        return Pair(sum([hidden, x]), OrderedDict(a=sum([x, hidden, hidden])))

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    want, got = ([(rand(1, 2, seed=n), []) for n in range(3)] for _ in range(2))
    expected = graphopt.batch(net, debug=True)(want)
    found = graphopt.batch(net)(got)
    net.g.weight.set_data(net.g.weight.data() * 0)  # too late to compute anything
    same(found, expected, 1e-5)
    same(got, want, 1e-5)


def test_what_is_written_past_the_copy_stays() -> None:
    shared = {"a": rand(1, 2)}

    def forward(net: Any, x: Any, given: Any) -> Any:
        shared[f"n{len(shared)}"] = 1
        return net.g(x) + given["a"]

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    graphopt.batch(net)([(rand(1, 2), shared) for _ in range(3)])
    assert [*shared] == ["a", "n1", "n2", "n3"]


def test_states_of_cells_are_kept() -> None:
    kept: list[Any] = []

    def forward(net: Any, x: Any) -> Any:
        found, (_, memory) = net.cell(x, net.cell.begin_state(1))
        kept.append(memory)
        return found

    net = initialized(Fn(forward, cell=mx.gluon.rnn.LSTMCell(2, input_size=2)))
    samples = [(rand(1, 2, seed=n),) for n in range(3)]
    graphopt.batch(net)(samples)
    for memory, (x,) in zip(kept[:3], samples, strict=True):
        same(mx.nd.identity(memory), net.cell(x, net.cell.begin_state(1))[1][1], 1e-5)
    kept[0] += 1
    same(kept[0], net.cell(samples[0][0], net.cell.begin_state(1))[1][1] + 1, 1e-5)


class Marked(Pair):
    mark: int


def test_named_tuples_with_attributes() -> None:
    def forward(net: Any, pair: Marked) -> Any:
        return net.g(pair.first) * pair.mark

    def marked(mark: int) -> Marked:
        made = Marked(rand(1, 2, seed=mark), None)
        made.mark = mark
        return made

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    check(net, [(marked(n),) for n in (1, 2, 3)])


def test_nothing_is_written_back_where_a_batch_is_refused() -> None:
    def forward(net: Any, x: Any, log: list[Any]) -> Any:
        log.append(net.g(x))
        log[-1][:] = 0
        return x

    net = initialized(Fn(forward, g=nn.Dense(2, in_units=2)))
    samples = [(rand(1, 2), [rand(1, 2)]) for _ in range(2)]
    with pytest.raises(UnsupportedError):
        graphopt.batch(net)(samples)
    assert [len(log) for _, log in samples] == [1, 1]
