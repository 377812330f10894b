"""Read the text form that :mod:`graphopt.ir.printer` writes."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from graphopt.errors import GraphoptError, ParseError
from graphopt.ir.attrs import EMPTY, Attrs, AttrValue, parse_value, unquote
from graphopt.ir.graph import Graph
from graphopt.ir.node import NodeId, Value
from graphopt.ir.types import UNKNOWN, TensorType, parse_type

_SPACE = re.compile(r"(?:\s|//[^\n]*)*")
_NAME = re.compile(r'%("(?:[^"\\]|\\.)*"|[A-Za-z0-9_.$/:@+-]*[A-Za-z0-9_.$/@+-]|)(~\d+)?')
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.$/:@+-]*[A-Za-z0-9_.$/@+-]')
_OP = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_][\w.]*')
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_][A-Za-z0-9_.]*')
_TYPE = re.compile(r"(?:\?|[a-z]+[0-9]+)(?:\[[^\]]*\])?")
_INDEX = re.compile(r"#(\d{1,9})")
_ROLE = re.compile(r"(param|aux)\s")

_MAX_DEPTH: Final = 50


def parse(text: str) -> Graph:
    """Parse the text of one graph.

    Args:
        text: what ``str(graph)`` prints; ``//`` starts a comment that ends with the line.

    Returns:
        A graph equal to the printed one.

    Raises:
        ParseError: it is no text, or malformed; the message names the line and what was expected.
    """
    if not isinstance(text, str):
        raise ParseError(f"parse() takes the text of a graph, not a {type(text).__name__}")
    reader = _Reader(text)
    graph = reader.graph()
    reader.skip()
    if reader.position != len(text):
        reader.fail("the end of the text")
    return graph


def parse_file(text: str, name: str) -> Graph:
    """Parse what a file holds.

    Raises:
        ParseError: it is malformed; the message names the file, too.
    """
    try:
        return parse(text)
    except ParseError as error:
        raise ParseError(f"{name}: {error}") from None


class _Reader:
    """A cursor over the text. Recursion goes as deep as graphs are nested, not as they are long."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def fail(self, expected: str) -> NoReturn:
        found = self.text[self.position : self.position + 24].split("\n")[0]
        self.wrong(f"expected {expected}, found {repr(found) if found else 'the end'}")

    def wrong(self, problem: object) -> NoReturn:
        line = self.text.count("\n", 0, self.position) + 1
        raise ParseError(f"line {line}: {problem}")

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.position)
        assert match is not None
        self.position = match.end()

    def accept(self, literal: str) -> bool:
        self.skip()
        if not self.text.startswith(literal, self.position):
            return False
        self.position += len(literal)
        return True

    def expect(self, literal: str) -> None:
        if not self.accept(literal):
            self.fail(repr(literal))

    def take(self, pattern: re.Pattern[str], what: str) -> str:
        self.skip()
        match = pattern.match(self.text, self.position)
        if match is None:
            self.fail(what)
        self.position = match.end()
        return match[0]

    def unquoted(self, pattern: re.Pattern[str], what: str) -> str:
        word = self.take(pattern, what)
        return self.unquote(word) if word.startswith('"') else word

    def unquote(self, word: str) -> str:
        try:
            return unquote(word)
        except ParseError as error:
            self.wrong(error)

    def plain(self, label: str) -> str:
        """The node's name behind a printed label."""
        body = label[1:]
        if body.startswith('"'):
            return self.unquote(body[: body.rindex('"') + 1])
        return body.split("~")[0]

    def graph(self, depth: int = 0) -> Graph:
        if depth > _MAX_DEPTH:
            self.fail(f"at most {_MAX_DEPTH} graphs in each other")
        self.expect("graph")
        graph = Graph(self.unquoted(_WORD, "a graph name"))
        names: dict[str, NodeId] = {}
        self.expect("(")
        while not self.accept(")"):
            self.input(graph, names)
            if not self.accept(","):
                self.expect(")")
                break
        self.expect("{")
        while not self.accept("return"):
            self.node(graph, names, depth)
        outputs: list[Value] = []
        while not self.accept("}"):
            outputs.append(self.value(names))
            if not self.accept(","):
                self.expect("}")
                break
        graph.set_outputs(outputs)
        return graph

    def input(self, graph: Graph, names: dict[str, NodeId]) -> None:
        self.skip()
        role = _ROLE.match(self.text, self.position)
        if role is not None:
            self.position = role.end()
        label = self.take(_NAME, "an input such as %data")
        self.expect(":")
        type_ = self.type()
        attrs = self.attrs()
        node = graph.add_input(self.plain(label), role[1] if role else "data", type_, attrs)
        self.define(names, label, node.id)

    def node(self, graph: Graph, names: dict[str, NodeId], depth: int) -> None:
        label = self.take(_NAME, "a node such as %fc, or return")
        self.expect("=")
        op = self.unquoted(_OP, "an operator name")
        self.expect("(")
        inputs = self.values(names)
        attrs = self.attrs()
        after: tuple[NodeId, ...] = ()
        if self.accept("after"):
            self.expect("(")
            after = tuple(value.node for value in self.values(names))
        types: list[TensorType] = [UNKNOWN]
        if self.accept(":"):
            types = self.types()
        graphs: list[Graph] = []
        if self.accept("["):
            while not self.accept("]"):
                graphs.append(self.graph(depth + 1))
        node = graph.add(op, inputs, attrs, types, self.plain(label), graphs=graphs, after=after)
        self.define(names, label, node.id)

    def define(self, names: dict[str, NodeId], label: str, node: NodeId) -> None:
        if label in names:
            self.fail(f"a new name ({label} is defined twice)")
        names[label] = node

    def values(self, names: dict[str, NodeId]) -> list[Value]:
        result: list[Value] = []
        while not self.accept(")"):
            result.append(self.value(names))
            if not self.accept(","):
                self.expect(")")
                break
        return result

    def value(self, names: dict[str, NodeId]) -> Value:
        start = self.position
        label = self.take(_NAME, "a value such as %fc or %split#1")
        if label not in names:
            self.position = start
            self.skip()
            self.fail("a value defined above")
        index = _INDEX.match(self.text, self.position)
        if index is None:
            return Value(names[label])
        self.position = index.end()
        return Value(names[label], int(index[1]))

    def type(self) -> TensorType:
        text = self.take(_TYPE, "a type such as f32[8,64] or ?")
        try:
            return parse_type(text)
        except ParseError as error:
            self.wrong(error)

    def types(self) -> list[TensorType]:
        if not self.accept("("):
            return [self.type()]
        result: list[TensorType] = []
        while not self.accept(")"):
            result.append(self.type())
            if not self.accept(","):
                self.expect(")")
                break
        return result

    def attrs(self) -> Attrs:
        if not self.accept("{"):
            return EMPTY
        values: dict[str, AttrValue] = {}
        while not self.accept("}"):
            key = self.unquoted(_KEY, "an attribute name")
            if key in values:
                self.fail(f"another attribute ({key} is given twice)")
            self.expect("=")
            try:
                values[key], self.position = parse_value(self.text, self.position)
            except GraphoptError:
                self.fail(f"a value for {key}")
            if not self.accept(","):
                self.expect("}")
                break
        return Attrs(values)
