"""``graphopt.load``: a saved Symbol model, optimized and callable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.api.model import Model
from graphopt.api.optimizing import checked_config
from graphopt.backend.fitting import require_mapping
from graphopt.backend.symbol import first_line
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.file_names import for_mxnet, title
from graphopt.pipeline.base import Pass


def load(
    symbol_json: str | Path,
    params: str | Path | Mapping[str, Any] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    passes: str | Sequence[Pass] = "default",
    check: bool = False,
    precise: bool = False,
    strict: bool = False,
) -> Model:
    """Load a saved model and optimize it for inference.

    Args:
        symbol_json: path of a ``*-symbol.json`` file of any MXNet version.
        params: path of a ``.params`` file, or value (NDArray or numpy) per name; names may carry
            MXNet's ``arg:`` and ``aux:`` prefixes. Floating numbers of another dtype than the
            Symbol reads are cast.
        shapes: names (and shapes) of the data inputs, in the order of positional arguments;
            default: inputs that ``params`` has no value for, in the Symbol's order, but ``data0``,
            ``data1`` ... of an exported Block by number. When given, the model is compiled now
            rather than at the first call.
        passes: pipeline, as for :func:`graphopt.optimize`.
        check: compare every pass's result with the original.
        precise: no pass may round differently.
        strict: raise where a pass fails.

    Returns:
        A callable :class:`Model`; parameters are frozen. It returns arrays of ``mx.np`` if
        ``mx.npx.set_np()`` was on, as a SymbolBlock of such a file does.

    Raises:
        ParseError: the symbol file is malformed, or the pipeline names an unknown pass.
        InputError: the params file cannot be read, parameters are missing, misshapen or no arrays,
            or an option has no such value.
    """
    from graphopt.frontend.stated import input_types
    from graphopt.frontend.symbol_json import read_symbol

    if not isinstance(symbol_json, (str, os.PathLike)):
        raise InputError(f"load() takes a path, not a {type(symbol_json).__name__}")
    if not isinstance(params, (str, os.PathLike, Mapping, type(None))):
        raise InputError(
            f"params of load() are a path, or values by name, not a {type(params).__name__}"
        )
    require_mapping(shapes or {}, "shapes")
    config = checked_config(passes, "inference", check=check, precise=precise, strict=strict)
    path = Path(symbol_json)
    symbol = read_symbol(path)
    if import_mxnet().util.is_np_array():
        symbol = symbol.as_np_ndarray()
    arrays = params if isinstance(params, Mapping) else read_params(params) if params else {}
    for name in arrays:
        if not isinstance(name, str):
            raise InputError(f"params of load() are values by name, and {name!r} is no name")
    known = set(symbol.list_inputs())
    values = {name if name in known else _bare(name): array for name, array in arrays.items()}
    # Checkpoints of fine-tuned nets often hold parameters of layers that were cut off.
    values = {name: value for name, value in values.items() if name in known}
    model = Model(symbol, values, config, shapes, title(path))
    if shapes:
        mx = import_mxnet()
        types = input_types(model.data, shapes, {})
        model(**{name: mx.nd.zeros(type_.shape) for name, type_ in types.items()})
    return model


def _bare(name: str) -> str:
    """A name without MXNet's prefix; others may have a colon in them, too."""
    prefix, _, rest = name.partition(":")
    return rest if prefix in ("arg", "aux") else name


def read_params(path: str | Path) -> dict[str, Any]:
    """Arrays of a ``.params`` file by name.

    Raises:
        InputError: the file is missing or is no params file.
    """
    mx = import_mxnet()
    if not Path(path).is_file():
        raise InputError(f"cannot read {str(path)!r}: no such file")
    try:
        found = mx.nd.load(for_mxnet(path)) or {}  # a list, of no arrays
    except mx.MXNetError as error:
        raise InputError(f"{str(path)!r} is no MXNet params file: {first_line(error)}") from None
    except UnicodeDecodeError:
        raise InputError(f"{str(path)!r} is no MXNet params file: a name is no text") from None
    if not isinstance(found, dict):
        raise InputError(f"{str(path)!r} holds arrays without names")
    return found
