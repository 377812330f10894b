"""select-gemm: the measuring is replaced, what it decides is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.passes import select_gemm
from graphopt.passes.select_gemm import SelectGemm, as_timed, of_so_many
from graphopt.testing import assert_equivalent, run_pass

SMALL = "select-gemm{min_mega_macs=0}"


class Clock(MXNetTarget):
    """A target on which ``dot`` takes as long as told, FullyConnected 1 ms."""

    def __init__(self, dot_ms: float) -> None:
        self.dot_ms = dot_ms
        self.timed = 0

    def times_ms(self, graphs: Sequence[Graph], *, training: bool = False) -> list[float]:
        self.timed += 1
        return [self.dot_ms if any(node.op == "dot" for node in graph) else 1.0 for graph in graphs]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    select_gemm._MEASURED.clear()
    yield
    select_gemm._MEASURED.clear()


def net(x: str = "f32[2,3,4]", flat: bool = False, bias: bool = True, tail: str = "") -> Graph:
    reads, more = ("%x, %w, %b", "") if bias else ("%x, %w", ", no_bias=True")
    fc = f"%fc = FullyConnected({reads}) {{flatten={flat}, num_hidden=5{more}}}"
    return with_types(
        parse(f"graph g(%x: {x}, param %w: ?, param %b: f32[5]) {{ {fc} {tail or 'return %fc'} }}")
    )


def test_example(example):
    before, after = example(SelectGemm)
    result = run_pass(before, "select-gemm", target=Clock(0.5), frozen=True)
    assert result.graph == after
    assert_equivalent(before, result.graph, seeds=(0,))
    told = "dot takes 0.50 ms, FullyConnected 1.00 ms for 384 of its 1024 rows"
    assert [r.message for r in result.remarks] == [told]


@pytest.mark.parametrize(
    ("problem", "rows", "outputs", "told"),
    [
        ((1024, 768, 3072, True), 384, 3072, " for 384 of its 1024 rows"),
        ((1024, 1024, 1024, True), 1024, 1024, ""),
        (
            (200, 8192, 8192, True),
            128,
            2048,
            " for 128 of its 200 rows and 2048 of its 8192 outputs",
        ),
        ((1, 25088, 4096, True), 1, 640, " for 640 of its 4096 outputs"),
        ((1, 1 << 20, 200, True), 1, 128, " for 128 of its 200 outputs"),
        ((7, 16, 4, False), 7, 4, ""),
        ((0, 0, 4, False), 0, 4, ""),
    ],
)
def test_as_much_is_timed_as_is_worth_it(
    problem: select_gemm.Problem, rows: int, outputs: int, told: str
) -> None:
    timed = as_timed(problem)
    assert timed == (rows, problem[1], outputs, problem[3])
    assert of_so_many(timed, problem) == told


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("x", "flat"), [("f32[2,3,4]", False), ("f32[2,3,4]", True), ("f32[6,4]", True)]
)
def test_equivalent(x: str, flat: bool, bias: bool) -> None:
    before = net(x, flat, bias)
    result = run_pass(before, SMALL, target=Clock(0.5), frozen=True)
    assert result.receipts[0].stats == {"replaced": 1}
    assert result.graph[result.graph.outputs[0].node].name == "fc"
    assert_equivalent(before, result.graph)


def test_a_gain_too_small_is_not_taken_and_told() -> None:
    result = run_pass(net(), SMALL, target=Clock(0.99), frozen=True)
    assert result.receipts[0].status == "unchanged"
    assert [r.message for r in result.remarks] == ["dot is no faster: 0.99 ms for 1.00 ms"]


def test_each_shape_is_timed_once() -> None:
    clock = Clock(0.5)
    run_pass(net(), SMALL, target=clock, frozen=True)
    timed = clock.timed
    run_pass(net(), SMALL, target=clock, frozen=True)
    assert clock.timed == timed > 0


@pytest.mark.parametrize(
    "graph",
    [
        net(tail='%a = Activation(%fc) {act_type="relu"} return %a'),
        net("f64[6,4]", bias=False),
    ],
)
def test_left_alone(graph: Graph) -> None:
    clock = Clock(0.5)
    result = run_pass(graph, SMALL, target=clock, frozen=True)
    assert result.receipts[0].status == "unchanged"
    assert clock.timed == 0


def test_small_layers_are_left_alone() -> None:
    result = run_pass(net(), "select-gemm", target=Clock(0.5), frozen=True)
    assert result.receipts[0].status == "unchanged"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mode": "training"}, "it would change what training computes"),
        ({"frozen": False}, "it needs frozen parameters"),
        ({"precise": True}, "dot sums in another order"),
        ({"device": "gpu"}, "not on the gpu"),
    ],
)
def test_refusals(settings: dict[str, object], reason: str) -> None:
    result = run_pass(net(), SMALL, target=Clock(0.5), **{"frozen": True, **settings})
    assert result.receipts[0].status == "refused"
    assert reason in result.receipts[0].reason


def test_the_real_clock_times_both() -> None:
    assert min(MXNetTarget().times_ms([net(), net("f32[200,300,4]")])) > 0
