"""Regions of more operands than a kernel has: cut, and right."""

from __future__ import annotations

import random
import re

import pytest

from graphopt.backend.infer import with_types
from graphopt.backend.target import MXNetTarget
from graphopt.ir.graph import Graph
from graphopt.ir.node import FUSED
from graphopt.ir.parser import parse
from graphopt.passes.fusion.fuse import MAX_OPERANDS
from graphopt.testing import assert_equivalent, run_pass


def fused(body: list[str], names: list[str], found: list[str], mode: str) -> Graph:
    inputs = ", ".join(f"%{name}: f32[3,5]" for name in names)
    returned = ", ".join(f"%{name}" for name in found)
    graph = with_types(parse(f"graph g({inputs}) {{ {' '.join(body)} return {returned} }}"))
    result = run_pass(graph, "fuse-pointwise", target=MXNetTarget(), mode=mode)
    assert_equivalent(graph, result.graph, training=mode == "training")
    return result.graph


def kernels(graph: Graph) -> list[str]:
    """Their specs; every operator is in one, and none has too many operands."""
    made = [node for node in graph if not node.is_input]
    assert {node.op for node in made} == {FUSED}
    assert all(len(node.inputs) + len(node.types) <= MAX_OPERANDS for node in made)
    return [str(node.attrs["spec"]) for node in made]


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_sum_of_many_products_is_cut(mode: str) -> None:
    names = [f"x{at}" for at in range(40)]
    body = ["%p0 = tanh(%x0)"]
    for at in range(1, 40):
        body.append(f"%m{at} = elemwise_mul(%p{at - 1}, %x{at})")
        body.append(f"%p{at} = elemwise_add(%m{at}, %x{at - 1})")
    graph = fused(body, names, ["p39"], mode)
    assert 2 <= len(kernels(graph)) <= 5


def test_unrolled_loops_are_cut_between_steps() -> None:
    names = [name for at in range(12) for name in (f"x{at}", f"g{at}", f"o{at}")]
    body = ["%h0 = tanh(%x0)"]
    for at in range(1, 12):
        body += [
            f"%k{at} = sigmoid(%g{at})",
            f"%f{at} = elemwise_mul(%k{at}, %h{at - 1})",
            f"%h{at} = elemwise_add(%f{at}, %x{at})",
            f"%y{at} = elemwise_mul(%h{at}, %o{at})",
        ]
    graph = fused(body, names, [f"y{at}" for at in range(1, 12)], "training")
    found = [outputs(text) for text in kernels(graph)]
    assert len(found) > 1
    assert sum(found) == 11 + len(found) - 1  # each but the last hands on the state


def outputs(spec: str) -> int:
    """How many a kernel has."""
    return spec.split("return", 1)[1].count("%")


@pytest.mark.parametrize("seed", range(4))
def test_random_regions_of_many_operands(seed: int) -> None:
    rng = random.Random(seed)
    names = [f"x{at}" for at in range(rng.randint(26, 45))]
    values, body = list(names), []
    for at in range(40):
        a, b = rng.sample(values[-rng.randint(4, len(values)) :], 2)
        op = rng.choice(["elemwise_add", "elemwise_mul", "elemwise_sub", "broadcast_maximum"])
        body.append(f"%m{at} = {op}(%{a}, %{b}) %v{at} = tanh(%m{at})")
        values.append(f"v{at}")
    read = {name for line in body for name in re.findall(r"[(, ]%(v\d+)[,)]", line)}
    found = [f"v{at}" for at in range(40) if f"v{at}" not in read or not at % 9]
    kernels(fused(body, names, found, "training" if seed % 2 else "inference"))
