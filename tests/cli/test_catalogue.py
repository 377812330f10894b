"""``graphopt passes``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from graphopt.cli.catalogue import catalogue
from graphopt.cli.docstrings import parse_docstring
from graphopt.ir.parser import parse
from graphopt.passes import registry

ROOT = Path(__file__).resolve().parents[2]


def test_list(graphopt):
    ran = graphopt("passes")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0].split("  ")[0] == "pass"
    assert [line.split()[0] for line in lines[1 : 1 + len(registry.passes)]] == [*registry.passes]
    for name in registry.pipelines:
        assert re.search(rf"^{name} ", ran.out, re.MULTILINE)


@pytest.mark.parametrize("name", registry.passes)
def test_every_pass_is_documented(graphopt, name):
    ran = graphopt("passes", name)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[:2] == [name, "=" * len(name)]
    assert lines[3].endswith(".")
    assert "Example::" in ran.out


def test_every_option_is_documented():
    missing = [
        f"{entry.name}.{option.name}"
        for entry in catalogue()
        for option in entry.options
        if not option.about
    ]
    assert missing == []


def test_alias(graphopt):
    assert graphopt("passes", "dce").out == graphopt("passes", "eliminate-dead-code").out


def test_json(graphopt):
    found = json.loads(graphopt("passes", "--json").out)
    assert [entry["name"] for entry in found["passes"]] == [*registry.passes]
    assert found["pipelines"] == registry.pipelines
    one = json.loads(graphopt("passes", "fold-constants", "--json").out)
    assert {"name": "max_bytes", "type": "int"}.items() <= one["options"][0].items()
    assert "default" in one["pipelines"]


def test_unknown(graphopt):
    message = (
        "graphopt passes: error: unknown pass 'fold-constant'; did you mean 'fold-constants'?\n"
    )
    assert graphopt("passes", "fold-constant") == (2, "", message)
    assert graphopt("passes", "dce", "--markdown").code == 2


def test_markdown_is_the_page_in_docs(graphopt):
    ran = graphopt("passes", "--markdown")
    assert ran.out == (ROOT / "docs" / "passes.md").read_text(), "run `make docs`"


def test_docstring_in_parts():
    doc = parse_docstring(
        "It is\nso.\n\nMore of it.\n\n"
        "Attributes:\n    size: how\n        big.\n    deep: how deep.\n\n"
        "Example::\n\n    // before\n"
    )
    assert doc.summary == "It is so."
    assert doc.attributes == {"size": "how big.", "deep": "how deep."}
    assert doc.blocks == ("More of it.", "Example::", "    // before")


def test_graphs_in_docstrings_are_well_formed():
    for entry in catalogue():
        text = entry.doc.text
        for start in re.finditer(r"^ {4}graph .*?^ {4}\}", text, re.DOTALL | re.MULTILINE):
            parse(start[0])
