"""Prefetches in vectorised loops: where LLVM's text has them, and that they are compiled."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import pytest

from graphopt.kernels import cpu
from graphopt.kernels.emit.cpu import emit_cpu
from graphopt.kernels.expand import collapse, expand
from graphopt.kernels.machine import target_machine
from graphopt.kernels.prefetch import with_prefetches
from graphopt.kernels.spec_parser import parse

TEXT = """define void @kernel(ptr %a, ptr %b) {
entry:
  %first = load <4 x float>, ptr %a, align 4, !alias.scope !0
  br label %vector.body
vector.body:                                      ; preds = %entry
  %1 = load <4 x float>, ptr %a, align 4, !alias.scope !0, !noalias !3
  %2 = load <4 x float>, ptr %p2, align 4, !alias.scope !0, !noalias !3
  %3 = load <16 x float>, ptr %w, align 4, !alias.scope !7, !noalias !3
  store <16 x float> zeroinitializer, ptr %b, align 4, !alias.scope !4, !noalias !0
  br label %vec.epilog.vector.body
vec.epilog.vector.body:
  store <16 x float> %3, ptr %b, align 4, !alias.scope !4, !noalias !0
  ret void
}
!0 = !{!1}
!1 = !{!"graphopt.0", !2}
!2 = !{!"graphopt"}
!3 = !{!5, !8}
!4 = !{!5}
!5 = !{!"graphopt.2", !2}
!7 = !{!8}
!8 = !{!"graphopt.1", !2}
"""


def prefetches(text: str) -> list[list[str]]:
    """The address of each and whether it is for writing, with what comes before."""
    lines = [line.split() for line in text.split("\n")]
    return [
        [*lines[at - 1][2:], line[5]]
        for at, line in enumerate(lines)
        if line[4:5] and "graphopt.ahead" in line[3]
    ]


def test_streams_are_fetched_once_a_line_in_vector_loops() -> None:
    found = with_prefetches(TEXT, {0, 2})
    assert prefetches(found) == [
        ["getelementptr", "i8,", "ptr", "%a,", "i64", "3072", "0,"],
        ["getelementptr", "i8,", "ptr", "%b,", "i64", "3072", "1,"],
    ]
    assert found.count("declare void @llvm.prefetch.p0") == 1


def test_many_streams_share_the_cache() -> None:
    (first, _) = prefetches(with_prefetches(TEXT, {0, 2, *range(3, 17)}))
    assert first[5] == "1024"


def test_nothing_is_fetched_without_streams() -> None:
    assert with_prefetches(TEXT, ()) == TEXT


ROW = "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = exp %2; return %3:f32[a,b] }"
SOFTMAX = "f32[a|b] (f32[a,b]) { %1 = softmax %0; return %1:f32[a,b] }"


@pytest.mark.parametrize("text", [ROW, SOFTMAX], ids=["row", "softmax"])
def test_kernels_have_them(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's text is read by patterns, so this tells if it changes."""
    seen: dict[str, Any] = {}

    def look(text: str, streams: Any) -> str:
        seen.update(streams=streams, text=with_prefetches(text, streams))
        return str(seen["text"])

    monkeypatch.setattr(cpu, "with_prefetches", look)
    spec = collapse(expand(parse(text))).spec
    cpu.compile_object(spec)
    assert seen["streams"] == ({0, 2} if text == ROW else {0, 1})
    writes = {line[-1] for line in prefetches(seen["text"])}
    assert writes == {"0,", "1,"}
    made = target_machine().emit_assembly(llvm.parse_assembly(seen["text"]))
    plain, _ = emit_cpu(spec)
    assert "prefetch" not in plain
    assert "prefetch" in made or "prfm" in made


def test_rows_with_numbers_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "with_prefetches", None)
    cpu.compile_object(collapse(expand(parse(ROW))).spec, index=True)
