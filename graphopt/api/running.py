"""``graphopt.run``: a pipeline over a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from graphopt.backend.fitting import require_known, require_mapping
from graphopt.errors import GraphoptError, InputError, PassError
from graphopt.ir.graph import Graph
from graphopt.passes import registry
from graphopt.pipeline.base import Mode, Pass, Settings, Target
from graphopt.pipeline.instruments import CheckNumerics, Instrument
from graphopt.pipeline.manager import Result, run_passes
from graphopt.pipeline.spec import build

if TYPE_CHECKING:
    import numpy as np

MODES: Final = ("inference", "training")
CHECKS: Final = (False, True, "mxnet", "reference")
FLAGS: Final = (True, False)
#: MXNet's kinds of contexts.
DEVICES: Final = ("cpu", "gpu", "cpu_pinned", "cpu_shared")


def run(
    graph: Graph,
    pipeline: str | Iterable[Pass | str] = "default",
    *,
    mode: Mode = "inference",
    frozen: bool | None = None,
    precise: bool = False,
    strict: bool = False,
    device: str = "cpu",
    plans_memory: bool = False,
    integers_learn: bool = False,
    check: bool | Literal["mxnet", "reference"] = False,
    feeds: Mapping[str, np.ndarray[Any, Any]] | None = None,
    instruments: Sequence[Instrument] = (),
) -> Result:
    """Run passes over a graph, which stays as it is.

    Args:
        graph: what to optimize.
        pipeline: text such as ``"dce,cse"``, the name of a pipeline, or passes.
        mode: ``training`` keeps gradients exact; ``inference`` keeps outputs.
        frozen: whether parameters never change; default: in inference, yes.
        precise: no pass may round differently.
        strict: raise where a pass fails, instead of rolling it back and going on.
        device: ``cpu`` or ``gpu``, or another of MXNet's: where the graph will run.
        plans_memory: whether what operators allocate for themselves counts.
        integers_learn: whether gradients of integer inputs are asked for.
        check: run the graph after every change and compare it with the original: in MXNet
            (``True`` or ``"mxnet"``; in training mode gradients too) or by the slow numpy
            interpreter (``"reference"``; outputs only, and only operators it knows).
        feeds: values for the check, by input name; drawn at random where absent.
        instruments: more instruments around every pass.

    Returns:
        The new graph, a receipt per pass, and remarks.

    Raises:
        ParseError: the pipeline's text is malformed or names something unknown.
        GraphError: the graph is malformed.
        InputError: ``graph`` is no Graph, an option has no such value, or ``feeds`` names what is
            no input or has what is no array; or a pass failed, and the types of the graph given
            contradict: the message names the node.
        PassError: in strict mode, a pass failed.
    """
    from graphopt.backend.target import MXNetTarget

    require_graph(graph, "run")
    _check_option("mode", mode, MODES)
    _check_option("frozen", frozen, (None, *FLAGS))
    _check_option("precise", precise, FLAGS)
    _check_option("strict", strict, FLAGS)
    _check_option("device", device, DEVICES)
    _check_option("plans_memory", plans_memory, FLAGS)
    _check_option("integers_learn", integers_learn, FLAGS)
    _check_option("check", check, CHECKS)
    _check_feeds(graph, feeds or {})
    around = _listed(instruments)
    passes = build(pipeline, registry)
    frozen = mode == "inference" if frozen is None else frozen
    settings = Settings(mode, frozen, precise, strict, device, plans_memory, integers_learn)
    if check:
        from graphopt.backend.calibrate import calibrated_feeds

        values = {**calibrated_feeds(graph), **(feeds or {})}
        evaluate = _by_reference if check == "reference" else None
        around.append(CheckNumerics(values, evaluate=evaluate))
    target = MXNetTarget()
    try:
        result = run_passes(graph, passes, settings, target, around)
    except PassError:
        _check_types(graph, target)
        raise
    if any(receipt.status == "rolled back" for receipt in result.receipts):
        _check_types(graph, target)
    return result


def _check_option(option: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise InputError(f"{option} {value!r} is none of {', '.join(map(str, known))}")


def _check_feeds(graph: Graph, feeds: Mapping[str, object]) -> None:
    require_mapping(feeds, "feeds")
    require_known(feeds, [node.name for node in graph.inputs], "the graph")
    for name, value in feeds.items():
        if not hasattr(value, "dtype"):
            kind = type(value).__name__
            raise InputError(f"the feed of {name!r} is a {kind}: give an array of numpy")


def _listed(instruments: object) -> list[Instrument]:
    given: list[Any] = list(instruments) if isinstance(instruments, Iterable) else [instruments]
    for each in given:
        if not isinstance(each, Instrument):
            raise InputError(f"instruments: {each!r} is none: give Instruments, in a list")
    return given


def _check_types(graph: Graph, target: Target) -> None:
    """Raise if it is the graph that is wrong, not the passes that failed on it.

    Raises:
        InputError: its types contradict. MXNet may see that only when it starts from the types of
            all inputs, some of which it has inferred itself.
    """
    try:
        target.infer_types(graph)
    except InputError:
        raise
    except GraphoptError:
        return  # MXNet knows no such graph: nothing is said of its types


def require_graph(graph: object, taker: str) -> None:
    """Refuse what is no Graph.

    Raises:
        InputError: a Block or Symbol, say, was not lifted.
    """
    if not isinstance(graph, Graph):
        kind = type(graph).__name__
        raise InputError(f"{taker}() takes a Graph, not a {kind}: graphopt.lift() makes one")


def _by_reference(
    graph: Graph, feeds: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    from graphopt.backend import reference

    return {f"output{i}": array for i, array in enumerate(reference.run(graph, feeds))}
