"""The memory of a net's training steps: on each context one, of the largest shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphopt.backend.step import Pools
from graphopt.nn.config import check_shapes, largest_arrays


class ContextPools:
    """Which memory the training steps of one net share.

    MXNet shares memory on one device only, so that each context has pools of its own.
    """

    def __init__(self, limits: Mapping[str, tuple[int, ...]] | None) -> None:
        """Nothing is taken yet; ``limits`` are ``max_shapes``."""
        self._limits = dict(limits or {})
        self._pools: dict[Any, Pools] = {}

    def pools(self, ctx: Any) -> Pools | None:
        """What steps on a context run in; None before :meth:`admit`."""
        return self._pools.get(ctx)

    def admit(self, arrays: Mapping[str, Any], ctx: Any) -> dict[str, Any] | None:
        """Let inputs of a new shape in.

        Args:
            arrays: inputs of the step, by name.
            ctx: where it is to run.

        Returns:
            The inputs to reserve memory for before anything runs on that context; None where that
            was done, or where there are no largest shapes.

        Raises:
            InputError: an input is larger than ``max_shapes`` allows, or a name there is unknown.
        """
        check_shapes(self._limits, {name: array.shape for name, array in arrays.items()})
        if ctx in self._pools:
            return None
        self._pools[ctx] = Pools()
        return largest_arrays(self._limits, arrays) if self._limits else None

    def forget(self, ctx: Any) -> None:
        """Undo :meth:`admit`: the next step is to be refused as well, not to run unreserved."""
        del self._pools[ctx]
