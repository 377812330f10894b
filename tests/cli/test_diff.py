"""``graphopt diff``."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def other(net, tmp_path):
    """The model with one node changed, one gone and one new."""
    text = net.read_text()
    text = text.replace("num_hidden=3", "flatten=False, num_hidden=3")
    text = text.replace("%unused = exp(%sum)", "%fresh = log(%sum)")
    path = tmp_path / "other.gir"
    path.write_text(text)
    return path


def test_equal(graphopt, net):
    assert graphopt("diff", net, net) == (0, "", "the graphs are equal\n")


def test_different(graphopt, net, other):
    assert graphopt("diff", net, other) == (
        1,
        """\
- %unused = exp(%sum) : f32[2,3]
+ %fresh = log(%sum) : f32[2,3]
~ %fc = FullyConnected(%data, %weight, %bias) {num_hidden=3} : f32[2,3]
  %fc = FullyConnected(%data, %weight, %bias) {flatten=False, num_hidden=3} : f32[2,3]
""",
        "the graphs differ\n",
    )


def test_json(graphopt, net, other):
    ran = graphopt("diff", net, other, "--json")
    found = json.loads(ran.out)
    assert ran.code == 1
    assert found["equal"] is False
    assert [len(found[key]) for key in ("removed", "added", "changed")] == [1, 1, 1]
    assert json.loads(graphopt("diff", net, net, "--json").out)["equal"] is True


def test_stdin(graphopt, net, monkeypatch):
    with net.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert graphopt("diff", "-", net).code == 0
    message = "graphopt diff: error: only one of A and B can be stdin\n"
    assert graphopt("diff", "-", "-") == (2, "", message)


def test_colour_on_a_terminal_only(terminal, net, other):
    assert "\x1b[31m- %unused" in terminal("diff", net, other)
    assert "\x1b" not in terminal("diff", net, other, NO_COLOR="1")
