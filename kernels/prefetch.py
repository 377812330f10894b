"""Prefetches in loops that LLVM has vectorised: of what they read and write soon.

A processor fetches streams by itself, but only within a page, and twenty instructions an element
fill its window before it has asked for enough: computing and loading take turns then. LLVM
vectorises no loop that prefetches, so this is done to its result.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

#: Bytes ahead of an access: of one stream, and of all together, which share a level-1 cache.
_AHEAD, _AHEAD_TOGETHER = 3072, 16384
_LINE_BYTES = 64

_BLOCK = re.compile(r"^([\w.$-]+):")
_ACCESS = re.compile(
    r"^  (?:%[\w.]+ = )?(load|store) <(\d+) x (half|float|double|i\d+)>.*?, ptr (%[\w.]+), "
    r".*!alias\.scope !(\d+)"
)
#: The only scope of an access, and the number of the operand that a scope stands for.
_SCOPES = re.compile(r"^!(\d+) = !\{!(\d+)\}$", re.MULTILINE)
_OPERAND = re.compile(r'^!(\d+) = !\{!"graphopt\.(\d+)",', re.MULTILINE)
_BITS = {"half": 16, "float": 32, "double": 64}
_PREFETCH = "void @llvm.prefetch.p0(ptr"


def with_prefetches(text: str, streams: Collection[int]) -> str:
    """LLVM IR with prefetches in front of accesses to some operands in vectorised loops.

    Args:
        text: optimised, with an alias scope for each operand (:mod:`graphopt.kernels.cpu`).
        streams: numbers of the operands that are walked once; others stay in the cache.
    """
    if not streams:
        return text
    ahead = min(_AHEAD, _AHEAD_TOGETHER // len(streams)) // _LINE_BYTES * _LINE_BYTES
    operands = {scope: int(number) for scope, number in _OPERAND.findall(text)}
    wanted = {scopes for scopes, scope in _SCOPES.findall(text) if operands.get(scope) in streams}
    lines: list[str] = []
    nbytes: Counter[str] = Counter()  # that the loop has accessed of each operand
    is_vector, count = False, 0
    for line in text.split("\n"):
        if block := _BLOCK.match(line):
            is_vector = block[1].startswith("vector.body")
            nbytes.clear()
        access = _ACCESS.match(line) if is_vector else None
        if access and access[5] in wanted:
            kind, width, element, address, scopes = access.groups()
            if nbytes[scopes] % _LINE_BYTES == 0:
                place = f"%graphopt.ahead.{count}"
                lines.append(f"  {place} = getelementptr i8, ptr {address}, i64 {ahead}")
                lines.append(
                    f"  call {_PREFETCH} {place}, i32 {int(kind == 'store')}, i32 3, i32 1)"
                )
                count += 1
            nbytes[scopes] += int(width) * (_BITS.get(element) or int(element[1:])) // 8
        lines.append(line)
    if count and f"declare {_PREFETCH}" not in text:
        lines.append(f"declare {_PREFETCH}, i32 immarg, i32 immarg, i32 immarg)\n")
    return "\n".join(lines)
