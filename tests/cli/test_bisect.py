"""``graphopt bisect``."""

from __future__ import annotations

import json

import pytest

RANDOM = "parameters and data are random (--seed 0); --params FILE gives real ones\n"


def test_all_fine(graphopt, net):
    message = "all 2 passes keep what net computes\n"
    assert graphopt("bisect", net, "-p", "dce,cse") == (0, message, RANDOM)


@pytest.mark.usefixtures("wrong_passes")
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_names_the_first_wrong_pass(graphopt, net, mode):
    ran = graphopt("bisect", net, "-p", "dce,double,cse,crash", "--mode", mode)
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0] == "pass 2 of 4 breaks net: double"
    assert lines[1].startswith("double changed output0 beyond rtol 0.001, atol 0.0001: ")
    assert len(lines) == 2
    assert "parameters were random" in ran.err


@pytest.mark.usefixtures("wrong_passes")
def test_json(graphopt, net):
    ran = graphopt("bisect", net, "-p", "dce,crash", "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["bad"], found["pass"]) == (1, 2, "crash")
    assert found["reason"] == "ValueError: on purpose"
    fine = json.loads(graphopt("bisect", net, "-p", "dce", "--json").out)
    assert (fine["bad"], fine["max_errors"]) == (None, [0.0])


@pytest.mark.usefixtures("wrong_passes")
def test_writes_what_the_pass_was_given(graphopt, net, tmp_path):
    path = tmp_path / "given.gir"
    assert graphopt("bisect", net, "-p", "dce,double,cse", "-o", path).code == 1
    assert "%unused" not in path.read_text()
    assert "%right" in path.read_text()
    assert graphopt("bisect", path, "-p", "double").code == 1


def test_needs_shapes(graphopt, net_json):
    ran = graphopt("bisect", net_json, "-p", "dce")
    assert ran.code == 2
    assert "--shape data:" in ran.err
