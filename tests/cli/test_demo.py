"""``graphopt demo``: the verb hands over to :mod:`graphopt.demo`."""

from __future__ import annotations

import sys
import types

import pytest


@pytest.mark.parametrize("status", [0, 1])
def test_options_and_status_are_passed_on(graphopt, monkeypatch, status):
    seen = []

    def run_demo(*, quick: bool, json: bool) -> int:
        seen.append((quick, json))
        return status

    module = types.ModuleType("graphopt.demo.main")
    module.run_demo = run_demo
    monkeypatch.setitem(sys.modules, "graphopt.demo.main", module)
    assert graphopt("demo", "--quick", "--json") == (status, "", "")
    assert graphopt("demo").code == status
    assert seen == [(True, True), (False, False)]
