"""Pipelines as text: ``"eliminate-dead-code,fuse-pointwise{max_size=8}"``, and back.

One grammar for the API, the command line and reproducers: comma-separated items, each the name of a
pass with optional ``{option=value}``, or the name of a pipeline, which is expanded in place.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from graphopt.errors import ParseError
from graphopt.ir.attrs import AttrValue, parse_value
from graphopt.pipeline.base import Pass

_NAME = re.compile(r"\s*([A-Za-z][\w-]*)\s*")
_OPTION = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_BARE = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*(?=[,}])")


@dataclass(frozen=True)
class Registry:
    """Names of passes and pipelines.

    Attributes:
        passes: name -> ``"module:Class"``, imported when first asked for.
        aliases: short name -> name.
        pipelines: name -> pipeline text.
    """

    passes: Mapping[str, str]
    aliases: Mapping[str, str]
    pipelines: Mapping[str, str]

    def pass_class(self, name: str) -> type[Pass]:
        """The class of a pass.

        Raises:
            ParseError: no pass has that name; close names are suggested.
        """
        full = self.aliases.get(name, name)
        if full not in self.passes:
            raise ParseError(self.unknown(name))
        module, _, attribute = self.passes[full].partition(":")
        found: type[Pass] = getattr(importlib.import_module(module), attribute)
        return found

    def unknown(self, name: str) -> str:
        """The sentence for a name that is neither a pass nor a pipeline."""
        known = [*self.passes, *self.aliases, *self.pipelines]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "; `graphopt passes` lists them"
        return f"unknown pass {name!r}{hint}"


def build(text: str | Iterable[Pass | str], registry: Registry) -> tuple[Pass, ...]:
    """Passes of a pipeline text, pipeline names expanded; ready-made passes go through.

    Raises:
        ParseError: malformed text, unknown name or option, an option value of another type, or
            something that is neither text nor passes.
    """
    if not isinstance(text, str):
        items = tuple(text) if isinstance(text, Iterable) else (text,)
        return tuple(pass_ for item in items for pass_ in _passes_of(item, registry))
    result: list[Pass] = []
    for name, options in parse_items(text):
        if name in registry.pipelines:
            if options:
                raise ParseError(f"pipeline {name!r} takes no options")
            result.extend(build(registry.pipelines[name], registry))
        else:
            result.append(make(registry.pass_class(name), options))
    return tuple(result)


def _passes_of(item: object, registry: Registry) -> tuple[Pass, ...]:
    if isinstance(item, str):
        return build(item, registry)
    if not isinstance(item, Pass):
        hint = f": make one, {item.__name__}()" if isinstance(item, type) else ""
        raise ParseError(
            f"a pipeline is a text such as 'cse,dce' or passes or both, not {item!r}{hint}"
        )
    if not isinstance(getattr(item, "name", None), str):
        raise ParseError(f"pass {type(item).__name__} has no name: give its class one")
    return (item,)


def make(cls: type[Pass], options: Mapping[str, AttrValue]) -> Pass:
    """A pass with these options.

    Raises:
        ParseError: an unknown option, or a value of another type than the option's default.
    """
    known = {f.name: f.default for f in fields(cls)}
    for key, value in options.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ParseError(f"pass {cls.name!r} has no option {key!r}{hint}")
        wanted = type(known[key])
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise ParseError(
                f"option {key!r} of pass {cls.name!r} takes {wanted.__name__}, not {value!r}"
            )
    return cls(**options)


def to_text(passes: Sequence[Pass]) -> str:
    """The text that :func:`build` reads back to equal passes."""
    return ",".join(map(str, passes))


def parse_items(text: str) -> list[tuple[str, dict[str, AttrValue]]]:
    """Names and options of a pipeline text; an empty text is an empty pipeline."""
    items: list[tuple[str, dict[str, AttrValue]]] = []
    position = 0
    if not text.strip():
        return items
    while True:
        match = _NAME.match(text, position)
        if match is None:
            raise ParseError(f"pipeline {text!r}: expected a pass name at {text[position:]!r}")
        options, position = _options(text, match.end())
        items.append((match[1], options))
        rest = text[position:].lstrip()
        if not rest:
            return items
        if not rest.startswith(","):
            raise ParseError(f"pipeline {text!r}: expected ',' or '{{' at {rest!r}")
        position = text.index(",", position) + 1


def _options(text: str, position: int) -> tuple[dict[str, AttrValue], int]:
    options: dict[str, AttrValue] = {}
    if not text.startswith("{", position):
        return options, position
    position += 1
    while not text[position:].lstrip().startswith("}"):
        if not text[position:].strip():
            raise ParseError(f"pipeline {text!r}: '{{' is not closed")
        key = _OPTION.match(text, position)
        if key is None:
            raise ParseError(f"pipeline {text!r}: expected option=value at {text[position:]!r}")
        if key[1] in options:
            raise ParseError(f"pipeline {text!r}: {key[1]} is given twice")
        bare = _BARE.match(text, key.end())
        if bare is not None and bare[1] not in ("True", "False", "None"):
            options[key[1]], position = bare[1], bare.end()
        else:
            try:
                options[key[1]], position = parse_value(text, key.end())
            except ParseError as error:
                raise ParseError(f"pipeline {text!r}: {error}") from None
        rest = text[position:].lstrip()
        if rest.startswith(","):
            position = text.index(",", position) + 1
        elif not rest.startswith("}"):
            raise ParseError(f"pipeline {text!r}: '{{' is not closed")
    return options, text.index("}", position) + 1
