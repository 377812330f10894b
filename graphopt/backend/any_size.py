"""A lowered graph run on data of other sizes than it was lowered for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from graphopt.backend.candidates import Form, has_packed, is_packed
from graphopt.backend.choice import CONVOLUTION_KERNELS, EXACT_CONVOLUTIONS, PRODUCT_KERNELS
from graphopt.backend.convolutions import as_packed, has_convolutions, with_small_tiles
from graphopt.backend.engines import CachedOpEngine, Engine, ExecutorEngine
from graphopt.backend.freeze import freeze
from graphopt.backend.keeping import forgetting, keeps, runs_keeping
from graphopt.backend.products import packs_products, with_packed_products
from graphopt.backend.resized import Resized
from graphopt.backend.stored import with_stored
from graphopt.backend.symbol import constants, to_symbol
from graphopt.backend.unfuse import unfuse
from graphopt.cached import cached_property
from graphopt.compat import import_mxnet
from graphopt.errors import GraphError
from graphopt.forking import lock
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, PARAM
from graphopt.ir.sizes import FILLS, Sized, Sizes
from graphopt.ir.types import Shape

#: What the engines are called.
FUSED_KERNELS: Final = "kernels"
REGIONS: Final = "regions of convolutions"
PACKED_PRODUCTS: Final = "kernels and packed products"
#: Sizes whose constants are kept, and whose regions of convolutions are.
_KEPT, _KEPT_REGIONS = 256, 64

#: An engine, and the arrays that it reads: ``None`` in place of data.
_Bound = tuple[CachedOpEngine, list[Any]]


class AtAnySize:
    """CachedOps that infer shapes at every call, of a graph as it is and with packed products.

    Kernels and packed weights have no sizes in them. What recurrences keep from call to call is for
    engines that are static, and kernels for GPUs are compiled for extents.
    """

    def __init__(
        self, graph: Graph, form: Form, chosen: Engine | None, value: Callable[[str], Any]
    ) -> None:
        """Make them.

        Args:
            graph: what was lowered.
            form: what to.
            chosen: what it runs on, once that is known.
            value: the array of a parameter or a constant.
        """
        self._graph, self._form, self._value = graph, form, value
        self._users = {node.name for node in graph.inputs if node.op in (PARAM, AUX)}
        self._lock = lock()
        self._kept: OrderedDict[tuple[Sized, Sizes], dict[str, Any]] = OrderedDict()
        self._engines: dict[str, _Bound] = {}
        self._regions: Resized | None = None
        self._by_size: OrderedDict[tuple[Shape, ...], _Bound] = OrderedDict()
        if not form.is_on_cpu or form.pools is not None:
            return
        self._engines[FUSED_KERNELS] = self._with_kernels()
        self._regions = self._regions_of(chosen)
        packed = self._with_packed_products(chosen)
        if packed is not None:
            self._engines[PACKED_PRODUCTS] = packed

    @property
    def names(self) -> list[str]:
        """Of the engines; that of regions is made anew for each size."""
        return [*self._engines, *([REGIONS] if self._regions else [])]

    def run(self, data: Mapping[str, Any], engine: str, sized: Sized, sizes: Sizes) -> list[Any]:
        """Run on NDArrays by name.

        Args:
            data: the arrays.
            engine: one of ``names``; the first of them where there is none of that name.
            sized: what follows the sizes.
            sizes: of the data.
        """
        known = self._engines
        # There may be others for parameters that were written to.
        run, bound = known[engine] if engine in known else next(iter(known.values()))
        if engine == REGIONS and self._regions is not None:
            run, bound = self._with_regions(self._regions, data)
        given = {**self._sized(sized, sizes), **data}
        arrays = {n: given.get(n, fixed) for n, fixed in zip(run.inputs, bound, strict=True)}
        if import_mxnet().autograd.is_recording():  # as in Lowered.run
            users = self._users | data.keys()
            arrays = {n: a if n in users else a.detach() for n, a in arrays.items()}
        return run([*arrays.values()])

    def _sized(self, sized: Sized, sizes: Sizes) -> dict[str, Any]:
        """Constants, and what is computed of them, for a size."""
        if not sized.constants:
            return {}
        with self._lock:
            found = self._kept.get((sized, sizes))
            if found is None:
                found = self._kept[sized, sizes] = self._made(sized, sizes)
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return found

    def _made(self, sized: Sized, sizes: Sizes) -> dict[str, Any]:
        made = {each.name: self._array(each.array(sizes)) for each in sized.constants}
        read = {name for engine, _ in self._engines.values() for name in engine.inputs}
        names = sorted(sized.computed & read)  # none of them where parameters are not computed in
        if not names:
            return made
        engine = self._once(names)
        arrays = [made[n] if n in made else self._fixed(n) for n in engine.inputs]
        with import_mxnet().autograd.pause(train_mode=False):
            computed = engine(arrays)
        return made | dict(zip(names, computed, strict=True))

    def _once(self, names: Sequence[str]) -> CachedOpEngine:
        """What computes such values from parameters, without sizes in it."""
        split = freeze(self._graph, constants(self._graph))
        outputs = dict(zip(split.names, split.once.outputs if split.once else (), strict=True))
        if split.once is None or not outputs.keys() >= set(names):
            raise GraphError(f"{', '.join(names)}: made of others that follow the sizes")
        once = split.once.copy()
        once.set_outputs([outputs[name] for name in names])
        return CachedOpEngine(to_symbol(_with_given_fills(once)), (), is_static=False)

    @cached_property
    def _constants(self) -> dict[str, np.ndarray[Any, Any]]:
        """Those of the graph as it was lowered, of which the engines read few."""
        return constants(self._graph) | _filled(self._graph)

    def _fixed(self, name: str) -> Any:
        found = self._constants.get(name)
        return self._value(name) if found is None else self._array(found)

    def _array(self, values: np.ndarray[Any, Any]) -> Any:
        return import_mxnet().nd.array(values, ctx=self._form.ctx, dtype=values.dtype)

    def _with_kernels(self) -> _Bound:
        form, graph = self._form, self._form.graph
        if has_packed(graph) or form.keeps:
            graph = forgetting(unfuse(graph, is_packed))
        fills = _filled(graph)
        symbol = form.symbol
        if fills or graph is not form.graph:
            graph = _with_given_fills(graph)
            symbol = to_symbol(with_stored(graph) if form.training else graph)
        bound = {name: self._array(array) for name, array in fills.items()}
        return self._bound(form.typed(symbol), FUSED_KERNELS, bound)

    def _with_packed_products(self, chosen: Engine | None) -> _Bound | None:
        form = self._form
        if isinstance(chosen, ExecutorEngine) and chosen.name == PRODUCT_KERNELS:
            if runs_keeping(chosen.symbol):
                return None
            return self._bound(chosen.symbol, PACKED_PRODUCTS, {})
        graph = form.with_products
        if chosen is not None or graph is None or has_convolutions(graph) or any(map(keeps, graph)):
            return None
        known = {node.name: self._value(node.name) for node in graph.inputs}
        packed, made, _ = with_packed_products(graph, known, form.ctx)
        return self._bound(form.typed(to_symbol(packed)), PACKED_PRODUCTS, made)

    def _regions_of(self, chosen: Engine | None) -> Resized | None:
        """What makes the graph with regions as the engine runs them, if it has any."""
        form = self._form
        if chosen is None or chosen.name not in (CONVOLUTION_KERNELS, EXACT_CONVOLUTIONS):
            return None
        if packs_products(form.packed):
            return None  # whose packed weights go by the number of rows
        is_exact = chosen.name == EXACT_CONVOLUTIONS
        return Resized(with_small_tiles(form.packed) if is_exact else form.packed)

    def _with_regions(self, regions: Resized, data: Mapping[str, Any]) -> _Bound:
        shapes = tuple(tuple(data[name].shape) for name in self._form.data)
        with self._lock:
            found = self._by_size.get(shapes)
            if found is None:
                sized = regions.graph(dict(zip(self._form.data, shapes, strict=True)))
                symbol = self._form.typed(to_symbol(as_packed(sized, self._value)))
                found = self._by_size[shapes] = self._bound(symbol, REGIONS, {})
                if len(self._by_size) > _KEPT_REGIONS:
                    self._by_size.popitem(last=False)
            self._by_size.move_to_end(shapes)
            return found

    def _bound(self, symbol: Any, name: str, known: Mapping[str, Any]) -> _Bound:
        engine = CachedOpEngine(symbol, self._form.data, name, is_static=False)
        return engine, [known[n] if n in known else self._value(n) for n in engine.inputs]


def _filled(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays that fills of a graph make, by the names of these."""
    found = {}
    for node in graph:
        if node.op in FILLS and not node.inputs:
            value = FILLS[node.op]
            number = float(node.attrs["value"]) if value is None else value
            shape = tuple(extent or 0 for extent in node.type.shape or ())
            found[node.name] = np.full(shape, number, node.type.dtype)
    return found


def _with_given_fills(graph: Graph) -> Graph:
    """A copy that reads what it filled in, under the same names."""
    copy = graph.copy()
    for node in graph:
        if node.op in FILLS and not node.inputs:
            given = copy.add_input(copy.unique_name(node.name), PARAM, node.type)
            copy.replace_uses(node.out(), given.out())
            copy.erase(node.id)
            copy.update(copy[given.id].but(name=node.name))
    return copy
