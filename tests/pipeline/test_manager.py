"""Running passes: receipts, refusals, and rolling back whatever a pass may do wrong."""

import gc
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from graphopt.backend.target import MXNetTarget
from graphopt.errors import GraphError, PassError
from graphopt.ir.graph import Graph
from graphopt.ir.node import Value
from graphopt.ir.parser import parse
from graphopt.pipeline.base import Mode, Pass, PassContext, Settings
from graphopt.pipeline.instruments import CheckNumerics, Instrument
from graphopt.pipeline.manager import run_passes
from graphopt.pipeline.remarks import Remark, RemarkKind

TEXT = """
graph net(%x: f32[2], param %w: f32[2]) {
  %a = relu(%x) : f32[2]
  %y = elemwise_mul(%a, %w) : f32[2]
  return %y
}"""


@dataclass(frozen=True)
class Does(Pass):
    """Does what it is told to."""

    name: ClassVar[str] = "does"
    what: Callable[[Graph, PassContext], object] = lambda graph, cx: graph

    def run(self, graph: Graph, cx: PassContext) -> Graph:
        cx.passed("began")
        cx.count("tries")
        return self.what(graph, cx)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Training(Does):
    name: ClassVar[str] = "training-only"
    modes: ClassVar[frozenset[Mode]] = frozenset({"training"})


@dataclass(frozen=True)
class Frozen(Does):
    name: ClassVar[str] = "frozen-only"
    needs_frozen: ClassVar[bool] = True


def changed(edit):
    """A pass that makes a copy and edits it."""

    def what(graph, cx):
        twin = graph.copy()
        edit(twin)
        return twin

    return Does(what)


def swap_op(graph):
    graph.update(graph.find("a").but(op="tanh"))


@pytest.fixture
def graph():
    return parse(TEXT)


def raises(graph, cx):
    raise ZeroDivisionError("by hand")


def writes(graph, cx):
    swap_op(graph)
    return graph


def writes_and_returns_a_copy(graph, cx):
    twin = graph.copy()
    swap_op(graph)
    return twin


def returns_nothing(graph, cx):
    return None


def dangling(graph):
    graph.update(graph.find("y").but(inputs=(Value(0), Value(77))))


def cyclic(graph):
    y = graph.find("y")
    graph.update(graph.find("a").but(inputs=(y.out(),)))


def renames_input(graph):
    graph.update(graph.find("w").but(name="v"))


def changes_role(graph):
    graph.update(graph.find("w").but(op="data"))


def adds_input(graph):
    graph.add_input("z")


def drops_input(graph):
    graph.replace_uses(graph.find("w").out(), graph.find("x").out())
    graph.erase(graph.find("w").id)


def adds_output(graph):
    graph.set_outputs([*graph.outputs, graph.find("a")])


WRONG = [
    (Does(raises), "ZeroDivisionError: by hand"),
    (Does(writes), "it wrote to the graph it was given"),
    (Does(writes_and_returns_a_copy), "it wrote to the graph it was given"),
    (Does(returns_nothing), "it returned None, not a graph"),
    (changed(dangling), "node 'y' (elemwise_mul) reads node 77, which is not there"),
    (changed(cyclic), "graph 'net' has a cycle: y <- a <- y"),
    (changed(renames_input), "does changed the graph's inputs: ['w']"),
    (changed(changes_role), "does changed the graph's inputs: order or roles"),
    (changed(adds_input), "does changed the graph's inputs: order or roles"),
    (changed(drops_input), "does changed the graph's inputs: ['w']"),
    (changed(adds_output), "does changed the number of outputs from 1 to 2"),
]
IDS = ["raises", "writes", "writes and copies", "returns nothing", "dangling", "cyclic", "renames"]
IDS += ["changes role", "adds input", "drops input", "adds output"]


@pytest.mark.parametrize(("pass_", "reason"), WRONG, ids=IDS)
def test_a_pass_that_goes_wrong_is_rolled_back(graph, pass_, reason):
    ending = changed(swap_op)
    result = run_passes(graph, [pass_, ending])
    first, second = result.receipts
    assert first.status == "rolled back"
    assert first.reason.startswith(reason)
    assert first.before == first.after
    assert dict(first.stats) == {}
    assert second.status == "changed"
    assert result.graph.find("a").op == "tanh"
    assert str(graph) == TEXT.strip()
    # Its remarks spoke of what was taken back.
    remark = result.remarks[0]
    assert remark.kind is RemarkKind.MISSED
    assert remark.message.startswith(f"rolled back: {reason}")
    assert [r.message for r in result.remarks[1:]] == ["began"]


@pytest.mark.parametrize(("pass_", "reason"), WRONG, ids=IDS)
def test_strict_raises_with_the_pipeline_that_is_left(graph, pass_, reason):
    done, rest = changed(swap_op), Frozen()
    with pytest.raises(PassError) as caught:
        run_passes(graph, [done, pass_, rest], Settings(strict=True))
    text = str(caught.value)
    assert text.startswith(f"does failed on graph 'net' after [does]: {reason}")
    assert text.endswith("; the pipeline from there is 'does,frozen-only'")
    assert caught.value.__cause__ is not None
    assert str(graph) == TEXT.strip()


def test_the_first_pass_fails_after_nothing(graph):
    with pytest.raises(PassError, match=r"after \[nothing\]: ZeroDivisionError: by hand"):
        run_passes(graph, [Does(raises)], Settings(strict=True))


def test_interrupts_are_not_swallowed(graph):
    def interrupted(graph, cx):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_passes(graph, [Does(interrupted)])


def test_malformed_graphs_are_refused_before_any_pass(graph):
    graph.set_outputs([])
    with pytest.raises(GraphError, match=r"^graph 'net' returns nothing$"):
        run_passes(graph, [Does(raises)])


def test_what_mxnet_computes_in_bfloat16_stays():
    graph = parse(TEXT.replace("f32", "bf16"))
    result = run_passes(graph, [Does()])
    assert result.receipts[0].status == "refused"
    assert "bfloat16" in result.remarks[0].message
    assert result.graph is graph


def test_refused_passes_do_not_run(graph):
    result = run_passes(graph, [Training(raises), Frozen(raises)])
    assert [r.status for r in result.receipts] == ["refused", "refused"]
    assert [r.reason for r in result.receipts] == [
        "it would change what inference computes",
        "it needs frozen parameters: use mode='inference'",
    ]
    assert [str(r) for r in result.remarks] == [
        "missed: training-only: it would change what inference computes",
        "missed: frozen-only: it needs frozen parameters: use mode='inference'",
    ]
    assert result.graph.is_unchanged_from(graph)


def test_refusal_is_no_failure_in_strict_mode(graph):
    result = run_passes(graph, [Frozen()], Settings(strict=True))
    assert result.receipts[0].status == "refused"


def test_passes_run_where_they_may(graph):
    assert run_passes(graph, [Training()], Settings("training")).receipts[0].status == "unchanged"
    assert run_passes(graph, [Frozen()], Settings(frozen=True)).receipts[0].status == "unchanged"


def test_receipts(graph):
    unchanged = Does(lambda graph, cx: graph.copy())
    shorter = changed(lambda g: g.replace_uses(g.find("a").out(), g.find("x").out()))
    result = run_passes(graph, [unchanged, shorter])
    first, second = result.receipts
    assert first.status == "unchanged"
    assert first.before == first.after
    assert second.status == "changed"
    assert second.before == first.after
    assert second.after.intermediate_bytes == 8
    assert dict(second.stats) == {"tries": 1}
    assert second.time_ms >= 0
    assert second.check_ms >= 0
    assert second.max_error is None
    assert json.loads(json.dumps(second.as_dict()))["status"] == "changed"
    assert [r.pass_name for r in result.remarks] == ["does", "does"]


def test_a_pass_that_changes_nothing_gives_back_the_same_graph(graph):
    result = run_passes(graph, [Does(), Does(lambda graph, cx: graph.copy())])
    assert result.graph is graph


def test_no_passes(graph):
    result = run_passes(graph, [])
    assert result.graph is graph
    assert result.receipts == ()


# -- numeric checks -----------------------------------------------------------------------------


FEEDS = {"x": np.array([1.0, -2.0], "float32"), "w": np.array([3.0, 4.0], "float32")}


def test_wrong_values_are_rolled_back(graph, mx):
    right = changed(lambda g: g.update(g.find("y").but(op="broadcast_mul")))
    result = run_passes(
        graph, [right, changed(swap_op)], target=MXNetTarget(), instruments=[CheckNumerics(FEEDS)]
    )
    first, second = result.receipts
    assert (first.status, first.max_error) == ("changed", 0.0)
    assert second.status == "rolled back"
    assert second.reason == (
        "does changed output0 beyond rtol 0.001, atol 0.0001: 0 became -3.85611033 at [1]"
    )
    assert [node.op for node in result.graph] == ["data", "relu", "param", "broadcast_mul"]


def test_training_checks_gradients_too(graph, mx):
    def stop(graph):
        stopped = graph.add("BlockGrad", [graph.find("a")], types=[graph.find("a").type], name="s")
        y = graph.find("y")
        graph.update(y.but(inputs=(stopped.out(), y.inputs[1])))

    for mode, status in (("inference", "changed"), ("training", "rolled back")):
        result = run_passes(
            graph, [changed(stop)], Settings(mode), MXNetTarget(), [CheckNumerics(FEEDS)]
        )
        assert result.receipts[0].status == status
    assert result.receipts[0].reason.startswith("does changed grad:x beyond rtol")


def test_a_numeric_check_needs_a_target(graph):
    with pytest.raises(Exception, match=r"^a numeric check needs a target to run graphs on$"):
        run_passes(graph, [], instruments=[CheckNumerics(FEEDS)])


def test_what_an_instrument_raises_is_a_veto(graph):
    class Veto(Instrument):
        heard: ClassVar[list[str]] = []

        def after_pass(self, pass_, before, after, cx):
            raise RuntimeError("not this one")

        def after_failure(self, pass_, before, error):
            self.heard.append(str(error))

    result = run_passes(graph, [changed(swap_op)], instruments=[Veto()])
    assert result.receipts[0].reason == "RuntimeError: not this one"
    assert Veto.heard == ["not this one"]


def test_remarks_print_and_serialize():
    remark = Remark(RemarkKind.PASSED, "dce", "erased 2", ("a", "b"))
    assert str(remark) == "passed: dce: erased 2 [a, b]"
    assert json.dumps(remark.as_dict()) == (
        '{"kind": "passed", "pass": "dce", "message": "erased 2", "nodes": ["a", "b"]}'
    )


def test_contexts_name_nodes():
    cx = PassContext(Settings("training"), None, "p")
    graph = parse(TEXT)
    cx.note("seen", graph.find("a"), "b")
    assert str(cx.remarks[0]) == "analysis: p: seen [a, b]"
    assert cx.training


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_not_looked_for_while_passes_run(graph, enabled):
    seen = []
    looks = Does(lambda graph, cx: [seen.append(gc.isenabled()), graph][1])
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        run_passes(graph, [looks])
        with pytest.raises(PassError):
            run_passes(graph, [Does(raising)], Settings(strict=True))
        assert seen == [False]
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def raising(graph, cx):
    raise ValueError("on purpose")
