"""The engines that can run what was lowered, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphopt.analysis.effects import has_foreign_operators, may_draw
from graphopt.backend.biases import with_biases_that_learn
from graphopt.backend.caller import CallerEngine, LearningEngine
from graphopt.backend.choice import (
    AT_ONCE,
    CACHED_OP,
    CACHED_OP_ONEDNN,
    CALLER,
    CONVOLUTION_KERNELS,
    EXACT_CONVOLUTIONS,
    EXECUTOR_ONEDNN,
    KERNELS,
    PRODUCT_KERNELS,
    STEP,
    Choice,
)
from graphopt.backend.convolutions import (
    has_convolutions,
    has_large_tiles,
    with_packed,
    with_small_tiles,
)
from graphopt.backend.engines import CachedOpEngine, Engine, ExecutorEngine
from graphopt.backend.infer import LOOPS, VALUE_SHAPED, has_loops, shape_spoilers
from graphopt.backend.keeping import keeps
from graphopt.backend.kept import Kept
from graphopt.backend.onednn import guard, may_rewrite, prepared_once, rewritten_symbol
from graphopt.backend.passing import hands_on_gradients
from graphopt.backend.pools import Pools
from graphopt.backend.products import has_products, with_packed_products
from graphopt.backend.recompute import StepMemory, with_distinct_outputs
from graphopt.backend.small import (
    in_kernels,
    learns_at_once,
    learns_by_caller,
    runs_by_caller,
)
from graphopt.backend.step import StepEngine
from graphopt.backend.symbol import to_symbol
from graphopt.backend.unfuse import follows_anchor, has_plain_form, is_fused, unfuse
from graphopt.cached import cached_property
from graphopt.compat import import_mxnet
from graphopt.ir.graph import Graph
from graphopt.ir.halves import why_left
from graphopt.ir.node import CONVOLUTIONS, FUSED, PRODUCT, Node
from graphopt.ir.ops import canonical
from graphopt.kernels import bridge
from graphopt.kernels.bridge.versions import fit
from graphopt.kernels.library import prepare

#: Makes an engine.
Make = Callable[[], Engine]


def is_packed(_graph: Graph, node: Node) -> bool:
    """Whether a node reads parameters that are packed for it; for :func:`unfuse`."""
    return node.op in (CONVOLUTIONS, PRODUCT)


def has_packed(graph: Graph) -> bool:
    """Whether a graph has nodes that read packed parameters."""
    return has_convolutions(graph) or has_products(graph)


@dataclass(frozen=True)
class Form:
    """What engines are made of.

    Attributes:
        graph: what a call computes.
        symbol: the same for MXNet.
        with_products: the same with packed products, if there is such a form.
        data: names of the data inputs.
        ctx: MXNet context.
        frozen: parameters stay as they are.
        training: gradients are wanted.
        numpy: outputs are to be ``mx.np`` arrays.
        is_tuned: what runs may round otherwise than the graph, as what is faster here does.
        memory: bytes that a training step may take; with ``pools`` only.
        pools: memory of training steps on MXNet's executors.
        keeps_operators: operators of the user's are made once, not in each call.
        integers_learn: gradients of integer inputs are wanted, which kernels have none of.
    """

    graph: Graph
    symbol: Any
    with_products: Graph | None
    data: tuple[str, ...]
    ctx: Any
    frozen: bool
    training: bool
    numpy: bool
    is_tuned: bool
    memory: int | None
    pools: Pools | None
    keeps_operators: bool = False
    integers_learn: bool = False

    @property
    def packed(self) -> Graph:
        """What reads packed parameters, if anything does."""
        return self.graph if self.with_products is None else self.with_products

    @property
    def is_on_cpu(self) -> bool:
        """Whether it is bound to a CPU."""
        return bool(self.ctx.device_type == "cpu")

    @cached_property
    def keeps(self) -> bool:
        """Whether recurrences keep packed weights from call to call."""
        return any(map(keeps, self.graph))

    def typed(self, symbol: Any) -> Any:
        """The symbol as MXNet's numpy kind, where the outputs are to be ``mx.np`` arrays."""
        return symbol.as_np_ndarray() if self.numpy else symbol


def _has_no_elements(graph: Graph) -> bool:
    """Whether an input has none: MXNet's engines corrupt memory on these, but for its CachedOp."""
    return any(0 in (node.type.shape or ()) for node in graph.inputs)


def _is_shaped_by_values(graph: Graph) -> bool:
    """Whether outputs have shapes that are known once they were computed.

    MXNet's executors take these for empty.
    """
    if all(graph.type_of(value).is_static for value in graph.outputs):
        return False
    return any(canonical(node.op) in VALUE_SHAPED | LOOPS for node in graph)


class Candidates:
    """Makes engines.

    What they pack is noted in ``fixed`` and ``keepers``, what a step takes in ``choice``.
    """

    def __init__(self, form: Form, fixed: dict[str, Any], choice: Choice) -> None:
        """``fixed``: arrays that no call gives, by name."""
        self._form, self._fixed, self._choice = form, fixed, choice
        self._packed_for: dict[str, set[str]] = {}
        self.keepers: list[Kept] = []

    def forget(self, name: str, others: Iterable[Engine]) -> None:
        """Let go of what was packed for an engine, but for what some others read."""
        read = {given for engine in others for given in engine.inputs}
        for packed in self._packed_for.pop(name, set()) - read:
            self._fixed.pop(packed, None)
        left = {id(array) for array in self._fixed.values()}
        self.keepers = [keeper for keeper in self.keepers if id(keeper.array) in left]

    def by_name(self, arrays: Mapping[str, Any]) -> dict[str, Make]:
        """All that may run, on arrays as one call has them."""
        found = self._by_name(arrays)
        if self._form.training or not _is_shaped_by_values(self._form.graph):
            return found
        return {name: make for name, make in found.items() if name.startswith(CACHED_OP)}

    def _by_name(self, arrays: Mapping[str, Any]) -> dict[str, Make]:
        form, graph = self._form, self._form.graph
        has_kernels = is_fused(graph)
        if (why_left(graph) is not None or _has_no_elements(graph)) and form.pools is None:
            return {CACHED_OP: lambda: self._cached_op(form.symbol, CACHED_OP)}
        if form.pools is not None:
            name = STEP + KERNELS if has_kernels else STEP
            return {name: lambda: self._step(arrays, name)}
        if not form.frozen or not form.is_on_cpu:
            name = CACHED_OP + KERNELS if has_kernels else CACHED_OP
            small = self._learning() if form.is_on_cpu else {}
            if small:
                return small
            return {name: lambda: self._cached_op(form.symbol, name)}
        packed = form.packed
        if not has_packed(packed):
            return self._without_packed(graph, arrays) | self._small(graph, arrays)
        plain = unfuse(graph, is_packed) if has_packed(graph) else graph
        name = CONVOLUTION_KERNELS if has_convolutions(packed) else PRODUCT_KERNELS
        found = self._without_packed(plain, arrays)
        found[name] = lambda: self._packed(packed, arrays, name)
        found |= self._small(packed, arrays)
        if has_large_tiles(packed):
            found[EXACT_CONVOLUTIONS] = lambda: self._packed(
                with_small_tiles(packed), arrays, EXACT_CONVOLUTIONS
            )
        return found

    def _without_packed(self, graph: Graph, arrays: Mapping[str, Any]) -> dict[str, Make]:
        if not is_fused(graph):
            return self._plain(graph, arrays)
        name = CACHED_OP + KERNELS
        if not has_plain_form(graph):
            # Unrolled it would take longer to plan than it is worth, and lengths have no form.
            return {name: lambda: self._cached_op(self._symbol_of(graph), name)}
        # Kernels for all but activations that oneDNN computes with the product before them.
        mixed, plain = unfuse(graph, follows_anchor), unfuse(graph)
        others = self._plain(plain, arrays)
        if not any(node.op == "Convolution" for node in plain):
            # Then activations are all that oneDNN's subgraphs fuse, and `mixed` has those.
            others = {CACHED_OP: others[CACHED_OP]}
        others[name] = lambda: self._cached_op(self._symbol_of(graph), name)
        if not may_rewrite(mixed):
            return others
        return others | {
            EXECUTOR_ONEDNN + KERNELS: lambda: self._executor(
                mixed, arrays, EXECUTOR_ONEDNN + KERNELS
            ),
        }

    def _plain(self, graph: Graph, arrays: Mapping[str, Any]) -> dict[str, Make]:
        found: dict[str, Make] = {
            CACHED_OP: lambda: self._cached_op(self._symbol_of(graph), CACHED_OP)
        }
        if not may_rewrite(graph):
            return found
        return found | {
            CACHED_OP_ONEDNN: lambda: self._cached_op(rewritten_symbol(graph), CACHED_OP_ONEDNN),
            EXECUTOR_ONEDNN: lambda: self._executor(graph, arrays, EXECUTOR_ONEDNN),
        }

    def _symbol_of(self, graph: Graph) -> Any:
        return self._form.symbol if graph is self._form.graph else to_symbol(graph)

    def _cached_op(self, symbol: Any, name: str) -> Engine:
        form = self._form
        shares_memory = not form.frozen and hands_on_gradients(form.graph)
        return CachedOpEngine(
            form.typed(symbol),
            form.data,
            name,
            is_static=not shares_memory and not shape_spoilers(form.graph),
            static_shape=self._prepares_operators() and not has_loops(form.graph),
            counts_writes=form.keeps,
            takes_views=name != CACHED_OP_ONEDNN,
        )

    def _prepares_operators(self) -> bool:
        if has_foreign_operators(self._form.graph):
            return self._form.keeps_operators
        # What is prepared draws from the generator of the thread that called first.
        return not self._form.training and not may_draw(self._form.graph, training=False)

    def _step(self, arrays: Mapping[str, Any], name: str) -> Engine:
        form = self._form
        assert form.pools is not None
        symbol = with_distinct_outputs(form.symbol)

        def planner(known: Mapping[str, Any], gradients: Mapping[str, Any]) -> tuple[Any, int]:
            learns = with_biases_that_learn(symbol, known, gradients) if form.is_on_cpu else symbol
            memory = StepMemory(form.graph, learns, known, gradients, form.ctx)
            fitted = memory.fit(form.memory)
            self._choice.memory = str(fitted)
            return fitted.symbol, fitted.setting.match

        engine = StepEngine(
            symbol,
            form.data,
            form.ctx,
            form.pools,
            name,
            planner=planner,
            made=set(self._fixed),
            numpy=form.numpy,
            binds_each_call=has_foreign_operators(form.graph) and not form.keeps_operators,
        )
        engine.plan([arrays[name] for name in engine.inputs])
        return engine

    def _executor(self, graph: Graph, arrays: Mapping[str, Any], name: str) -> Engine:
        symbol = self._form.typed(to_symbol(guard(graph)))
        # Its own where nobody is to write or to bind another executor, as that for the next size.
        apart = prepared_once(graph).difference(self._form.data)
        values = [
            arrays[name].copy() if name in apart else arrays[name] for name in symbol.list_inputs()
        ]
        form, as_is = self._form, not may_rewrite(graph)
        draws = may_draw(graph, training=False)
        return ExecutorEngine(symbol, values, form.data, form.ctx, name, as_is=as_is, draws=draws)

    def _packed(self, graph: Graph, arrays: Mapping[str, Any], name: str) -> Engine:
        ctx = self._form.ctx
        packed, params, keepers = with_packed(graph, arrays, ctx)
        self.keepers += keepers
        self._note(name, params)
        packed, every = self._with_products(packed, {**arrays, **params}, name)
        return self._executor(packed, every, name)

    def _small(self, graph: Graph, arrays: Mapping[str, Any]) -> dict[str, Make]:
        """What the calling thread runs, where it may."""
        if self._form.is_tuned:
            graph = in_kernels(graph)
        if not runs_by_caller(graph) or bridge.why_not(import_mxnet()) is not None:
            return {}
        return {CALLER: lambda: self._by_caller(graph, arrays)}

    def _learning(self) -> dict[str, Make]:
        """What is one operation of a graph that is not frozen, where it may be."""
        form = self._form
        if form.integers_learn:
            return {}
        graph = in_kernels(form.graph, learns=True) if form.is_tuned else form.graph
        is_small = learns_by_caller(graph, exact=not form.is_tuned)
        is_one = is_small or learns_at_once(graph, exact=not form.is_tuned)
        if not is_one or not fit(import_mxnet()):
            return {}
        specs = (str(node.attrs["spec"]) for node in graph if node.op == FUSED)
        prepare(specs, gradients=form.training)
        name = CALLER if is_small else AT_ONCE
        return {name: lambda: LearningEngine(graph, name, numpy=form.numpy, is_small=is_small)}

    def _by_caller(self, graph: Graph, arrays: Mapping[str, Any]) -> Engine:
        form = self._form
        packed, every = self._with_products(graph, arrays, CALLER)
        return CallerEngine(packed, every, form.data, form.ctx, CALLER, numpy=form.numpy)

    def _with_products(
        self, graph: Graph, arrays: Mapping[str, Any], name: str
    ) -> tuple[Graph, dict[str, Any]]:
        """The graph with packed weights of products, and all arrays that it reads."""
        packed, weights, keepers = with_packed_products(graph, arrays, self._form.ctx)
        self.keepers += keepers
        self._note(name, weights)
        return packed, {**arrays, **weights}

    def _note(self, name: str, packed: Mapping[str, Any]) -> None:
        self._fixed.update(packed)
        self._packed_for.setdefault(name, set()).update(packed)
