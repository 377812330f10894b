"""Options that name an input: ``data:1,3,224,224`` and ``data:float16``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import click

from graphopt.cli.verb import unknown, usage

Shape = tuple[int, ...]
_T = TypeVar("_T")


class ShapeType(click.ParamType):
    """``NAME:EXTENT,EXTENT,...``."""

    name = "NAME:N,N,..."

    def get_metavar(self, param: click.Parameter, ctx: Any = None) -> str:
        """As ``--help`` shows it."""
        return self.name

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, Shape]:
        """Parse; malformed text is an error of usage."""
        name, colon, extents = str(value).rpartition(":")
        parts = [part.strip() for part in extents.split(",")]
        if not colon or not name:
            self.fail(f"{value!r} has no input name; write for example data:1,3,224,224", param, ctx)
        if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
            self.fail(
                f"{value!r} is no shape; extents are positive whole numbers, for example"
                f" {name}:1,3,224,224",
                param,
                ctx,
            )
        return name, tuple(map(int, parts))


class DTypeType(click.ParamType):
    """``NAME:DTYPE``."""

    name = "NAME:DTYPE"

    def get_metavar(self, param: click.Parameter, ctx: Any = None) -> str:
        """As ``--help`` shows it."""
        return self.name

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        """Parse; an unknown dtype is an error of usage."""
        from graphopt.ir.types import DTYPES

        name, colon, dtype = str(value).rpartition(":")
        if not colon or not name:
            self.fail(f"{value!r} has no input name; write for example data:float16", param, ctx)
        if dtype not in DTYPES:
            hint = unknown("dtype", dtype, DTYPES)
            self.fail(hint if "?" in hint else f"{hint}; known: {', '.join(DTYPES)}", param, ctx)
        return name, dtype


SHAPE = ShapeType()
DTYPE = DTypeType()


def as_mapping(option: str, pairs: Sequence[tuple[str, _T]]) -> dict[str, _T]:
    """The pairs of a repeated option.

    Raises:
        UsageError: a name is given twice.
    """
    found: dict[str, _T] = {}
    for name, value in pairs:
        if name in found:
            usage(f"{option} is given twice for input {name!r}")
        found[name] = value
    return found
