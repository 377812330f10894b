"""Options that name an input: ``--shape data:1,3,224,224`` and ``--dtype data:float16``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from graphopt.cli.verb import unknown

Shape = tuple[int, ...]
_T = TypeVar("_T")


def type_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--shape`` and ``--dtype``, each a mapping from the names of inputs."""
    shape = click.option(
        "shapes",
        "--shape",
        metavar="NAME:N,N,...",
        multiple=True,
        callback=_shapes,
        help="Shape of an input, for example data:1,3,224,224; once per input.",
    )
    dtype = click.option(
        "dtypes",
        "--dtype",
        metavar="NAME:DTYPE",
        multiple=True,
        callback=_dtypes,
        help="Dtype of an input, for example data:float16; float32 otherwise.",
    )
    return shape(dtype(function))


def _shapes(_ctx: click.Context, _: click.Parameter, texts: Sequence[str]) -> dict[str, Shape]:
    return _mapping(texts, _shape, "data:1,3,224,224")


def _dtypes(_ctx: click.Context, _: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    return _mapping(texts, _dtype, "data:float16")


def _mapping(texts: Sequence[str], read: Callable[[str, str], _T], example: str) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for text in texts:
        name, colon, rest = text.rpartition(":")
        if not colon or not name:
            raise click.BadParameter(f"{text!r} names no input; write for example {example}")
        if name in found:
            raise click.BadParameter(f"input {name!r} is given twice")
        found[name] = read(name, rest)
    return found


def _shape(name: str, text: str) -> Shape:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 2**31 for part in parts):
        raise click.BadParameter(
            f"{text!r} is no shape; extents are positive whole numbers below 2^31,"
            f" for example {name}:1,3,224,224"
        )
    return tuple(map(int, parts))


def _dtype(_name: str, text: str) -> str:
    from graphopt.ir.types import DTYPES

    if text not in DTYPES:
        known = f" (known are {', '.join(DTYPES)})"
        raise click.BadParameter(unknown("dtype", text, DTYPES) + known)
    return text
