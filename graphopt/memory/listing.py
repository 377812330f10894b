"""Reading what ``Executor.debug_str()`` prints."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from graphopt.errors import ParseError

#: An output of a node, by the node's name: what the listing has for an edge.
Read = tuple[str, int]

_OUTPUT = re.compile(r"\toutput\[\d+\]=(.*)\((\d+)\)")
_INPUT = re.compile(r"\targ\[\d+\]=(.*)\((\d+)\)(?: version=\d+)?")
_AFTER = re.compile(r"\tcdep\[\d+\]=(.*)")
_ATTR = re.compile(r"\t(\w+)=(.*)")
_TOTAL = re.compile(r"Total (\d+) MB allocated")
_REPEATED = re.compile(r"^Op:\S+, Name=(.+)_mirror$", re.MULTILINE)
_RULE = "-" * 20
_SECTIONS = ("Symbol Outputs:", "Inputs:", "Attrs:", "Control deps:")


@dataclass
class Line:
    """One operator of the listing."""

    op: str
    name: str
    inputs: list[Read] = field(default_factory=list)
    attrs: dict[str, str] = field(default_factory=dict)
    after: list[str] = field(default_factory=list)


@dataclass
class Listing:
    """The operators in execution order, the graph's outputs, and the sum at the end."""

    outputs: list[Read] = field(default_factory=list)
    variables: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    megabytes: int = 0


def allocated(text: str) -> int:
    """MiB, rounded down, that MXNet planned for what is computed.

    Raises:
        ParseError: the text does not say it.
    """
    total = _TOTAL.search(text)
    if total is None:
        raise ParseError("the executor's listing does not say what it allocated")
    return int(total[1])


def repeated(text: str) -> frozenset[str]:
    """Names of the nodes that are computed again in backward, without parsing all."""
    return frozenset(_REPEATED.findall(text))


def parse(text: str) -> Listing:
    """Parse; linear.

    Raises:
        ParseError: the text is no such listing.
    """
    found = Listing()
    section = key = ""
    for row in text.split("\n"):
        if row in _SECTIONS:
            section = row
        elif section == "Symbol Outputs:" and (match := _OUTPUT.fullmatch(row)):
            found.outputs.append((match[1], int(match[2])))
        elif section == "Inputs:" and (match := _INPUT.fullmatch(row)):
            found.lines[-1].inputs.append((match[1], int(match[2])))
        elif section == "Control deps:" and (match := _AFTER.fullmatch(row)):
            found.lines[-1].after.append(match[1])
        elif section == "Attrs:" and (match := _ATTR.fullmatch(row)):
            key = match[1]
            found.lines[-1].attrs[key] = match[2]
        elif row.startswith("Variable:"):
            found.variables.append(row.removeprefix("Variable:"))
        elif row.startswith("Op:"):
            op, comma, name = row.removeprefix("Op:").partition(", Name=")
            if not comma:
                raise ParseError(f"the executor's listing has an operator without a name: {row!r}")
            found.lines.append(Line(op, name))
            key = ""
        elif total := _TOTAL.match(row):
            found.megabytes = int(total[1])
            key = ""  # what follows belongs to no operator
        elif section == "Attrs:" and key and row != _RULE:
            found.lines[-1].attrs[key] += f"\n{row}"  # a value of several lines
    if not found.outputs:
        raise ParseError("the executor's listing names no outputs")
    return found
