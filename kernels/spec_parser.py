"""The text of a KernelSpec, read back."""

from __future__ import annotations

import re
from functools import lru_cache

from graphopt.errors import ParseError
from graphopt.ir.types import DTYPES
from graphopt.kernels.spec import LETTERS, Arg, Instruction, KernelSpec, Operand, Result

_LONG = {short: name for name, (short, _, _) in DTYPES.items()}
_HEAD = re.compile(r"\s*(precise\s+)?(\w+)\[([a-z,|]*)\]\s*\((.*?)\)\s*\{(.*)\}\s*", re.DOTALL)
_OPERAND = re.compile(r"(\w+)\[([a-z1,]*)\]")
_STEP = re.compile(r"%(\d+)\s*=\s*(\w+)((?:\s+\S+)*)")


@lru_cache(maxsize=4096)
def parse(text: str) -> KernelSpec:
    """The inverse of ``str(spec)``.

    Raises:
        ParseError: the text is no spec; the message names the part.
    """
    head = _HEAD.fullmatch(text)
    if head is None or head[2] not in _LONG:
        raise ParseError(f"{_short(text)!r} is no kernel spec")
    counts = [len(_letters(part)) for part in head[3].split("|")]
    if len(counts) > 3:
        raise ParseError(f"{_short(text)!r} has more than two bars")
    outer, inner, columns = (*counts, 0, 0)[:3]
    inputs = tuple(_operand(part) for part in re.findall(r"\w+\[[^\]]*\]", head[4]))
    *steps, last = [part.strip() for part in head[5].split(";")]
    body = []
    for number, step in enumerate(steps, len(inputs)):
        match = _STEP.fullmatch(step)
        if match is None or int(match[1]) != number:
            raise ParseError(f"{step!r} is no instruction of a kernel")
        body.append(Instruction(match[2], tuple(map(_arg, match[3].split()))))
    if not last.startswith("return"):
        raise ParseError(f"a kernel spec ends with its outputs, not {last!r}")
    returned = re.findall(r"%(\d+):(\w+\[[^\]]*\])", last)
    outputs = tuple(Result(int(value), _operand(operand)) for value, operand in returned)
    return KernelSpec(
        _LONG[head[2]],
        outer + inner + columns,
        inner,
        inputs,
        tuple(body),
        outputs,
        precise=bool(head[1]),
        columns=columns,
    )


def _letters(text: str) -> list[str]:
    return [letter for letter in text.split(",") if letter]


def _operand(text: str) -> Operand:
    match = _OPERAND.fullmatch(text.strip())
    if match is None or match[1] not in _LONG:
        raise ParseError(f"{text!r} is no operand of a kernel")
    parts = _letters(match[2])
    return Operand(_LONG[match[1]], tuple(None if p == "1" else LETTERS.index(p) for p in parts))


def _arg(text: str) -> Arg:
    try:
        return int(text[1:]) if text.startswith("%") else float(text)
    except ValueError:
        raise ParseError(f"{text!r} is neither a value nor a number") from None


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
