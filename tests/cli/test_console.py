"""Tables, JSON, colours and progress bars."""

from __future__ import annotations

import io
import json
import math
import time

import pytest

from graphopt.cli import progress as progress_module
from graphopt.cli.console import Table, is_rich, paint, say_json
from graphopt.cli.progress import progress

TABLE = Table(("name", ">count"), [("a long name " * 12, "7"), ("b [red]", "12345")])


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_table_is_never_cut(capsys):
    TABLE.show()
    out = capsys.readouterr().out
    assert out == (
        f"name{' ' * 140}  count\n{'a long name ' * 12}      7\nb [red]{' ' * 137}  12345\n"
    )


def test_table_on_a_terminal(terminal, net):
    argv = ("inspect", net, "-p", "dce", "--no-run")
    assert "\x1b[32mchanged" in terminal(*argv)
    assert "\x1b" not in terminal(*argv, NO_COLOR="1")


def test_cells_are_no_markup(monkeypatch):
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", stream)
    TABLE.show()
    assert "b [red]" in stream.getvalue()


def test_a_narrow_terminal_does_without_spare_columns(monkeypatch):
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stdout", stream)
    columns, row = ("name", ">one", ">two"), ("a name of some length", "11111", "22222")
    Table(columns, [row], spare=(">one", ">two")).show()
    assert "22222" in stream.getvalue()
    assert "11111" not in stream.getvalue()
    assert "a wider terminal shows one too" in stream.getvalue()


@pytest.mark.parametrize(
    ("env", "rich"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)]
)
def test_colours(monkeypatch, env, rich):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    assert is_rich(Terminal()) is rich
    assert not is_rich(io.StringIO())
    assert not is_rich(None)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_rich(Terminal())


def test_paint_off_a_terminal():
    assert paint("text", "red") == "text"


def test_json_has_no_nan(capsys):
    say_json({"a": math.nan, "b": [math.inf, 1.5], 3: (True, None)})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5], "3": [True, None]}


def test_no_bar_off_a_terminal(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress_module, "PATIENCE_S", 0.0)
    with progress(2, "work") as step:
        step("one")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(("patience", "drawn"), [(0.0, True), (60.0, False)])
def test_bar_on_a_terminal_after_a_while(monkeypatch, patience, drawn):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(progress_module, "PATIENCE_S", patience)
    with progress(2, "work") as step:
        time.sleep(0.05)
        step("one")
        time.sleep(0.15)
    assert ("work" in stream.getvalue()) is drawn
