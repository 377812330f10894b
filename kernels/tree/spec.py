"""TreeSpec: a step of message passing from children to parents, as a value that prints and parses.

Along every edge a *message* is computed, from rows that belong to the parent (``x``) and from the
states of the child. The messages that reach a node are *reduced*, and the *update* computes the
node's states, and what else it emits, from rows that belong to the node and from what was reduced.
Message and update are :class:`~graphopt.kernels.recurrence.spec.RecurrenceSpec` without states:
their sequences are the rows named above, in this order. Child-sum Tree-LSTM::

    tree (150, 150) (sum, sum) ;;;
    recurrence f32 (150, 150, 150) () (150x150) (150) ;; ... ;; next ;; emit x1, t1 ;;;
    recurrence f32 (150, 150, 150, 150, 150) () (450x150) (450) ;; ... ;; next ;; emit t2, t1

Trees, nodes and edges are not part of the spec. Gilmer et al., Neural Message Passing for Quantum
Chemistry (2017), has the terms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from graphopt.errors import ParseError
from graphopt.kernels.recurrence.spec import RecurrenceSpec
from graphopt.kernels.recurrence.spec import parse as parse_rows

#: How messages become one row; kernels/bridge/tree.h has the same list. No message gives zeros.
#: With ``concat2`` those of at most two children lie side by side, in the order of edges.
REDUCTIONS = ("sum", "mean", "max", "concat")
_REDUCTION = re.compile(r"(sum|mean|max|concat(?=[1-9]))([0-9]*)")


def reduction(name: str) -> tuple[str, int]:
    """Which of the reductions, and how many times as wide as a message its result is.

    Raises:
        ParseError: it is none.
    """
    match = _REDUCTION.fullmatch(name)
    if match is None or bool(match[2]) != (match[1] == "concat"):
        raise ParseError(f"{name!r} is none of sum, mean, max, concat2, concat3 ...")
    return match[1], int(match[2] or 1)


@dataclass(frozen=True)
class TreeSpec:
    """What is computed along edges and at nodes.

    Attributes:
        states: columns of each state of a node; what the update emits first.
        reduce: of each message, how those that reach a node are put together.
        message: per edge.
        update: per node.
    """

    states: tuple[int, ...]
    reduce: tuple[str, ...]
    message: RecurrenceSpec
    update: RecurrenceSpec

    def __post_init__(self) -> None:
        """Check that the parts fit.

        Raises:
            ParseError: they do not; the message names the part.
        """
        _check(self)

    @property
    def dtype(self) -> str:
        """Of everything."""
        return self.update.dtype

    @property
    def messages(self) -> tuple[int, ...]:
        """Columns of each message."""
        return tuple(ref.width for ref in self.message.emit)

    @property
    def reduced(self) -> tuple[int, ...]:
        """Columns of what the messages that reach a node are put together to."""
        pairs = zip(self.messages, self.reduce, strict=True)
        return tuple(width * reduction(name)[1] for width, name in pairs)

    @property
    def edge_rows(self) -> tuple[int, ...]:
        """Columns of the rows of a node that messages to it read."""
        return self.message.sequences[: len(self.message.sequences) - len(self.states)]

    @property
    def node_rows(self) -> tuple[int, ...]:
        """Columns of the rows of a node that its update reads."""
        return self.update.sequences[: len(self.update.sequences) - len(self.reduce)]

    @property
    def emitted(self) -> tuple[int, ...]:
        """Columns of what the update emits, states first."""
        return tuple(ref.width for ref in self.update.emit)

    def __str__(self) -> str:
        """The text form; :func:`parse` reads it."""
        states, reduce = ", ".join(map(str, self.states)), ", ".join(self.reduce)
        return f"tree ({states}) ({reduce}) ;;; {self.message} ;;; {self.update}"


def _check(spec: TreeSpec) -> None:
    for name, rows in (("message", spec.message), ("update", spec.update)):
        if rows.states:
            raise ParseError(f"the {name} of a tree has no states of its own")
    if spec.message.dtype != spec.update.dtype:
        raise ParseError(
            f"a message in {spec.message.dtype} cannot reach an update in {spec.update.dtype}"
        )
    if not spec.states or not spec.reduce:
        raise ParseError("a tree has at least one state and one message")
    if len(spec.reduce) != len(spec.message.emit):
        raise ParseError(f"{len(spec.message.emit)} messages for {len(spec.reduce)} reductions")
    read = spec.message.sequences[len(spec.edge_rows) :]
    made = spec.emitted[: len(spec.states)]
    if not read == made == spec.states:
        raise ParseError(f"states of {spec.states} columns, but {made} made and {read} read")
    if spec.update.sequences[len(spec.node_rows) :] != spec.reduced:
        raise ParseError(f"the update of a tree does not read messages of {spec.reduced} columns")


_HEAD = re.compile(r"tree \(([^)]*)\) \(([^)]*)\)")


@lru_cache(maxsize=256)
def parse(text: str) -> TreeSpec:
    """The inverse of ``str(spec)``.

    Raises:
        ParseError: the text is no spec; the message names the part.
    """
    head, *parts = (part.strip() for part in text.split(";;;"))
    match = _HEAD.fullmatch(head)
    if match is None or len(parts) != 2:
        raise ParseError(f"{text[:60]!r} is no tree")
    states, reduce = (
        [p.strip() for p in group.split(",") if p.strip()] for group in match.groups()
    )
    if not all(width.isdigit() for width in states):
        raise ParseError(f"{text[:60]!r} is no tree: states have columns")
    message, update = map(parse_rows, parts)
    return TreeSpec(tuple(map(int, states)), tuple(reduce), message, update)
