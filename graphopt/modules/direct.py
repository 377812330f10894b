"""Engines that run on an executor's arrays, forward and backward, without autograd."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from graphopt.backend.bound import BoundEngine
from graphopt.backend.caller import LearningEngine
from graphopt.backend.late import LateError
from graphopt.backend.lower import Lowered
from graphopt.backend.small import may_learn
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.kernels.waiting import wait_for_all
from graphopt.modules.group import Group
from graphopt.modules.prepared import PreparedStep, prepared
from graphopt.nn.built import Built
from graphopt.nn.following import Following

#: Calls of each that are timed.
_ROUNDS: Final = 8
#: Of what was compiled, whether to infer without it, by whether parameters were computed in.
_decided: weakref.WeakKeyDictionary[Following, dict[bool, bool]] = weakref.WeakKeyDictionary()


def training(
    lowered: Lowered,
    data: Mapping[str, Any],
    gradients: Mapping[str, Any],
    grad_req: Mapping[str, str],
    group: Group,
    *,
    keeps_operators: bool = False,
) -> BoundEngine | PreparedStep | None:
    """What trains on arrays that stay the same, or ``None`` if that takes autograd.

    Args:
        lowered: what has run under autograd once, or is to keep operators.
        data: arrays that it was given, by name.
        gradients: an array, or None, by the name of an argument.
        grad_req: "write", "add" or "null" by name.
        group: of the executor whose arrays they are.
        keeps_operators: operators of the user's are to be made once.
    """
    learned = {
        name: gradient
        for name, gradient in gradients.items()
        if gradient is not None and grad_req.get(name, "null") != "null"
    }
    engine = lowered.bound[0]
    if len({id(array) for array in learned.values()}) < len(learned):
        return None  # two gradients would be written to one place
    if not isinstance(engine, LearningEngine):
        return prepared(lowered, data, learned, grad_req, group, keeps_operators=keeps_operators)
    if not {*learned} <= {*engine.inputs}:
        return None
    return _bound(lowered, data, learned, grad_req)


def inference(
    built: Built | Following, data: Mapping[str, Any], outputs: list[Any]
) -> BoundEngine | None:
    """What infers on arrays that stay the same, if that is faster than what was compiled.

    Parameters are read in every call then, rather than computed in. Of dense layers that is worth
    it where putting data in and taking results out would last longer than packing weights. That is
    found out once, for whichever arrays come first.

    Args:
        built: what was compiled.
        data: arrays that calls are given, by name.
        outputs: arrays for results.
    """
    if not isinstance(built, Following):
        return None
    decided, is_frozen = _decided.setdefault(built, {}), built.frozen
    if is_frozen not in decided:
        found = _faster(built, data, outputs)
        decided[is_frozen] = found is not None
        return found
    return _bound(built.living().lowered, data, {}, {}) if decided[is_frozen] else None


def _faster(built: Following, data: Mapping[str, Any], outputs: list[Any]) -> BoundEngine | None:
    """See :func:`inference`."""
    if not may_learn(built.result.graph):
        return None
    mx = import_mxnet()
    try:
        living = built.living()
        living.run(data)  # chooses an engine
        found = _bound(living.lowered, data, {}, {})
    except LateError:
        raise
    except (GraphoptError, mx.MXNetError):  # what was compiled goes on, as explain() tells
        return None
    if found is None:
        return None
    spare = [array.copy() for array in outputs]

    def directly() -> list[Any]:
        found.forward(spare, is_train=False)
        return spare

    plain, direct = _best_of(lambda: built.run(data), directly)
    return found if direct < plain else None


def _bound(
    lowered: Lowered,
    data: Mapping[str, Any],
    gradients: Mapping[str, Any],
    grad_req: Mapping[str, str],
) -> BoundEngine | None:
    engine, arrays = lowered.bound
    if not isinstance(engine, LearningEngine):
        return None
    given = [
        data[name] if array is None else array
        for name, array in zip(engine.inputs, arrays, strict=True)
    ]
    if any(array.stype != "default" for array in (*given, *gradients.values())):
        return None
    return BoundEngine(engine, given, gradients, grad_req)


def _best_of(*calls: Callable[[], list[Any]]) -> list[float]:
    """Seconds at best until the arrays that each returns are there, in turns."""
    wait_for_all(import_mxnet())
    best = [float("inf")] * len(calls)
    for _ in range(_ROUNDS):
        for at, call in enumerate(calls):
            start = time.perf_counter()
            for array in call():
                array.wait_to_read()
            best[at] = min(best[at], time.perf_counter() - start)
    return best
