"""``graphopt explain``."""

from __future__ import annotations

import json

import pytest


def test_passes(graphopt, net):
    ran = graphopt("explain", net, "-p", "dce,cse,fold-batch-norm", "--mode", "training")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "eliminate-dead-code: changed, 5 -> 4 nodes"
    assert lines[1].startswith("  done: ")
    assert lines[1].endswith("[unused]")
    assert lines[2] == "eliminate-common-subexpressions: changed, 4 -> 3 nodes"
    assert lines[-1] == (
        "fold-batch-norm: refused: it would change what training computes, 3 nodes"
    )


def test_one_pass(graphopt, net):
    ran = graphopt("explain", net, "-p", "dce,cse", "--pass", "cse")
    assert ran.out.startswith("eliminate-common-subexpressions: changed")
    assert "eliminate-dead-code" not in ran.out


def test_json(graphopt, net):
    found = json.loads(graphopt("explain", net, "-p", "dce,cse", "--json").out)
    assert [p["pass"] for p in found["passes"]] == [
        "eliminate-dead-code",
        "eliminate-common-subexpressions",
    ]
    assert found["passes"][0]["nodes"] == [5, 4]
    assert found["passes"][0]["remarks"][0]["nodes"] == ["unused"]


def test_a_node_that_goes(graphopt, net):
    lines = graphopt("explain", net, "-p", "dce,cse", "--node", "unused").out.splitlines()
    assert lines[0] == "%unused = exp(%sum) : f32[2,3]"
    assert lines[1] == "eliminate-dead-code: removed it"
    assert lines[2].startswith("  done: ")
    assert len(lines) == 3


def test_a_node_that_is_changed(graphopt, net):
    out = graphopt("explain", net, "-p", "dce,cse", "--node", "sum").out
    assert (
        out
        == """\
%sum = elemwise_add(%left, %right) : f32[2,3]
eliminate-common-subexpressions: changed it
  %sum = elemwise_add(%left, %left) : f32[2,3]
"""
    )


def test_a_node_nothing_touches(graphopt, net):
    out = graphopt("explain", net, "-p", "dce", "--node", "fc").out
    assert out.splitlines()[1:] == ["no pass touched it or remarked on it"]


def test_a_node_as_json(graphopt, net):
    found = json.loads(graphopt("explain", net, "-p", "dce", "--node", "unused", "--json").out)
    assert found["node"] == "unused"
    assert found["end"] == []
    assert found["events"][0]["what"] == "removed it"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--node", "summ"], "unknown node 'summ'; did you mean 'sum'?"),
        (["--pass", "csee"], "unknown pass 'csee'; did you mean 'cse'?"),
        (["--pass", "fold-constants"], "--pass: 'fold-constants' is not in the pipeline"),
    ],
)
def test_unknown(graphopt, net, argv, message):
    ran = graphopt("explain", net, "-p", "dce,cse", *argv)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_without_shapes_it_says_so(graphopt, net_json):
    ran = graphopt("explain", net_json, "-p", "dce")
    assert ran.code == 0
    assert ran.err == "without --shape the types are not known, and passes do less\n"


@pytest.mark.usefixtures("wrong_passes")
def test_a_pass_that_fails_is_1(graphopt, net):
    ran = graphopt("explain", net, "-p", "dce,crash")
    assert ran.code == 1
    assert "crash: rolled back: ValueError: on purpose, 4 nodes" in ran.out
    assert ran.err == "rolled back: crash: ValueError: on purpose\n"


def test_what_changed_nothing_is_counted(graphopt, net):
    lines = graphopt("explain", net).out.splitlines()
    assert not [line for line in lines if "unchanged" in line]
    assert lines[-1].endswith(" passes changed nothing; --all shows them")
    every = graphopt("explain", net, "--all").out.splitlines()
    unchanged = [line for line in every if ": unchanged, " in line]
    assert len(unchanged) == int(lines[-1].split()[0])
