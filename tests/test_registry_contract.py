"""What every registered pass promises, checked for all of them."""

from __future__ import annotations

import dataclasses
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse
from graphopt.ir.types import TensorType
from graphopt.ir.verify import verify
from graphopt.passes import PASSES, registry
from graphopt.pipeline.base import Pass, PassContext, Settings
from graphopt.pipeline.manager import run_passes
from graphopt.pipeline.spec import build, to_text

ROOT = Path(__file__).resolve().parents[1]
NAMES = list(PASSES)

#: Nothing in it can be done better.
PLAIN = """
graph plain(%x: f32[2,3], %y: i32[2]) {
  %a = sort(%x) : f32[2,3]
  %b = batch_take(%a, %y) : f32[2]
  %c = reverse(%a) {axis=(0,)} : f32[2,3]
  return %c, %b
}"""

#: Something for every pass.
SAMPLES = (
    """
    graph net(%x: f32[2,3,8,8], param %w: f32[4,3,3,3], param %g: f32[4], param %b: f32[4],
              aux %m: f32[4], aux %v: f32[4], param %w1: f32[5,144], param %w2: f32[5,144]) {
      %conv = Convolution(%x, %w) {kernel=(3, 3), no_bias=True, num_filter=4} : f32[2,4,6,6]
      %bn = BatchNorm(%conv, %g, %b, %m, %v) {eps=0.01, fix_gamma=False} : f32[2,4,6,6]
      %relu = Activation(%bn) {act_type="relu"} : f32[2,4,6,6]
      %again = Activation(%bn) {act_type="relu"} : f32[2,4,6,6]
      %sum = elemwise_add(%relu, %again) : f32[2,4,6,6]
      %drop = Dropout(%sum) {p=0.5} : f32[2,4,6,6]
      %there = transpose(%drop) {axes=(0, 2, 3, 1)} : f32[2,6,6,4]
      %back = transpose(%there) {axes=(0, 3, 1, 2)} : f32[2,4,6,6]
      %ones = ones_like(%back) : f32[2,4,6,6]
      %more = elemwise_add(%back, %ones) : f32[2,4,6,6]
      %one = _mul_scalar(%more) {scalar=1.0} : f32[2,4,6,6]
      %two = _plus_scalar(%one) {scalar=1.5} : f32[2,4,6,6]
      %three = _plus_scalar(%two) {scalar=2.0} : f32[2,4,6,6]
      %flat = Flatten(%three) : f32[2,144]
      %fc1 = FullyConnected(%flat, %w1) {no_bias=True, num_hidden=5} : f32[2,5]
      %fc2 = FullyConnected(%flat, %w2) {no_bias=True, num_hidden=5} : f32[2,5]
      %dead = tanh(%fc1) : f32[2,5]
      %out = SoftmaxOutput(%fc1, %fc2) : f32[2,5]
      return %out, %fc2
    }""",
    """
    graph net(%x: f32[4,6]) {
      %s = SliceChannel(%x) {axis=1, num_outputs=2} : (f32[4,3], f32[4,3])
      %c = Concat(%s, %s#1) {dim=1, num_args=2} : f32[4,6]
      %r = Reshape(%c) {shape=(-1,)} : f32[24]
      %q = Reshape(%r) {shape=(4, 6)} : f32[4,6]
      %n = negative(%q) : f32[4,6]
      %p = negative(%n) : f32[4,6]
      %z = _zeros() {dtype="float32", shape=(4, 6)} : f32[4,6]
      %y = elemwise_add(%p, %z) : f32[4,6]
      return %y
    }""",
)


#: What these do depends on the machine and is not in their examples; their own tests replace it.
OF_THE_MACHINE = ("select-convolution", "select-gemm", "select-recurrence", "replace-dense")


def pass_class(name: str) -> type[Pass]:
    return registry.pass_class(name)


def settings_for(cls: type[Pass]) -> Settings:
    mode = "inference" if "inference" in cls.modes else "training"
    return Settings(mode, frozen=mode == "inference", strict=True)


class Remembering(MXNetTarget):
    """Measures once, as where files are kept: what is near a bound differs each time."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, ...], Any] = {}

    def measured_once(
        self, parts: Sequence[str], measure: Callable[[], Any], place: Sequence[str] = ()
    ) -> Any:
        if tuple(parts) not in self.found:
            self.found[tuple(parts)] = measure()
        return self.found[tuple(parts)]


def run(name: str, graph: Graph, target: MXNetTarget | None = None) -> Graph:
    cls = pass_class(name)
    return run_passes(graph, [cls()], settings_for(cls), target or MXNetTarget()).graph


# -- the class ----------------------------------------------------------------------------------


def test_every_module_of_passes_is_registered() -> None:
    registered = {target.partition(":")[0].rpartition(".")[2] for target in PASSES.values()}
    files = {file.stem for file in (ROOT / "passes").glob("*.py")} - {"__init__"}
    assert files == registered


@pytest.mark.parametrize("name", NAMES)
def test_class(name: str) -> None:
    cls = pass_class(name)
    assert cls.name == name
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert issubclass(cls, Pass)
    assert dataclasses.is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert cls.modes <= {"inference", "training"}
    assert cls.modes
    words = "".join(part.capitalize() for part in name.split("-"))
    assert cls.__name__ == words


@pytest.mark.parametrize("name", NAMES)
def test_documentation(name: str) -> None:
    cls = pass_class(name)
    assert cls.__doc__
    first, *rest = cls.__doc__.splitlines()
    assert first.strip().endswith(".")
    assert not rest or not rest[0].strip()
    assert "Example::" in cls.__doc__
    for field in dataclasses.fields(cls):
        assert re.search(rf"^\s+{field.name}: \S", cls.__doc__, re.MULTILINE), field.name
    assert sys.modules[cls.__module__].__doc__


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_THE_MACHINE])
def test_examples_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example of whole graphs is what the pass does, on a processor with AVX-512."""
    monkeypatch.setattr(MXNetTarget, "block_lanes", lambda _self: 16)
    cls = pass_class(name)
    assert cls.__doc__
    example = textwrap.dedent(cls.__doc__.partition("Example::")[2])
    graphs = list(re.finditer(r"^([ ]*)graph .*?^\1}$", example, re.MULTILINE | re.DOTALL))
    if len(graphs) == 2:
        before, after = (parse(textwrap.dedent(found[0])) for found in graphs)
        assert run(name, before) == after


@pytest.mark.parametrize("name", NAMES)
def test_test_file(name: str) -> None:
    module = PASSES[name].partition(":")[0].rpartition(".")[2]
    assert (ROOT / "tests" / "passes" / f"test_{module}.py").is_file()


@pytest.mark.parametrize("name", NAMES)
def test_options_round_trip(name: str) -> None:
    cls = pass_class(name)
    changed = {}
    for field in dataclasses.fields(cls):
        default = field.default
        assert isinstance(default, (bool, int, float, str)), f"{field.name} needs a plain default"
        changed[field.name] = (
            not default
            if isinstance(default, bool)
            else default + "x"
            if isinstance(default, str)
            else default + 1
        )
        one = cls(**{field.name: changed[field.name]})
        assert build(str(one), registry) == (one,)
    every = (cls(), cls(**changed))
    assert build(to_text(every), registry) == every
    assert str(cls()) == name


# -- what it does -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_nothing_to_do_gives_back_the_graph(name: str) -> None:
    cls, graph = pass_class(name), parse(PLAIN)
    cx = PassContext(settings_for(cls), MXNetTarget(), name)
    made = cls().run(graph, cx)
    assert made.is_unchanged_from(graph)
    assert not cx.stats


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", SAMPLES)
def test_a_second_run_changes_nothing(name: str, text: str) -> None:
    graph = parse(textwrap.dedent(text))
    verify(graph)
    target = Remembering()
    once = run(name, graph, target)
    if pass_class(name).idempotent:
        assert run(name, once, target).is_unchanged_from(once)


@pytest.mark.parametrize("name", NAMES)
def test_works_without_a_target(name: str) -> None:
    cls = pass_class(name)
    for text in SAMPLES:
        run_passes(parse(textwrap.dedent(text)), [cls()], settings_for(cls))


@pytest.mark.parametrize("name", NAMES)
def test_refuses_what_it_must_not_do(name: str) -> None:
    cls = pass_class(name)
    for mode in ("inference", "training"):
        reason = cls().refusal(Settings(mode, frozen=True))
        assert (reason is None) == (mode in cls.modes)
    if cls.needs_frozen:
        assert "frozen" in (cls().refusal(Settings("inference")) or "")


# -- how long it takes --------------------------------------------------------------------------


def shape(*extents: int) -> TensorType:
    return TensorType("float32", extents)


BLOCK = shape(4, 8)


def chain(length: int) -> Graph:
    """Blocks of everything, one after the other."""
    graph = Graph("chain")
    value = graph.add_input("x", type=shape(4, 8)).out()
    weight = graph.add_input("w", "param", shape(8, 8))
    two = graph.add("_full", (), {"shape": (4, 8), "value": 2.0}, [shape(4, 8)], "two")
    per_block = 10
    for number in range(length // per_block):

        def add(op: str, inputs: list, wide: TensorType = BLOCK, **attrs: object):
            nonlocal count
            count += 1
            return graph.add(op, inputs, attrs, [wide], f"b{number}_{count}").out()  # noqa: B023

        count = 0
        left = add("relu", [value])
        right = add("relu", [value])
        both = add("elemwise_add", [left, right])
        there = add("transpose", [both], shape(8, 4), axes=(1, 0))
        back = add("transpose", [there], axes=(1, 0))
        more = add("_mul_scalar", [back], scalar=1.0)
        again = add("_plus_scalar", [more], scalar=0.5)
        twice = add("elemwise_mul", [again, two.out()])
        add("tanh", [twice])  # dead
        value = add("FullyConnected", [twice, weight.out()], num_hidden=8, no_bias=True)
    graph.set_outputs([value])
    return graph


def fan(width: int) -> Graph:
    """As many branches from one input, joined in the end."""
    graph = Graph("fan")
    x = graph.add_input("x", type=shape(4, 8))
    weights = [graph.add_input(f"w{n}", "param", shape(8, 8)) for n in range(8)]
    branches = []
    for number in range(width // 2):
        weight = weights[number % 8]
        attrs = {"num_hidden": 8, "no_bias": True}
        y = graph.add("FullyConnected", [x, weight], attrs, [shape(4, 8)], f"f{number}")
        branches.append(graph.add("_mul_scalar", [y], {"scalar": 2.0}, [shape(4, 8)], f"m{number}"))
    count = {"num_args": len(branches)}
    graph.set_outputs([graph.add("add_n", branches, count, [shape(4, 8)], "sum")])
    return graph


def python_calls(function: Callable[[], object]) -> int:
    """How many functions, Python's and C's, a call enters: a clock that every machine agrees on."""
    count = 0

    def hear(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(hear)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [chain, fan])
def test_time_is_near_linear(name: str, make: Callable[[int], Graph]) -> None:
    cls = pass_class(name)
    settings = settings_for(cls)
    counts = []
    for size in (500, 1_000):
        graph = make(size)
        graph.topological()
        counts.append(python_calls(lambda g=graph: cls().run(g, PassContext(settings))))
    assert counts[1] <= 2.3 * counts[0] + 100
