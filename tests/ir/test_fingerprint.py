"""Structural hashes: what they depend on, and what not."""

import os
import subprocess
import sys

import pytest

from graphopt.ir.fingerprint import fingerprint, node_digests
from graphopt.ir.parser import parse
from tests.places import REPOSITORY

TEXT = """
graph g(%x: f32[2,3], param %w: f32[4,3]) {
  %dead = tanh(%x) : f32[2,3]
  %a = relu(%x) {act="x", size=(1, 2)} : f32[2,3]
  %y = FullyConnected(%a, %w) {no_bias=True, num_hidden=4} : f32[2,4]
  %s = SliceChannel(%y) {num_outputs=2} : (f32[2,2], f32[2,2])
  return %s, %s#1
}"""


def test_same_in_another_process():
    code = (
        "import sys; from graphopt.ir.parser import parse;"
        "from graphopt.ir.fingerprint import fingerprint;"
        "print(fingerprint(parse(sys.stdin.read())))"
    )
    expected = fingerprint(parse(TEXT))
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            input=TEXT,
            capture_output=True,
            text=True,
            check=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert found.stdout.strip() == expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%a", "%other"),
        ("%w", "%net1_weight"),
        ("graph g", "graph h"),
        ('act="x", size=(1, 2)', 'size=(1, 2), act="x"'),
        (" : f32[2,4]", ""),  # types of operators follow
        ("%w: f32[4,3]", '%w: f32[4,3] {__init__="Constant_w_140671696687888"}'),
    ],
)
def test_does_not_depend_on(old, new):
    assert fingerprint(parse(TEXT.replace(old, new))) == fingerprint(parse(TEXT))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%x", "%z"),
        ("param %w", "aux %w"),
        ("%w: f32[4,3]", '%w: f32[4,3] {__lr_mult__="2.0"}'),
        ("%x: f32[2,3]", "%x: f32[5,3]"),
        ("%x: f32", "%x: f64"),
        ("num_hidden=4", "num_hidden=4.0"),
        ("no_bias=True", "no_bias=1"),
        ("relu", "tanh"),
        ("return %s, %s#1", "return %s#1, %s"),
        ("return %s, %s#1", "return %s"),
        ("FullyConnected(%a, %w)", "FullyConnected(%w, %a)"),
        ("FullyConnected(%a, %w)", "FullyConnected(%x, %w)"),
        ("relu(%x) {", "relu(%x) {more=1, "),
        ("%a = relu(%x)", "%a = relu(%dead)"),
    ],
)
def test_depends_on(old, new):
    changed = TEXT.replace(old, new)
    assert changed != TEXT
    assert fingerprint(parse(changed)) != fingerprint(parse(TEXT))


def test_depends_on_the_order_of_inputs():
    swapped = TEXT.replace(
        "(%x: f32[2,3], param %w: f32[4,3])", "(param %w: f32[4,3], %x: f32[2,3])"
    )
    assert fingerprint(parse(swapped)) != fingerprint(parse(TEXT))


@pytest.mark.parametrize("role", ["param", "aux"])
def test_depends_on_which_parameter_is_read(role: str) -> None:
    def made(first: str, second: str) -> str:
        return fingerprint(
            parse(
                f"graph g(%x: f32[2,2], {role} %v: f32[2,2], {role} %w: f32[2,2]) {{"
                f"%a = dot(%x, %{first}) %b = dot(%a, %{second}) return %b }}"
            )
        )

    assert len({made("v", "w"), made("w", "v"), made("v", "v"), made("w", "w")}) == 4


def test_depends_on_control_dependencies_and_nested_graphs():
    def made(line):
        return fingerprint(parse(f"graph g(%x: ?) {{ %a = relu(%x)\n %b = {line} return %b }}"))

    nested = "f(%x) [ graph n(%s: ?) { %t = tanh(%s) return %t } ]"
    plain = made("f(%x)")
    assert (
        len({plain, made("f(%x) after(%a)"), made(nested), made(nested.replace("tanh", "relu"))})
        == 4
    )


def test_does_not_depend_on_ids():
    graph = parse(TEXT)
    other = graph.copy()
    spare = other.add("relu", [other.find("x")])
    again = other.add("FullyConnected", other.find("y").inputs, other.find("y").attrs)
    other.replace_uses(other.find("y").out(), again.out())
    other.erase(other.find("y").id)
    other.erase(spare.id)
    assert fingerprint(other) == fingerprint(graph)


def test_equal_nodes_have_equal_digests():
    graph = parse("graph g(%x: ?) { %a = relu(%x) %b = relu(%x) %c = relu(%b) return %a, %b, %c }")
    digests = {graph[node].name: digest for node, digest in node_digests(graph).items()}
    assert digests["a"] == digests["b"] != digests["c"]
    assert len(digests) == 4


def test_digests_of_nodes_depend_on_names_of_parameters():
    graph = parse("graph g(param %v: f32[2], param %w: f32[2]) { %a = f(%v) %b = f(%w) return %b }")
    digests = {graph[node].name: digest for node, digest in node_digests(graph).items()}
    assert digests["a"] != digests["b"]
    other = parse(str(graph).replace("%w", "%v1"))
    found = {other[node].name: digest for node, digest in node_digests(other).items()}
    assert found["a"] == digests["a"]
    assert found["b"] != digests["b"]
