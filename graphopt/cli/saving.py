"""Write graphs: their forms, and files that are never half written."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from graphopt.cli.verb import usage
from graphopt.errors import GraphError, GraphoptError
from graphopt.ir.node import AUX, DATA

if TYPE_CHECKING:
    import numpy as np

    from graphopt.ir.graph import Graph
    from graphopt.ir.sizes import Shapes

#: How operators of ``mx.np`` begin, to which 0 is an extent.
_NUMPY: Final = ("_np_", "_npi_", "_npx_")


def _text(graph: Graph, _saved: Container[str]) -> str:
    return str(graph)


def _json(graph: Graph, saved: Container[str]) -> str:
    from graphopt.backend.symbol import to_json
    from graphopt.backend.unfuse import unfuse

    return to_json(unfuse(graph), saved)  # plain MXNet has no other operators than its own


def _dot(graph: Graph, _saved: Container[str]) -> str:
    from graphopt.cli.dot import to_dot

    return to_dot(graph)


EMITTERS: dict[str, Callable[[Graph, Container[str]], str]] = {
    "text": _text,
    "json": _json,
    "dot": _dot,
}


def emit(graph: Graph, form: str, *, alone: bool = False, saved: Container[str] = ()) -> str:
    """The graph in a form, without the last newline.

    Args:
        graph: what to write.
        form: a key of ``EMITTERS``.
        alone: no file of parameters can go with it.
        saved: names of the parameters in a file that does.

    Raises:
        UsageError: the graph has tensors that the form cannot hold.
    """
    if form == "json" and alone:
        tensors = _tensors(graph)
        if tensors:
            usage(
                f"the result has {len(tensors)} computed tensors, which Symbol JSON cannot hold:"
                " add -o FILE, and they are written to a .params file beside it"
            )
    return EMITTERS[form](graph, saved)


def check_target(output: str, form: str, inputs: Sequence[str | None]) -> None:
    """Refuse a file that cannot be written, or that is one of the inputs.

    Raises:
        UsageError: it is so.
    """
    if output == "-":
        usage("-o: name a file; '-' is stdout, which this verb has for other things")
    path = Path(output)
    if path.is_dir():
        usage(f"-o: {output!r} is a folder")
    folder = (_followed(path) if path.is_symlink() else path).parent
    if not folder.is_dir():
        usage(f"-o: there is no folder {str(folder)!r}")
    targets = [path, parameters_path(path)] if form == "json" else [path]
    if len({*map(_followed, targets)}) < len(targets):
        usage(f"-o: {output!r} is where the parameters go; name the graph's file *.json")
    for given in inputs:
        for target in targets:
            if given and _is_same(target, Path(given)):
                usage(f"-o: {output!r} would overwrite the input {given!r}; choose another name")


def _is_same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def parameters_path(path: Path) -> Path:
    """``x-0000.params`` for ``x-symbol.json``, as MXNet pairs them; else the suffix changes."""
    if path.name.endswith("-symbol.json"):
        return path.with_name(path.name.removesuffix("-symbol.json") + "-0000.params")
    return path.with_suffix(".params")


#: What writes a draft of each file.
Writers = dict[Path, Callable[[Path], object]]


def is_of_numpy(graph: Graph) -> bool:
    """Whether a model is one of ``mx.np``: as it was read, as passes leave classic operators."""
    return any(node.op.startswith(_NUMPY) or any(map(is_of_numpy, node.graphs)) for node in graph)


class Saved(NamedTuple):
    """Files that were written, and what to say of them.

    They serve data of the graph's sizes alone if they are ``sized``. ``arguments`` are names of
    states that no operator is left to write, which MXNet takes for arguments.
    """

    paths: list[Path]
    sized: bool = False
    arguments: tuple[str, ...] = ()


def save(
    graph: Graph,
    output: str,
    form: str,
    weights: Mapping[str, np.ndarray[Any, Any]],
    *,
    frozen: bool = False,
    others: Sequence[Graph] = (),
    opens: bool = True,
) -> Saved:
    """Write a graph, and beside JSON the tensors it needs.

    Args:
        graph: what to write.
        output: the file's name.
        form: a key of ``EMITTERS``.
        weights: parameters to save with Symbol JSON, by name; those no longer read are left out.
        frozen: with Symbol JSON, compute what depends on the weights alone.
        others: the graph for data of other sizes. Where they differ only in what MXNet can find
            out, as in the first states of recurrences, Symbol JSON leaves that to it.
        opens: whether an extent of 0 is one that MXNet infers; see :func:`is_of_numpy`.
    """
    from graphopt.cli.freezing import computed_once

    path = Path(output)
    writers: Writers = {}
    sized, arguments = False, tuple[str, ...]()
    if form == "json":
        compute = computed_once if frozen and weights else lambda *both: both
        graph, arrays = compute(graph, weights)
        tensors = _tensors(graph)
        saved = {*tensors, *arrays}
        if others:  # with parameters of the same shapes
            saved |= {node.name for node in graph.inputs if node.op != DATA}
        text = emit(graph, form, saved=saved)
        both = [(graph, text)]
        for other in others:
            beside, theirs = compute(other, weights)
            if not (_are_equal(tensors, _tensors(beside)) and _are_equal(arrays, theirs)):
                sized = True
                break
            both.append((beside, emit(beside, form, saved=saved)))
        found = None if sized else _of_all(both, opens=opens)
        text, sized = found or text, found is None
        writers = _tensor_writers(graph, path, arrays)
        arguments = _as_arguments(graph, text, arrays)
    else:
        text = emit(graph, form)
    writers = {path: lambda draft: draft.write_text(text + "\n", encoding="utf-8"), **writers}
    write_files(writers)
    return Saved([*writers], sized, arguments)


def _as_arguments(graph: Graph, text: str, saved: Container[str]) -> tuple[str, ...]:
    """States in a Symbol's JSON that are none to MXNet, and are in no file beside it."""
    from graphopt.backend.symbol import first_line
    from graphopt.compat import import_mxnet

    mx = import_mxnet()
    states = {node.name for node in graph.role(AUX)}
    try:
        found = mx.sym.load_json(text).list_arguments() if states else ()
    except mx.MXNetError as error:
        raise GraphError(f"MXNet does not accept the result: {first_line(error)}") from None
    return tuple(name for name in found if name in states and name not in saved)


def _are_equal(
    arrays: Mapping[str, np.ndarray[Any, Any]], others: Mapping[str, np.ndarray[Any, Any]]
) -> bool:
    import numpy as np

    return arrays.keys() == others.keys() and all(
        array is others[name]
        or np.array_equal(array, others[name], equal_nan=array.dtype.kind in "fc")
        for name, array in arrays.items()
    )


def _of_all(sized: Sequence[tuple[Graph, str]], *, opens: bool) -> str | None:
    """What serves the sizes of all graphs, of which there are texts; ``None`` if nothing does."""
    from graphopt.backend.documents import as_text, infers, of_two_sizes

    (_, text), *others = sized
    own = json.loads(text)
    found: dict[str, Any] | None = own
    documents = [own, *(json.loads(other) for _, other in others)]
    for document in documents[1:]:
        found = found and of_two_sizes(found, document, opens=opens)
    if found is None:
        return None
    if found == own:
        return text
    graphs = (graph for graph, _ in sized)
    are_inferred = all(infers(found, _shapes(g), d) for g, d in zip(graphs, documents, strict=True))
    return as_text(found) if are_inferred else None


def _shapes(graph: Graph) -> Shapes:
    return {n.name: tuple(e or 0 for e in n.type.shape or ()) for n in graph.inputs}


def _tensors(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    from graphopt.backend.symbol import constants

    return constants(graph)


def _tensor_writers(
    graph: Graph, output: Path, weights: Mapping[str, np.ndarray[Any, Any]]
) -> Writers:
    from graphopt.cli.parameters import write_parameters

    returned = {graph[value.node].name for value in graph.outputs}
    read = returned | {node.name for node in graph.inputs if graph.node_users(node.id)}
    arrays = _tensors(graph) | {name: a for name, a in weights.items() if name in read}
    if not arrays:
        return {}
    if _is_stream(output):
        usage(
            f"-o: the result has {len(arrays)} tensors, which Symbol JSON cannot hold, and no"
            f" .params file can lie beside {str(output)!r}; name a file"
        )
    states = frozenset(node.name for node in graph.role("aux"))
    return {parameters_path(output): lambda draft: write_parameters(draft, arrays, states)}


def write_files(writers: Writers) -> None:
    """Write files that appear together, whole, or not at all.

    Where a path is a link, what it leads to is replaced; a device or a pipe is written to.

    Args:
        writers: what writes a draft of each.

    Raises:
        GraphoptError: one cannot be written.
    """
    with ExitStack() as drafts:
        for path, write in writers.items():
            draft = drafts.enter_context(_replacing(path))
            with _naming(path):
                write(draft)
                _flush(draft)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write that becomes ``path`` when the block ends well, and vanishes otherwise."""
    if _is_stream(path):
        with tempfile.TemporaryDirectory(prefix="graphopt-") as folder:
            draft = Path(folder) / "draft"
            yield draft
            with _naming(path), draft.open("rb") as made, path.open("wb") as stream:
                shutil.copyfileobj(made, stream)
        return
    target = _followed(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield draft
        with _naming(path):
            draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of the system name the file; those of a full disk name none."""
    try:
        yield
    except OSError as error:
        raise GraphoptError(f"cannot write {str(path)!r}: {error.strerror}") from None


def _flush(path: Path) -> None:
    """Have the system write a file, which some disks refuse as late as that."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def _is_stream(path: Path) -> bool:
    """Whether there is something that no file can take the place of: a device, a pipe.

    Links in ``/dev/fd`` lead to pipes that have no name.
    """
    return path.exists() and not _followed(path).is_file()


def _followed(path: Path) -> Path:
    return Path(os.path.realpath(path))  # as `resolve`, which raises where links go in a circle
