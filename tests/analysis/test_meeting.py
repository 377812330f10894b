"""What holds for two sizes of data, and not for data that are far longer."""

from __future__ import annotations

import pytest

from graphopt.analysis.meeting import meet_here, meet_nearby
from graphopt.backend.infer import with_types
from graphopt.ir.graph import Graph
from graphopt.ir.parser import parse


def graph(rows: int, nodes: str) -> Graph:
    return with_types(parse(f"graph g(%x: f32[{rows},4]) {{\n{nodes}\nreturn %y\n}}"))


def _parted(first: int, end: int | None) -> str:
    return (
        f"%a = slice(%x) {{begin=(0,), end=({first},)}}\n"
        f"%b = slice(%x) {{begin=({first},), end=({end},)}}\n"
        "%y = Concat(%a, %b) {dim=0, num_args=2}"
    )


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("%y = slice(%x) {begin=(0,), end=(10,)}", True),
        ("%y = slice(%x) {begin=(0, 0), end=(None, 4)}", False),
        ("%y = slice(%x) {begin=(0,), end=(7,)}", False),  # as the second one tells
        ("%y = Reshape(%x) {shape=(-1, 4)}", False),
        ("%p = slice(%x) {begin=(6,), end=(None,)}\n%y = sum(%p) {axis=(0,)}", False),
        ("%p = slice(%x) {begin=(0,), end=(None,), step=(9,)}\n%y = sum(%p) {axis=(0,)}", True),
        ("%p = slice(%x) {begin=(0,), end=(None,), step=(9,)}\n%y = squeeze(%p)", True),
        ("%p = slice(%x) {begin=(0,), end=(None,), step=(9,)}\n%y = relu(%p)", False),
        (_parted(4, 10), True),
        (_parted(4, None), False),
        (_parted(4, 10).replace("%y", "%p") + "\n%y = relu(%p)", True),
    ],
)
def test_meeting_nearby(nodes: str, expected: bool) -> None:
    assert meet_nearby(*(graph(rows, nodes) for rows in (7, 8, 100))) is expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("%y = broadcast_add(%x, %z)", True),
        ("%y = broadcast_like(%x, %z)", True),
        ("%y = broadcast_add(%x, %one)", False),
        ("%y = broadcast_mul(%z, %one)", False),
    ],
)
def test_meeting_here(nodes: str, expected: bool) -> None:
    def of(rows: int) -> Graph:
        inputs = f"%x: f32[{rows},4], %z: f32[7,4], %one: f32[1,4]"
        return with_types(parse(f"graph g({inputs}) {{\n{nodes}\nreturn %y\n}}"))

    assert meet_here(of(7), of(1)) is expected
