"""From the executor's listing, which has names only, to steps and entries.

MXNet calls all sums of gradients alike (``sum_grad``, ``sum_grad_1`` ...). What a read of one means
follows from the structure: the terms of a sum say whose gradient it is, and a step of backward
reads the gradients of its forward node's outputs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from graphopt.errors import UnsupportedError
from graphopt.ir.node import CONSTANT, Node, Value
from graphopt.ir.ops import Gradient, Kind, info
from graphopt.memory.binding import Bound, infer
from graphopt.memory.listing import Line, Read
from graphopt.memory.training import Entry, Phase, Step, TrainingGraph, Type

#: Gradients whose outputs are not one per argument: the forward inputs they are gradients of.
_FOR_INPUTS: dict[str, tuple[int, ...]] = {
    "_backward_where": (1, 2),
    "_backward_gather_nd": (0,),
    "_backward_pick": (0,),
    "_backward_copy": (0,),
}
_SUMS = ("add_n", "_grad_add", "elemwise_add")
_HEAD = "_head_grad_"
#: Stands for the type of zeros until their first reader tells it.
_ZEROS = Type((0,), "float32")
#: How far the terms of a sum are followed through additions, which hand their gradient on.
_FAR = 64


class Resolver:
    """Makes the training graph of one listing."""

    def __init__(self, bound: Bound) -> None:
        """Prepare; :meth:`graph` does the work."""
        self._bound = bound
        self._graph = bound.graph
        self._number = {node.id: name for name, node in bound.numbered.items()}
        self._prefix = re.compile("|".join({re.sub(r"\d+$", r"\\d+", n) for n in bound.numbered}))
        self._shown = _unique_names(bound)
        self._consumers: dict[Value, list[Node]] = {}
        for node in bound.graph:
            for value in node.inputs:
                self._consumers.setdefault(value, []).append(node)
        lines = bound.listing.lines
        self._count = Counter(line.name for line in lines)
        phases = [self._phase(line) for line in lines]
        self._differentiated = {of for phase, of in phases if phase == "backward"}
        self._used: dict[str, int] = {}
        for name, output in (*bound.listing.outputs, *(r for line in lines for r in line.inputs)):
            self._used[name] = max(self._used.get(name, 0), output)

        self._variables = dict(bound.variables)
        self._steps: list[Step] = []
        self._by_name: dict[str, list[int]] = {}
        self._unclaimed: list[int] = []
        self._owner: dict[int, Value] = {}
        self._sums: dict[tuple[Value, str], int] = {}
        self._owning: set[Value] = set()
        self._handers: dict[Value, list[Node]] = {}
        self._guessed = 0

    def graph(self) -> TrainingGraph:
        """The training graph. Near-linear."""
        bound, heads = self._bound, len(self._graph.outputs)
        for name in bound.listing.variables:
            if name not in self._variables:  # the gradient of an output
                number = name.removeprefix(_HEAD)
                if not number.isdigit() or int(number) >= heads:
                    raise UnsupportedError(f"MXNet's executor has a variable {name!r} of its own")
                self._variables[name] = self._type(self._graph.outputs[int(number)])
        for line in bound.listing.lines:
            self._add(line)
        listed = bound.listing.outputs
        outputs = [self._entry(read, lambda: ()) for read in listed[:heads]]
        values = {node.name: node.out() for node in self._graph.inputs}
        gradients: dict[str, Entry] = {}
        unread: dict[str, list[int]] = {}
        for step in self._unclaimed:
            unread.setdefault(bound.listing.lines[step].name, []).append(step)
        for name, read in zip(bound.gradients, listed[heads:], strict=True):
            # They stand in the order in which they were made.
            fresh = unread.get(read[0], [])
            gradients[name] = self._entry(read, lambda n=name: (values[n],), fresh)  # type: ignore[misc]
            if gradients[name].step in fresh:
                fresh.remove(gradients[name].step)
        return TrainingGraph(
            tuple(self._steps),
            self._variables,
            tuple(outputs),
            gradients,
            bound.listing.megabytes << 20,
            self._guessed,
        )

    # -- one step --------------------------------------------------------------------------

    def _add(self, line: Line) -> None:
        phase, of = self._phase(line)
        node = self._bound.numbered.get(of)
        is_sum = phase == "backward" and node is None and line.op in _SUMS
        owner = self._find_owner(line) if is_sum else None
        inputs = self._terms(line, owner) if is_sum else self._reads(line, node)
        after = [self._by_name[name][-1] for name in line.after if name in self._by_name]
        number = len(self._steps)
        self._steps.append(
            Step(
                self._shown.get(of, "") + line.name.removeprefix(of),
                line.op,
                phase,
                self._shown.get(of, ""),
                (node.origin[0] if node.origin else node.name) if node else "",
                inputs,
                self._types(line, phase, of, inputs),
                tuple(after),
                line.attrs,
            )
        )
        read = {entry.step for entry in inputs}
        while self._unclaimed and self._unclaimed[-1] in read:
            self._unclaimed.pop()
        self._by_name.setdefault(line.name, []).append(number)
        self._unclaimed.append(number)
        if owner is None and node is None and inputs:
            owner = self._owner.get(inputs[0].step)  # a copy of a sum is as good as the sum
        if owner is not None:
            self._owner[number] = owner
            self._owning.add(owner)
            self._sums[owner, line.name] = number

    def _phase(self, line: Line) -> tuple[Phase, str]:
        """What kind of step it is, and the numbered name of the forward node it belongs to."""
        if line.name in self._bound.numbered:
            return "forward", line.name
        match = self._prefix.match(line.name)
        of = match[0] if match and match[0] in self._bound.numbered else ""
        is_again = of and line.name in (f"{of}_mirror", f"{of}_again")
        if is_again and line.op == self._bound.numbered[of].op:
            return "recompute", of
        return "backward", of

    def _types(
        self, line: Line, phase: Phase, of: str, inputs: tuple[Entry, ...]
    ) -> tuple[Type, ...]:
        if phase == "forward" or line.name == f"{of}_mirror":
            return self._bound.outputs[of]
        read = tuple(self._type_of(entry) for entry in inputs)
        if line.op == "_identity_with_attr_like_rhs":
            return (read[1],)
        node = self._bound.numbered.get(of)
        if node is None or "backward" not in line.op:
            if read and (line.op in _SUMS or info(line.op).kind is Kind.ELEMENTWISE):
                return (read[0],)
            if not read and node is None:
                return (_ZEROS,)
            inferred = infer(line.op, line.attrs, read)
            if inferred is not None:
                return inferred
            if node is None:
                raise UnsupportedError(f"the types of {line.name!r} ({line.op}) are not known")
        # One output for each argument of the forward node, with its type.
        wanted = _FOR_INPUTS.get(line.op)
        values = node.inputs
        if wanted is not None:
            values = tuple(values[at] for at in wanted)
        elif node.inputs:
            values = tuple(v for v in values if self._graph[v.node].name not in self._bound.aux)
        types = [self._type(value) for value in values]
        while len(types) <= self._used.get(line.name, 0):
            types.append(types[-1] if types else _ZEROS)
        return tuple(types)

    def _type(self, value: Value) -> Type:
        """Type of a value of the forward graph."""
        node = self._graph[value.node]
        if node.is_input or node.op == CONSTANT:
            return self._variables[node.name]
        return self._bound.outputs[self._number[node.id]][value.index]

    def _type_of(self, entry: Entry) -> Type:
        if entry.step < 0:
            return self._variables[entry.variable]
        return self._steps[entry.step].outputs[entry.output]

    # -- which step a name means -----------------------------------------------------------

    def _entry(
        self, read: Read, wanted: Callable[[], Iterable[Value]], unread: Sequence[int] = ()
    ) -> Entry:
        """The entry that a read means.

        Args:
            read: what the listing says.
            wanted: the values whose gradient it may be, the likeliest first.
            unread: steps of that name that nothing has read yet, the likeliest first.
        """
        name, output = read
        if name in self._variables:
            return Entry(-1, 0, name)
        known = self._by_name.get(name)
        if not known:
            raise UnsupportedError(f"MXNet's executor lists {name!r} after a step that reads it")
        number = known[0] if len(known) == 1 else self._choose(name, known, tuple(wanted()), unread)
        step = self._steps[number]
        if step.outputs[output] is _ZEROS:
            for value in wanted():
                self._steps[number] = replace(step, outputs=(self._type(value),))
                break
        return Entry(number, output)

    def _reads(self, line: Line, node: Node | None) -> tuple[Entry, ...]:
        """What a step reads; the gradients of its node's outputs come first, in their order."""
        count = len(self._bound.outputs[self._number[node.id]]) if node is not None else 0
        outputs = [node.out(at) for at in range(count)] if node is not None else []
        # The listing is in depth-first order: what nothing has read yet lies on a stack, and what
        # this step is the first to read on its top, in the order in which it reads it.
        times = Counter(name for name, _ in line.inputs if self._count[name] > 1)
        top = self._unclaimed[-_FAR - len(line.inputs) :] if times else []
        lines = self._bound.listing.lines
        fresh = {name: [n for n in top if lines[n].name == name] for name in times}
        fresh = {name: steps[-times[name] :] for name, steps in fresh.items()}
        found = []
        for at, read in enumerate(line.inputs):
            unread = fresh.get(read[0], [])
            wanted = lambda at=at: (*outputs[at : at + 1], *outputs)  # noqa: E731
            found.append(self._entry(read, wanted, unread))
            if unread and unread[0] == found[-1].step:
                unread.pop(0)
        return tuple(found)

    def _terms(self, line: Line, owner: Value | None) -> tuple[Entry, ...]:
        """What a sum adds up: the sum so far, and what readers of the value hand on, each once."""
        if owner is None:
            return self._reads(line, None)
        values = [owner, *(self._handed_to(node.out()) for node in self._handing(owner))]
        found = []
        for name, output in line.inputs:
            matching = [value for value in values if (value, name) in self._sums]
            if self._count[name] > 1 and matching:
                values.remove(matching[0])
            found.append(self._entry((name, output), lambda m=matching: m[:1]))  # type: ignore[misc]
        return tuple(found)

    def _choose(
        self, name: str, known: list[int], wanted: tuple[Value, ...], unread: Sequence[int]
    ) -> int:
        for value in wanted:
            found = self._sums.get((self._handed_to(value), name))
            if found is not None:
                return found
        for number in unread:
            if self._fits(number, wanted):
                return number
        self._guessed += 1
        fitting = [number for number in known[-_FAR:] if self._fits(number, wanted)]
        return (fitting or known)[-1]

    def _fits(self, number: int, wanted: tuple[Value, ...]) -> bool:
        type_ = self._steps[number].outputs[0]
        is_open = type_ is _ZEROS or not wanted
        return is_open or any(self._type(value) == type_ for value in wanted)

    def _handed_to(self, value: Value) -> Value:
        """The value whose gradient is that of ``value`` too: an addition hands its own on."""
        while value not in self._owning:
            following = self._handing(value)
            if not following:
                break
            value = following[0].out()
        return value

    def _handing(self, value: Value) -> list[Node]:
        """Readers of a value that hand their gradient on to it."""
        if value not in self._handers:
            self._handers[value] = list(filter(self._hands, self._consumers.get(value, ())))
        return self._handers[value]

    def _hands(self, node: Node) -> bool:
        """Whether the gradient of a node's output is, unchanged, that of its inputs."""
        return (
            self._number.get(node.id) not in self._differentiated
            and info(node.op, node.attrs).gradient is Gradient.NEITHER
        )

    def _find_owner(self, line: Line) -> Value | None:
        """The value whose gradient a sum is: the one that most of its terms agree on."""
        votes: Counter[Value] = Counter()
        for name, output in line.inputs:
            node = self._bound.numbered.get(self._of(name))
            if node is None:
                continue
            wanted = _FOR_INPUTS.get(self._op_of(name), range(len(node.inputs)))
            if output >= len(wanted):
                continue
            pending = [node.inputs[wanted[output]]]
            for value in pending:
                if len(self._consumers[value]) + self._graph.is_output(value) > 1:
                    votes[value] += 1
                elif len(pending) < _FAR and self._hands(self._graph[value.node]):
                    pending.extend(self._graph[value.node].inputs)
        return max(votes, key=votes.__getitem__) if votes else self._owner_of_sums(line)

    def _owner_of_sums(self, line: Line) -> Value | None:
        """The value of which every reader hands on a sum, and one of them the latest sum."""
        latest = self._owner.get(self._unclaimed[-1]) if self._unclaimed else None
        pending = [] if latest is None else [latest]
        for owner in pending:
            if not self._hands(self._graph[owner.node]):
                continue
            for value in self._graph[owner.node].inputs:
                readers = self._consumers[value]
                handed = {self._handed_to(reader.out()) for reader in readers}
                if len(readers) == 1 and len(pending) < _FAR:
                    pending.append(value)
                elif (
                    value not in self._owning
                    and len(readers) + self._graph.is_output(value) == len(line.inputs)
                    and handed <= self._owning
                ):
                    return value
        return None

    def _of(self, name: str) -> str:
        match = self._prefix.match(name)
        return match[0] if match and name not in self._bound.numbered else ""

    def _op_of(self, name: str) -> str:
        known = self._by_name.get(name)
        return self._steps[known[-1]].op if known else ""


def _unique_names(bound: Bound) -> dict[str, str]:
    """A name to show for every operator, by its numbered one."""
    count = Counter(node.name for node in bound.numbered.values())
    return {
        number: node.name if node.name and count[node.name] == 1 else f"{node.name}:{number}"
        for number, node in bound.numbered.items()
    }
