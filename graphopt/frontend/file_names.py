"""Names of files, which need not be text: for graphs, and for MXNet."""

from __future__ import annotations

from pathlib import Path

from graphopt.errors import InputError


def title(path: str | Path) -> str:
    """What the graph of a Symbol JSON file is called: text, whatever the name is."""
    name = Path(path).name.removesuffix(".json").removesuffix("-symbol")
    return name.encode(errors="backslashreplace").decode()


def for_mxnet(path: str | Path) -> str:
    """A path as MXNet takes it: in UTF-8, whatever the locale is.

    Raises:
        InputError: MXNet has no word for it.
    """
    name = str(path)
    try:
        # What Python could not decode when the system told it goes back to the bytes it was.
        found = name.encode(errors="surrogateescape").decode()
    except UnicodeError:
        raise InputError(
            f"MXNet reads and writes no file whose name is not UTF-8, as {name!r}; rename it"
        ) from None
    if "\0" in found:
        raise InputError(f"no file's name has a null character, as {name!r}")
    return found
