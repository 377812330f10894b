"""``graphopt.lift``: any model to a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.errors import InputError, ParseError
from graphopt.ir.graph import Graph


def lift(
    source: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Graph:
    """Lift a model into a graph; the model is not changed.

    Args:
        source: an ``mx.sym.Symbol``, the path of a ``*-symbol.json`` file or of a graph's text form
            (``*.gir``), a Gluon ``HybridBlock``, or a graph.
        shapes: shape per input name. Of a Symbol, inputs named here are data, all others
            parameters; a graph says which are. A Block's inputs are called ``data``, or ``data0``,
            ``data1`` ... when there are several.
        dtypes: dtype name per input name; float32 where nothing says otherwise. An input
            of a graph keeps of its type what is not given.

    Returns:
        The graph, with MXNet's own inferred types on every value.

    Raises:
        ParseError: the file is missing or malformed.
        InputError: a name is no input, the types contradict, or the source is none of the above.
    """
    if isinstance(source, Graph):
        return _retyped(source, shapes, dtypes)
    if isinstance(source, (str, Path)):
        return _from_file(Path(source), shapes, dtypes)
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    if isinstance(source, mx.sym.Symbol):
        from graphopt.frontend.symbol import lift_symbol

        return lift_symbol(source, shapes, dtypes)
    if isinstance(source, mx.gluon.Block):
        from graphopt.frontend.gluon import lift_block

        return lift_block(source, shapes or {}, dtypes or {})
    raise InputError(
        f"cannot lift a {type(source).__name__}: give a Symbol, a HybridBlock,"
        " or the path of a *-symbol.json or *.gir file"
    )


def _from_file(
    path: Path,
    shapes: Mapping[str, Sequence[int]] | None,
    dtypes: Mapping[str, str] | None,
) -> Graph:
    if path.suffix == ".gir":
        from graphopt.ir.parser import parse_file

        return _retyped(parse_file(read_text(path), str(path)), shapes, dtypes)
    from graphopt.frontend.file_names import title
    from graphopt.frontend.symbol import lift_symbol
    from graphopt.frontend.symbol_json import read_symbol

    return lift_symbol(read_symbol(path), shapes, dtypes, name=title(path))


def _retyped(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]] | None,
    dtypes: Mapping[str, str] | None,
) -> Graph:
    if not shapes and not dtypes:
        return graph
    from graphopt.frontend.stated import retyped

    return retyped(graph, shapes or {}, dtypes or {})


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ParseError: it cannot be read; the message names it and says why.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise ParseError(f"cannot read {str(path)!r}: {reason}") from None
