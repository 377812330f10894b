"""The argument MODEL and its options: files, stdin, Gluon's model zoo; parameters and data."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphopt.cli.console import note
from graphopt.cli.inputs import Shape
from graphopt.cli.native import hushed
from graphopt.cli.parameters import read_parameters, use_np_shape
from graphopt.cli.verb import read_stdin, unknown, usage
from graphopt.errors import InputError, ParseError

if TYPE_CHECKING:
    import numpy as np

    from graphopt.ir.graph import Graph
    from graphopt.ir.node import Node

ZOO = "model_zoo:"
#: How names of inputs end that are read by losses, as in a Module's ``label_names``.
_LABEL = "label"
#: An operator of ``mx.np``, in Symbol JSON or a graph's text.
_NUMPY = re.compile(r'("op": *"|= )_(np|npi|npx)_')

model_argument = click.argument("model", metavar="MODEL")


def feed_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--params`` and ``--seed``."""
    params = click.option(
        "--params",
        metavar="FILE",
        help="Parameters, a *.params file of MXNet; drawn at random otherwise.",
    )
    seed = click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="For values drawn at random.",
    )
    return params(seed(function))


@dataclass(frozen=True)
class Model:
    """A graph, and what its parameters are called in files written by ``save_parameters``.

    ``sized`` is the graph for inputs of other shapes, by name; it raises a GraphoptError where they
    contradict.
    """

    graph: Graph
    sized: Callable[[Mapping[str, Shape]], Graph]
    aliases: Mapping[str, str] = field(default_factory=dict)


def load(
    model: str,
    shapes: Mapping[str, Shape],
    dtypes: Mapping[str, str],
) -> Model:
    """The graph of MODEL.

    Raises:
        UsageError: there is no such file or zoo model, or an option names no input.
        GraphoptError: the file is malformed, or the types contradict.
    """
    if model.startswith(ZOO):
        return _zoo(model.removeprefix(ZOO), shapes, dtypes)
    text = read(model)
    if model == "-" and not text.strip():
        raise ParseError("stdin is empty")
    if _NUMPY.search(text):
        use_np_shape()
    if _is_json(model, text):
        lifted = partial(_lift, model, text, dtypes)
        return Model(lifted(shapes), lambda others: lifted({**shapes, **others}))
    graph = _retype(_parse(model, text), shapes, dtypes)
    return Model(graph, lambda others: _retype(graph, others, {}))


def read(path: str) -> str:
    """The text of a file, or of stdin for ``-``.

    Raises:
        UsageError: there is no such file.
        ParseError: it is no text.
    """
    try:
        return read_stdin() if path == "-" else Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        hint = "; give it with --params, and as MODEL its *-symbol.json" if _is_params(path) else ""
        raise ParseError(f"{path} is no UTF-8 text{hint}") from None
    except IsADirectoryError:
        usage(f"cannot read {path!r}: it is a folder")
    except OSError as error:
        folder = Path(path).parent
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        exported = f"{Path(path).name}-symbol.json"  # MODEL may be the prefix that export() got
        near = [exported] if exported in names else _close(Path(path).name, names)
        hint = f"; did you mean {str(folder / near[0])!r}?" if near else ""
        usage(f"cannot read {path!r}: {error.strerror or error}{hint}")


def _close(name: str, names: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(name, names, n=1)


def _is_params(path: str) -> bool:
    return path.endswith(".params")


def require_types(graph: Graph) -> None:
    """End the verb unless every input that is read has a type.

    Raises:
        UsageError: one has none; the message is the option to add.
    """
    loose = [node for node in _read(graph) if not node.type.is_static]
    if not loose:
        return
    data = [node.name for node in loose if node.op == "data"]
    names = [name for name in data if not _is_label(name)]  # they follow from the data
    names = names or data or [node.name for node in loose]
    listed = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if names[3:] else "")
    example = " ".join(f"--shape {name}:1,3,224,224" for name in names[:3])
    plural = "s" if len(names) > 1 else ""
    usage(f"the shape{plural} of input{plural} {listed} must be given, for example {example}")


def feeds(model: Model, params: str | None, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """A value for every input: from the file, else drawn at random, which is said on stderr.

    Labels are data: files of parameters have none.

    Raises:
        InputError: a parameter is missing in the file, or has another shape.
    """
    from graphopt.backend.calibrate import calibrated_feeds

    require_types(model.graph)
    drawn = calibrated_feeds(model.graph, seed)
    if params is None:
        note(f"parameters and data are random (--seed {seed}); --params FILE gives real ones")
        return drawn
    found = parameters_of(model, params)
    note(f"parameters are those of {params}, data is random (--seed {seed})")
    return drawn | {name: array for name, array in found.items() if name in drawn}


def parameters_of(model: Model, params: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a file that a model reads; floating numbers in the dtypes it has for them.

    Raises:
        InputError: a parameter is missing in the file, or has another shape.
    """
    found = read_parameters(params, model.aliases)
    needed = [node for node in model.graph.inputs if node.op != "data"]
    needed = [n for n in needed if n.name in found or not _is_label(n.name)]
    missing = [node.name for node in needed if node.name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"{params} has no parameter {missing[0]!r}{more}")
    for node in needed:
        if found[node.name].shape != node.type.shape:
            raise InputError(
                f"parameter {node.name!r} has shape {found[node.name].shape} in {params},"
                f" but {node.type.shape} in the model"
            )
    return {node.name: _cast(found[node.name], node.type.dtype) for node in needed}


def _cast(array: np.ndarray[Any, Any], dtype: str | None) -> np.ndarray[Any, Any]:
    floats = ("float16", "float32", "float64")
    both = dtype in floats and array.dtype.name in floats
    return array.astype(dtype, copy=False) if both else array


def doubt_random(params: str | None) -> None:
    """Say what a failed check with random parameters is worth: deep nets magnify rounding then."""
    if params is None:
        note(
            "parameters were random, with which deep nets may magnify rounding beyond any"
            " tolerance; --params FILE with the real ones is the better test"
        )


def _is_json(path: str, text: str) -> bool:
    """By suffix, else by the first character: a graph's text starts with a word."""
    suffix = Path(path).suffix
    return suffix == ".json" or (suffix != ".gir" and text.lstrip().startswith(("{", "[")))


def _lift(path: str, text: str, dtypes: Mapping[str, str], shapes: Mapping[str, Shape]) -> Graph:
    from graphopt.frontend.file_names import title
    from graphopt.frontend.symbol import lift_symbol
    from graphopt.frontend.symbol_json import parse_symbol

    with hushed():
        symbol = parse_symbol(text, "stdin" if path == "-" else path)
    _check_names(symbol.list_inputs(), shapes, dtypes)
    name = "stdin" if path == "-" else title(path)
    labels = {known for known in symbol.list_arguments() if _is_label(known)}
    return lift_symbol(
        symbol, shapes, dtypes, data={*shapes, *labels} if shapes else None, name=name
    )


def unread_labels(before: Graph, after: Graph) -> list[str]:
    """Labels that a graph reads, and what passes made of it no more."""
    kept = {node.name for node in _read(after)}
    return [node.name for node in _read(before) if _is_label(node.name) and node.name not in kept]


def _read(graph: Graph) -> list[Node]:
    """Inputs that something reads."""
    return [n for n in graph.inputs if graph.node_users(n.id) or graph.is_output(n.out())]


def _is_label(name: str) -> bool:
    return name.endswith(_LABEL)


def _parse(path: str, text: str) -> Graph:
    from graphopt.ir.parser import parse_file
    from graphopt.ir.verify import verify

    graph = parse_file(text, "stdin" if path == "-" else path)
    verify(graph)
    return graph


def _retype(graph: Graph, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> Graph:
    """The graph with these types at its inputs, and what follows from them."""
    from graphopt.frontend.stated import retyped

    _check_names([node.name for node in graph.inputs], shapes, dtypes)
    return retyped(graph, shapes, dtypes)


def _check_names(known: list[str], shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> None:
    for name in (*shapes, *dtypes):
        if name not in known:
            usage(unknown("input", name, known))


def _zoo(name: str, shapes: Mapping[str, Shape], dtypes: Mapping[str, str]) -> Model:
    """A model of Gluon's vision zoo; the shape of its input is known."""
    import inspect

    from graphopt.api.lifting import lift
    from graphopt.compat import import_mxnet

    vision = import_mxnet().gluon.model_zoo.vision
    factories = {
        found: make
        for found, make in vars(vision).items()
        if inspect.isfunction(make) and not found.startswith("get_")
    }
    plain = {_plain(found): found for found in factories}
    if _plain(name) not in plain:
        usage(unknown("model of Gluon's model zoo", name, factories))
    full = plain[_plain(name)]
    _check_names(["data"], shapes, dtypes)
    if "data" not in shapes:
        extent = 299 if full == "inception_v3" else 224
        shapes = {"data": (1, 3, extent, extent)}
        note(f"--shape data:1,3,{extent},{extent} is assumed")
    block = factories[full](prefix=f"{full}_")
    aliases = {key: p.name for key, p in block._collect_params_with_prefix().items()}
    graph = lift(block, shapes, dtypes)
    graph.name = full
    return Model(graph, lambda others: lift(block, {**shapes, **others}, dtypes), aliases)


def _plain(name: str) -> str:
    """``mobilenetv2_1.0`` and ``mobilenet_v2_1_0`` are one model."""
    return name.replace("_", "").replace(".", "").lower()
