"""Read and write MXNet's ``*.params`` files."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from graphopt.cli.verb import usage
from graphopt.errors import ParseError

if TYPE_CHECKING:
    import numpy as np


#: In a verb's context: its parameters were saved with the shapes of ``mx.nd``.
_READ_CLASSIC: Final = "graphopt.read_classic"


def read_parameters(path: str, aliases: Mapping[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays by name; ``arg:`` and ``aux:`` go, aliases become the names they stand for.

    Raises:
        UsageError: there is no such file.
        ParseError: MXNet cannot read it, or its arrays have no names.
    """
    from graphopt.compat import import_mxnet
    from graphopt.frontend.file_names import for_mxnet

    if Path(path).is_dir():
        usage(f"cannot read {path!r}: it is a folder")
    if not Path(path).exists():
        usage(f"cannot read {path!r}: there is no such file")
    mx = import_mxnet()
    try:
        if Path(path).is_file():
            read = partial(mx.nd.load, for_mxnet(path))
        else:  # a pipe, which can be read once, and of which MXNet asks the length
            read = partial(mx.nd.load_frombuffer, Path(path).read_bytes())
        found = _loaded(read) or {}  # a list, of no arrays
    except (mx.MXNetError, UnicodeDecodeError) as error:
        raise ParseError(f"{path} is no file of parameters that MXNet can read") from error
    if not isinstance(found, dict):
        raise ParseError(f"{path} holds arrays without names, so they are no parameters")
    arrays = {}
    for key, array in found.items():
        name = key.removeprefix("arg:").removeprefix("aux:")
        arrays[aliases.get(name, name)] = array.asnumpy()
    return arrays


def _loaded(read: Callable[[], Any]) -> Any:
    """What MXNet reads with the shapes of ``mx.nd`` or, if it was saved so, those of ``mx.np``.

    A verb that read the latter goes on with them.
    """
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    with mx.util.np_shape(False):
        try:
            found = read()
        except mx.MXNetError as error:
            if "np shape semantics" not in str(error):
                raise
        else:
            click.get_current_context().meta[_READ_CLASSIC] = True
            return found
    use_np_shape()
    return read()


def use_np_shape() -> None:
    """Have the verb read, run and write graphs with the shapes of ``mx.np`` from here on."""
    from graphopt.compat import import_mxnet

    click.get_current_context().with_resource(import_mxnet().util.np_shape())


def write_parameters(
    path: Path, arrays: Mapping[str, np.ndarray[Any, Any]], aux: frozenset[str]
) -> None:
    """Write arrays as ``arg:name`` or ``aux:name``, for who can load what the verb has read.

    Raises:
        OSError: MXNet cannot write them, or wrote a part.
    """
    from graphopt.compat import import_mxnet
    from graphopt.frontend.file_names import for_mxnet

    mx = import_mxnet()
    named = {
        f"{'aux' if name in aux else 'arg'}:{name}": mx.nd.array(array, dtype=array.dtype)
        for name, array in arrays.items()
    }
    file = for_mxnet(path)
    # Nets of mx.nd may have operators of mx.np among theirs, some of which passes write.
    read_classic = click.get_current_context().meta.get(_READ_CLASSIC, False)
    needs_numpy = any(0 in (array.ndim, array.size) for array in arrays.values())
    with mx.util.np_shape(False) if read_classic and not needs_numpy else nullcontext():
        try:
            mx.nd.save(file, named)
            mx.nd.load(file)  # the names come last; that a disk is full as it closes is not told
        except mx.MXNetError:
            reason = "MXNet wrote a part of it at most; the disk may be full"
            raise OSError(errno.EIO, reason) from None
