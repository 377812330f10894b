"""What a graph reads besides data: parameters, constants, and what is computed of them once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from graphopt.backend.engines import CachedOpEngine
from graphopt.backend.fitting import as_parameter, check_parameters, require
from graphopt.backend.freeze import Frozen, freeze, with_fills
from graphopt.backend.kept import Kept
from graphopt.backend.late import wait_for
from graphopt.backend.symbol import constants, to_symbol
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph


class FixedArrays:
    """Arrays that no call gives, by name.

    Attributes:
        made: those that are not the user's: constants, what was computed beforehand, and what
            engines packed. What is missing of the second kind is computed again when asked for.
    """

    def __init__(self, params: Mapping[str, Any], ctx: Any) -> None:
        """The user's parameters, which are shared."""
        self._params, self._ctx = dict(params), ctx
        self._once: list[Frozen] = []  # what is computed from parameters beforehand
        self._keepers: list[Kept] = []
        self.made: dict[str, Any] = {}

    @property
    def names(self) -> set[str]:
        """Of all arrays, those that were let go of too."""
        return {*self._params, *self.made} | self.computed_once

    @property
    def computed_once(self) -> set[str]:
        """Names of what is computed from parameters beforehand."""
        return {name for split in self._once for name in split.names}

    def check(self, graph: Graph) -> None:
        """Raises InputError where a parameter is missing or is not as the graph has it."""
        check_parameters(graph, self._params)

    def replace(self, params: Mapping[str, Any], graph: Graph) -> None:
        """Go on with other arrays for (some) parameters; raises InputError where they do not fit.

        What was computed of the others stays as it is.
        """
        self._params |= params
        self.check(graph)

    def add_constants(self, graphs: Iterable[Graph]) -> None:
        """Constants of some graphs, as arrays where they are to be read."""
        mx = import_mxnet()
        for graph in graphs:
            for name, value in constants(graph).items():
                if name not in self.made:
                    self.made[name] = mx.nd.array(value, ctx=self._ctx, dtype=value.dtype)

    def freeze(self, graph: Graph) -> Graph:
        """The rest of a graph, once what no data reaches is computed."""
        split = freeze(graph, self.names)
        if split.once is not None:
            self._once.append(split)
            self.made |= self._computed(split)
        return split.per_call

    def with_fills(self, graph: Graph) -> Graph:
        """What is left of a graph, with fills in place of arrays that were filled beforehand."""
        return with_fills(graph, self._once)

    def value(self, name: str) -> Any:
        """The array of that name; ``None`` for data."""
        for known in (self.made, self._params):
            if name in known:
                return known[name]
        for split in self._once:
            if name in split.names:  # it was let go of
                self.made |= self._computed(split)
                return self.made[name]
        return None

    def values(self, names: Iterable[str]) -> list[Any]:
        """The arrays of these names; ``None`` in place of data."""
        return [self.value(name) for name in names]

    def let_go(self, read: Collection[str], keepers: Sequence[Kept]) -> None:
        """Keep no made array but those of some names, and of the keepers only theirs."""
        self.made = {name: array for name, array in self.made.items() if name in read}
        kept = {id(array) for array in self.made.values()}
        self._keepers = [keeper for keeper in keepers if id(keeper.array) in kept]

    def _computed(self, split: Frozen) -> dict[str, Any]:
        assert split.once is not None
        engine = CachedOpEngine(to_symbol(split.once), ())
        require(set(engine.inputs), self.names)
        with import_mxnet().autograd.pause(train_mode=False):
            found = engine(self.values(engine.inputs))
        wait_for(found)
        return dict(zip(split.names, found, strict=True))


def as_arrays(graph: Graph, params: Mapping[str, Any], ctx: Any) -> dict[str, Any]:
    """Values of parameters as dense NDArrays, of the graph's dtypes; those that are stay as is.

    Raises:
        InputError: a sparse one has a gradient.
    """
    dtypes = {node.name: node.type.dtype for node in graph.inputs}
    return {
        name: as_parameter(name, value, ctx, dtypes.get(name)) for name, value in params.items()
    }
