"""What was measured for some sizes of a graph lasts, for others to go by."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphopt.backend import known_sizes, measured
from graphopt.backend.findings import Findings
from graphopt.backend.known_sizes import recall, record
from graphopt.ir.fingerprint import fingerprint_of_any_size
from graphopt.ir.parser import parse

KEY = ("graph", "inference")
PLACE = ("dense", "node")


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "ENABLED", True)
    return tmp_path


def measured_for(rows: int, found: object = 1) -> Findings:
    made = Findings([(rows, 3), (rows,)])
    made.note(PLACE, found)
    made.seconds = 0.5
    return made


def test_they_come_back_as_they_were() -> None:
    assert recall(KEY) == []
    record(KEY, measured_for(4, {"direct": 1.5}))
    (found,) = recall(KEY)
    assert (found.shapes, found.earlier_s) == ([(4, 3), (4,)], 0.5)
    assert Findings([(3, 3), (3,)], [found]).taken(PLACE) == {"direct": 1.5}
    assert recall(("another graph", "inference")) == []


def test_the_latest_sizes_are_kept() -> None:
    for rows in range(known_sizes._MOST + 2):
        record(KEY, measured_for(rows))
    record(KEY, measured_for(5, 2))
    found = recall(KEY)
    assert len(found) == known_sizes._MOST
    assert [each.shapes[1] for each in found] == [(2,), (3,), (4,), (6,), (7,), (8,), (9,), (5,)]
    assert Findings([(5, 3), (5,)], found).taken(PLACE) == 2


def test_only_what_was_measured_is_kept() -> None:
    record(KEY, Findings([(4, 3)]))
    record(KEY, Findings([(3, 3), (3,)], [measured_for(4)]))
    assert recall(KEY) == []


def test_a_damaged_file_is_nothing(kept: Path) -> None:
    record(KEY, measured_for(4))
    (file,) = (kept / "measurements").glob("*.json")
    file.write_bytes(b"nonsense")
    assert recall(KEY) == []


def key_of(x: str, w: str = "f32[5,4]", op: str = "relu") -> str:
    dense = "%a = FullyConnected(%x, %w) {no_bias=True, num_hidden=5}"
    return fingerprint_of_any_size(
        parse(f"graph g(%x: {x}, param %w: {w}) {{ {dense} %b = {op}(%a) return %b }}")
    )


def test_graphs_are_the_same_at_any_size_of_their_data() -> None:
    assert key_of("f32[2,4]") == key_of("f32[3,4]") == key_of("f32[2,9]")
    others = {key_of("f32[2,4,1]"), key_of("f64[2,4]"), key_of("f32[2,4]", w="f32[5,9]")}
    others |= {key_of("f32[2,4]", op="tanh"), key_of("?")}
    assert len(others) == 5
    assert key_of("f32[2,4]") not in others
