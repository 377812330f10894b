"""The memory of a net's training steps: on each context one, of the largest shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.backend.pools import Pools
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError, InputError, MissingDependencyError
from graphopt.ir.types import dtype_name
from graphopt.kernels import bridge
from graphopt.nn.config import Config, check_shapes, largest_arrays

#: Of each input, by name.
Dtypes = tuple[tuple[str, str], ...]


class ContextPools:
    """Which memory the training steps of one net share.

    MXNet shares memory on one device only, so that each context has pools of its own. The largest
    step of each combination of dtypes is reserved: none takes what it takes by that of another.
    """

    def __init__(self, config: Config) -> None:
        """Nothing is taken yet."""
        self._limits = dict(config.max_shapes or {})
        self._labels, self._called = config.labels, config.called
        self._pools: dict[Any, Pools] = {}
        self._reserved: dict[Any, set[Dtypes]] = {}

    def pools(self, ctx: Any) -> Pools | None:
        """What steps on a context run in; None before :meth:`admit`."""
        return self._pools.get(ctx)

    def admit(self, arrays: Mapping[str, Any], ctx: Any) -> dict[str, Any] | None:
        """Let inputs of a new shape in.

        Args:
            arrays: inputs of the step, by name.
            ctx: where it is to run.

        Returns:
            The inputs to reserve memory for before anything runs on that context with such dtypes;
            None where that was done, or where there are no largest shapes.

        Raises:
            InputError: an input is larger than ``max_shapes`` allows, or a name there is unknown.
            MissingDependencyError: the bridge, which holds the memory, cannot be built or loaded.
        """
        shapes = {name: array.shape for name, array in arrays.items()}
        check_shapes(self._limits, shapes, self._called)
        if ctx not in self._pools:
            self._pools[ctx] = _pools()
        if not self._limits or _dtypes(arrays) in self._reserved.get(ctx, ()):
            return None
        self._reserved.setdefault(ctx, set()).add(_dtypes(arrays))
        return largest_arrays(self._limits, arrays, self._labels)

    def forget(self, arrays: Mapping[str, Any], ctx: Any) -> None:
        """Undo :meth:`admit`: the next step is to be refused as well, not to run unreserved."""
        self._reserved[ctx].remove(_dtypes(arrays))

    def explained(self, error: InputError, arrays: Mapping[str, Any]) -> InputError:
        """The error, with the inputs that have no largest shape, as these may be its reason."""
        others = {n: tuple(a.shape) for n, a in arrays.items() if n not in self._limits}
        if isinstance(error, BudgetError) or not others:
            return error
        told = {self._called.get(name, name): shape for name, shape in others.items()}
        listed = ", ".join(f"{name!r} ({shape})" for name, shape in told.items())
        if others.keys() <= {*self._labels}:
            return InputError(
                f"no step can be made of max_shapes: {error}; labels have the extents of this call"
                f" there but for those that they share with the data: if others of {listed} vary,"
                f" give the largest to train_step(max_shapes=...)"
            )
        return InputError(
            f"no step can be made of max_shapes: {error}; inputs that it leaves out have the shape"
            f" of this call there: if that of {listed} varies, too, give the largest"
        )


def _pools() -> Pools:
    why = bridge.why_not(import_mxnet())
    if why is not None:
        raise MissingDependencyError(
            f"the memory of training steps cannot be bounded here (memory=, max_shapes=): {why}"
        )
    return Pools()


def _dtypes(arrays: Mapping[str, Any]) -> Dtypes:
    return tuple((name, dtype_name(array.dtype)) for name, array in arrays.items())
