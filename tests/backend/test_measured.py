from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphopt.backend import measured
from graphopt.backend.candidates import Candidates
from graphopt.backend.choice import CACHED_OP
from graphopt.backend.choosing import key_of
from graphopt.backend.infer import with_types
from graphopt.backend.lower import lower
from graphopt.errors import GraphoptError
from graphopt.ir.parser import parse
from graphopt.kernels import cache


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "ENABLED", True)
    return tmp_path


def test_measured_once(kept: Path) -> None:
    made = []

    def measure() -> list[float]:
        made.append(1)
        return [1.5, 2.5]

    assert measured.once(("a", "b"), measure) == [1.5, 2.5]
    assert measured.once(("a", "b"), measure) == [1.5, 2.5]
    assert measured.once(("a", "c"), measure) == [1.5, 2.5]
    assert len(made) == 2
    cache.clear()
    measured.once(("a", "b"), measure)
    assert len(made) == 3


def test_threads_are_part_of_it(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured.remember(("a",), 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    assert measured.remembered(("a",)) is None


def test_a_damaged_entry_is_forgotten(kept: Path) -> None:
    measured.remember(("a",), 1)
    (file,) = (kept / "measurements").glob("*.json")
    file.write_bytes(b"nonsense")
    assert measured.remembered(("a",)) is None


def test_engines_are_measured_once(kept: Path) -> None:
    graph = with_types(
        parse(
            "graph g(%x: f32[8,4]) { %a = tanh(%x) %b = dot(%a, %x) {transpose_b=True} return %b }"
        )
    )
    x = np.ones((8, 4), "float32")
    first = lower(graph)
    want = first(x)[0].asnumpy()
    assert len(first.choice.measured_ms) > 1
    assert not first.choice.is_remembered
    again = lower(graph)
    np.testing.assert_array_equal(again(x)[0].asnumpy(), want)
    assert again.choice.is_remembered
    assert again.choice.engine == first.choice.engine
    assert again.choice.measured_ms == first.choice.measured_ms


def test_an_engine_that_is_gone_is_measured_anew(kept: Path) -> None:
    graph = with_types(parse("graph g(%x: f32[8,4]) { %a = tanh(%x) return %a }"))
    lowered = lower(graph)
    form = lowered.form
    names = Candidates(form, {}, lowered.choice).by_name({})
    measured.remember(key_of(form, names), {"engine": "steam", "measured_ms": {}})
    lowered(np.ones((8, 4), "float32"))
    assert not lowered.choice.is_remembered
    assert CACHED_OP in lowered.choice.measured_ms


def test_an_engine_that_was_chosen_is_taken_whatever_the_others_took(kept: Path) -> None:
    """Others may have been as fast as that, and not sure to compute the same."""
    graph = with_types(parse("graph g(%x: f32[8,4]) { %a = tanh(%x) return %a }"))
    lowered = lower(graph)
    names = list(Candidates(lowered.form, {}, lowered.choice).by_name({}))
    times = {name: 1.0 if name == CACHED_OP else 0.99 for name in names}
    measured.remember(
        key_of(lowered.form, names), {"engine": CACHED_OP, "measured_ms": times, "failed": {}}
    )
    lowered(np.ones((8, 4), "float32"))
    assert lowered.choice.is_remembered
    assert lowered.choice.engine == CACHED_OP
    assert lowered.choice.measured_ms == times


def test_why_engines_failed_is_kept(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_self: object, _symbol: object, name: str) -> None:
        raise GraphoptError(f"no {name} today")

    graph = with_types(parse("graph g(%x: f32[8,4]) { %a = tanh(%x) return %a }"))
    x = np.ones((8, 4), "float32")
    with monkeypatch.context() as patched:
        patched.setattr(Candidates, "_cached_op", broken)
        first = lower(graph)
        first(x)
    assert first.choice.failed[CACHED_OP] == f"no {CACHED_OP} today"
    again = lower(graph)
    again(x)
    assert again.choice.is_remembered
    assert again.choice.failed == first.choice.failed
