"""``export`` of optimized Blocks: files that plain MXNet loads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.backend.documents import document_of, symbol_of
from graphopt.backend.symbol import first_line
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.blocks import describe
from graphopt.frontend.file_names import for_mxnet
from graphopt.nn.for_files import for_files
from graphopt.nn.legacy import current

if TYPE_CHECKING:
    from graphopt.nn.entry import Entry


def export(
    block: Any, path: str, epoch: int, *, remove_amp_cast: bool = True, kernels: bool = False
) -> None:
    """Write ``path-symbol.json`` and ``path-<epoch>.params``; see ``Optimized.export``."""
    state = block.graphopt_state
    if not state.structure.has_same_parts():
        state = block._graphopt_current()
    if state.reason:
        raise InputError(f"{describe(block)} cannot be exported as one graph: {state.reason}")
    entries = state.compiled.entries
    if not entries:
        raise InputError(f"{describe(block)} cannot be exported yet: call it once first")
    entry = entries[-1]
    found = None
    apart = _apart(block, entry) if state.config.mode == "inference" else None
    if apart is not None:
        _warn_of_contexts(path, apart)
    elif state.config.mode == "inference":
        found = for_files(
            entry, lambda arrays: state.compiled.alike(entry, arrays), kernels=kernels
        )
        if found is None:
            warn_of_sizes(path)
    if found is not None:
        symbol, params = found
        computed = {parameter.name: parameter._reduce() for parameter in entry.computed}
        write(path, epoch, _named(block, entry, symbol), params | computed)
    else:
        params = block.collect_params()
        symbol = entry.traced.returned
        names = symbol.list_inputs()
        write(
            path,
            epoch,
            _named(block, entry, symbol),
            {name: params[name]._reduce() for name in names if name in params},
            remove_amp_cast=remove_amp_cast,
        )


def _apart(block: Any, entry: Entry) -> str | None:
    """A parameter that has not the same values on all its contexts, of which files have the mean.

    As the statistics of training on several of them; what was computed beforehand is of one.
    """
    params = block.collect_params()
    names: list[str] = entry.traced.returned.list_inputs()
    for name in names:
        first, *others = (params[name]._data if name in params else None) or (None,)
        if any(not _are_equal(first, other) for other in others):
            return name
    return None


def _are_equal(first: Any, second: Any) -> bool:
    return np.array_equal(first.asnumpy(), second.asnumpy(), equal_nan=True)


def _warn_of_contexts(path: str, name: str) -> None:
    warnings.warn(
        f"{path}-symbol.json holds the net as it is, not as passes left it, as parameter {name!r}"
        " has other values on each context: set_data() gives it the same ones",
        UserWarning,
        stacklevel=4,
    )


def warn_of_sizes(path: str) -> None:
    """Say that a file has no other graph than MXNet's own would have."""
    warnings.warn(
        f"{path}-symbol.json holds the net as it is, not as passes left it, which is right only for"
        " data of the sizes that it was called with, or does not read all of them",
        UserWarning,
        stacklevel=4,
    )


def _named(block: Any, entry: Entry, symbol: Any) -> Any:
    """The Symbol, with inputs called as those of the Symbol that a SymbolBlock was made of."""
    mx = import_mxnet()
    if not isinstance(block, mx.gluon.SymbolBlock):
        return symbol
    theirs = [variable.name for variable in block._cached_graph[0]]
    if len(theirs) != len(entry.traced.names):  # some were None
        return symbol
    called = dict(zip(entry.traced.names, theirs, strict=True))
    document = document_of(symbol)
    for node in document["nodes"]:
        if node["op"] == "null":
            node["name"] = called.get(node["name"], node["name"])
    return symbol_of(document)


def write(
    path: str,
    epoch: int,
    symbol: Any,
    params: Mapping[str, Any],
    *,
    remove_amp_cast: bool = False,
) -> None:
    """Write a Symbol and its parameters as MXNet checkpoints are.

    Raises:
        InputError: there is no such folder, or MXNet cannot write there.
    """
    mx = import_mxnet()
    path, epoch = for_mxnet(path), int(epoch)  # of a float, as MXNet's %04d does
    folder = Path(path).parent
    if "://" not in path and not folder.is_dir():
        raise InputError(f"cannot write {path!r}: there is no folder {str(folder)!r}")
    aux = set(symbol.list_auxiliary_states())
    arrays = {f"{'aux' if name in aux else 'arg'}:{name}": a for name, a in params.items()}
    try:
        symbol.save(f"{path}-symbol.json", remove_amp_cast=remove_amp_cast)
        save = mx.npx.save if mx.util.is_np_array() else mx.nd.save
        save(f"{path}-{epoch:04d}.params", current(arrays))
    except mx.MXNetError as error:
        reason = first_line(error).rpartition(": ")[2]  # the file's name comes before
        raise InputError(f"cannot write {path!r}: {reason}") from None
