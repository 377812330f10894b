"""Graph -> something to call, on the fastest of MXNet's engines for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.backend.convolutions import has_convolutions, with_packed
from graphopt.backend.engines import CachedOpEngine, Engine, ExecutorEngine
from graphopt.backend.freeze import freeze
from graphopt.backend.inline import is_all_small, run_by_caller
from graphopt.backend.keeping import forgetting, keeping, keeps, runs_keeping, told
from graphopt.backend.measured import remember, remembered
from graphopt.backend.memory import keep_freed_memory
from graphopt.backend.onednn import guard, rewritten_symbol
from graphopt.backend.order import in_less_memory
from graphopt.backend.passing import hands_on_gradients, without_passed_inputs
from graphopt.backend.pools import Pools
from graphopt.backend.products import Packed, has_products, with_packed_products
from graphopt.backend.race import race
from graphopt.backend.recompute import StepMemory, with_distinct_outputs
from graphopt.backend.step import StepEngine
from graphopt.backend.stored import with_stored
from graphopt.backend.symbol import constants, first_line, to_symbol
from graphopt.backend.tuning import Tuned, tune_learning
from graphopt.backend.tuning import tune as tune_products
from graphopt.backend.unfuse import follows_anchor, has_plain_form, is_fused, unfuse
from graphopt.compat import import_mxnet
from graphopt.errors import BudgetError, GraphoptError, InputError
from graphopt.ir.fingerprint import fingerprint
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, CONVOLUTIONS, DATA, FUSED, PARAM, PRODUCT, Node
from graphopt.kernels.library import prepare
from graphopt.pipeline.instruments import compare

if TYPE_CHECKING:
    from graphopt.memory.memory_plan import MemoryPlan

#: Engine names as receipts show them.
CACHED_OP = "CachedOp"
CACHED_OP_ONEDNN = "CachedOp + oneDNN subgraphs"
EXECUTOR_ONEDNN = "executor + oneDNN subgraphs"
#: What engines are called that run graphopt's fused kernels.
KERNELS = " + kernels"
#: What runs convolutions in blocked layout of our own, and the rest on oneDNN.
CONVOLUTION_KERNELS = "executor + convolution kernels"
#: What runs dense layers over packed weights.
PRODUCT_KERNELS = "executor + packed products"
STEP = "executor for training"


def is_packed(_graph: Graph, node: Node) -> bool:
    """Whether a node reads parameters that are packed for it; for :func:`unfuse`."""
    return node.op in (CONVOLUTIONS, PRODUCT)


def has_packed(graph: Graph) -> bool:
    """Whether a graph has nodes that read packed parameters."""
    return has_convolutions(graph) or has_products(graph)


@dataclass
class Choice:
    """Which engine was picked, and what each candidate took (milliseconds a call, best of few).

    ``failed`` tells why candidates were not taken, ``tuning`` what measuring changed in the graph,
    ``is_remembered`` whether an earlier process measured it, ``memory`` what a training step takes
    where that was asked for, ``weights`` which of them are packed once and kept.
    """

    engine: str = ""
    measured_ms: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    tuning: list[str] = field(default_factory=list)
    is_remembered: bool = False
    memory: str = ""
    weights: str = ""


class Lowered:
    """A graph bound to parameters and a context, ready to be called.

    ``f(**inputs)`` takes one array per data input (NDArray or numpy) and returns a list of fresh
    NDArrays. The engine is chosen at the first call, by measuring.

    Attributes:
        choice: which engine runs, and the measured times.
    """

    def __init__(
        self,
        graph: Graph,
        params: Mapping[str, Any],
        ctx: Any = None,
        *,
        training: bool = False,
        frozen: bool = True,
        engine: str = "auto",
        numpy: bool = False,
        tune: bool = True,
        memory: int | None = None,
        pools: Pools | None = None,
    ) -> None:
        """Bind; see :func:`lower`."""
        self._memory, self._pools = memory, pools
        mx = import_mxnet()
        keep_freed_memory()
        self.graph = graph
        self.ctx = ctx or mx.cpu()
        self.training = training
        self.choice = Choice()
        self._wanted = engine
        self._frozen = frozen
        self._numpy = numpy
        self._params = dict(params)
        self._types = {node.name: node.type for node in graph.inputs}
        self._check_params(graph)
        self._fixed = self._as_arrays(constants(graph))
        self._with_products: Tuned | None = None  # what runs with packed products besides
        self._keepers: list[Packed] = []
        per_call = self._freeze(graph) if frozen else graph
        if frozen and self.ctx.device_type == "cpu":
            per_call = self._settle_products(per_call, is_tuned=tune)
        elif tune and self.ctx.device_type == "cpu":
            learning = tune_learning(per_call)
            per_call, self.choice.tuning = learning.graph, list(learning.told)
        per_call = without_passed_inputs(per_call) if training else self._with_kept(per_call)
        self._per_call, self._keeps = per_call, any(map(keeps, per_call))
        packed = self._with_products.graph if self._with_products else Graph("none")
        nodes = (*per_call, *packed)
        if self.ctx.device_type == "cpu":  # those for GPUs depend on extents
            specs = (str(node.attrs["spec"]) for node in nodes if node.op == FUSED)
            prepare(specs, gradients=training)
        for form in (per_call, packed):
            known = constants(form).items()
            self._fixed |= self._as_arrays({n: a for n, a in known if n not in self._fixed})
        form = with_stored(per_call, sized=pools is not None) if training else per_call
        self._symbol = to_symbol(form)
        self.data = tuple(node.name for node in per_call.role(DATA))
        self._inputs: list[str] = self._symbol.list_inputs()
        self._read = set(self._inputs)
        learned = {node.name for node in per_call.inputs if node.op in (PARAM, AUX)}
        _require(learned & self._read, self._known())
        self._engine: Engine | None = None
        self._bound: list[Any] = []
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **inputs: Any) -> list[Any]:
        """Run on data inputs, by position or by name.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype than the graph's.
        """
        arrays = dict(zip(self.data, args, strict=False)) | inputs
        _check_names(self.data, self._read, arrays, len(args))
        return self.run({n: self._array(n, a) for n, a in arrays.items()})

    def run(self, data: Mapping[str, Any]) -> list[Any]:
        """Run on NDArrays that are known to fit, by name."""
        if self._engine is None:
            with self._lock:
                self._engine = self._engine or self._choose(data)
        arrays = [
            data.get(n, fixed) for n, fixed in zip(self._engine.inputs, self._bound, strict=True)
        ]
        return self._engine(arrays)

    @property
    def symbol(self) -> Any:
        """The MXNet Symbol that runs, before engine-specific rewrites."""
        return self._symbol

    def exported(self, *, kernels: bool) -> Any:
        """The Symbol to save: with fused nodes, or with the MXNet operators they stand for."""
        if not kernels:
            return to_symbol(unfuse(self._per_call))
        # What is packed is so for one kind of processor, regions for one size of images too.
        if has_packed(self._per_call) or self._keeps:
            return to_symbol(forgetting(unfuse(self._per_call, is_packed)))
        return self._symbol

    def parameters(self) -> dict[str, Any]:
        """The arrays the symbol reads besides data: parameters, folded values, constants."""
        return {n: self._fixed_value(n) for n in self._inputs if n not in self.data}

    def reserve(self, data: Mapping[str, Any]) -> None:
        """Take the memory of a step on such inputs, for steps on smaller ones to share."""
        self.plan(data)
        assert isinstance(self._engine, StepEngine)
        self._engine.reserve([data.get(n, self._fixed_value(n)) for n in self._engine.inputs])

    def plan(self, data: Mapping[str, Any]) -> None:
        """Choose the engine for such inputs now; a training step is planned and not run.

        Raises:
            BudgetError: no step takes as little as was asked for.
        """
        with self._lock:
            self._engine = self._engine or self._choose(data)

    def memory_plan(self, **options: Any) -> MemoryPlan:
        """The memory plan of what runs; nothing is run.

        Of a step in planned memory, with what is computed again; see
        :meth:`graphopt.nn.optimized.Optimized.memory_plan`.
        """
        from graphopt.memory.memory_plan import plan

        if isinstance(self._engine, StepEngine):
            return self._engine.memory_plan(self._per_call, **options)
        if not self.training:
            return plan(self.graph, frozen=self._frozen, ctx=self.ctx, **options)
        wanted = {
            name: "write"
            for name in self._symbol.list_arguments()
            if name not in self.data and getattr(self._fixed_value(name), "grad", None) is not None
        }
        return plan(self._per_call, training=True, grad_req=wanted, ctx=self.ctx, **options)

    def step_plan(self) -> MemoryPlan | None:
        """The memory plan of a step in planned memory; None where that is not how it runs."""
        return self.memory_plan() if isinstance(self._engine, StepEngine) else None

    def release(self) -> None:
        """Hand back what a training step keeps in shared memory; there are no calls to come."""
        if isinstance(self._engine, StepEngine):
            self._engine.release()

    def rebind(self, params: Mapping[str, Any]) -> None:
        """Go on with other arrays for (some) parameters of a graph that is not frozen."""
        self._params |= params
        self._check_params(self.graph)
        if self._engine is not None:
            self._bound = [self._fixed_value(name) for name in self._engine.inputs]

    def _known(self) -> set[str]:
        return set(self._params) | set(self._fixed)

    def _as_arrays(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        mx = import_mxnet()
        return {n: mx.nd.array(a, ctx=self.ctx, dtype=a.dtype) for n, a in arrays.items()}

    def _freeze(self, graph: Graph) -> Graph:
        """The rest of a graph, once what no data reaches is computed."""
        split = freeze(graph, self._fixed)
        if split.once is not None:
            self._fixed |= dict(zip(split.names, self._compute(split.once), strict=True))
        return split.per_call

    def _settle_products(self, graph: Graph, *, is_tuned: bool) -> Graph:
        """The graph without packed products; keeps the form with them, if there is one."""
        found = None
        if has_products(graph):
            found = Tuned(graph)
            graph = unfuse(graph, lambda _graph, node: node.op == PRODUCT)
        if is_tuned:
            plain, packed = tune_products(graph)
            graph, found = self._freeze(plain.graph), packed or found
            self.choice.tuning = list(plain.told)
        if found is not None:
            self._with_products = Tuned(self._freeze(found.graph), found.told)
        return graph

    def _with_kept(self, graph: Graph) -> Graph:
        """The graph for inference, with recurrences that keep packed weights where that helps."""
        # An engine that is not static has no state from call to call.
        if self.ctx.device_type != "cpu" or not (self._frozen or not hands_on_gradients(graph)):
            return graph
        if self._with_products is not None:
            tuned = self._with_products
            self._with_products = Tuned(keeping(tuned.graph), tuned.told)
        return keeping(graph)

    def _compute(self, once: Graph) -> list[Any]:
        engine = CachedOpEngine(to_symbol(once), ())
        _require(set(engine.inputs), self._known())
        with import_mxnet().autograd.pause(train_mode=False):
            return engine([self._fixed_value(name) for name in engine.inputs])

    def _fixed_value(self, name: str) -> Any:
        """The array of a parameter or constant; ``None`` for data."""
        found = self._fixed.get(name)
        return self._params.get(name) if found is None else found

    def _check_params(self, graph: Graph) -> None:
        for node in graph.inputs:
            got, want = self._params.get(node.name), node.type
            if got is None or node.op == DATA or not graph.node_users(node.id):
                continue
            if want.shape is not None and not _fits(tuple(got.shape), want.shape):
                raise InputError(
                    f"parameter {node.name!r} has shape {tuple(got.shape)}, the graph needs"
                    f" {want.shape}"
                )
            dtype = np.dtype(got.dtype).name
            if want.dtype is not None and dtype != want.dtype:
                raise InputError(
                    f"parameter {node.name!r} is {dtype}, the graph needs {want.dtype}"
                )

    def _array(self, name: str, value: Any) -> Any:
        mx = import_mxnet()
        want = self._types[name]
        if not isinstance(value, mx.nd.NDArray):
            value = mx.nd.array(value, ctx=self.ctx, dtype=want.dtype or np.asarray(value).dtype)
        if want.shape is not None and not _fits(tuple(value.shape), want.shape):
            raise InputError(
                f"input {name!r} has shape {tuple(value.shape)}, the graph was lowered for"
                f" {want.shape}"
            )
        if want.dtype is not None and np.dtype(value.dtype).name != want.dtype:
            raise InputError(
                f"input {name!r} is {np.dtype(value.dtype).name}, the graph was lowered for"
                f" {want.dtype}"
            )
        return value

    def _choose(self, data: Mapping[str, Any]) -> Engine:
        names = {*self._inputs}
        if self._with_products is not None:
            names |= {node.name for node in self._with_products.graph if not node.inputs}
        arrays = {n: data[n] if n in data else self._fixed_value(n) for n in names}
        candidates = self._candidates(arrays)
        if self._wanted not in ("auto", *candidates):
            raise InputError(f"engine {self._wanted!r} is none of auto, {', '.join(candidates)}")
        if self._wanted != "auto":
            candidates = {self._wanted: candidates[self._wanted]}
        measured = self._remembered(candidates)
        if measured is not None:
            candidates = {measured: candidates[measured]}
        engines: dict[str, Engine] = {}
        feeds: dict[str, dict[str, Any]] = {}
        expected: dict[str, np.ndarray[Any, Any]] = {}
        for name, make in candidates.items():
            try:
                engine = make()
                if len(candidates) > 1:
                    known = {n: data.get(n, self._fixed_value(n)) for n in engine.inputs}
                    found = _run_once(engine, known)
                    expected = expected or found
                    # MXNet's oneDNN rewrites compute wrong values for some graphs.
                    compare(expected, found, where=name)
                    feeds[name] = known
                engines[name] = engine
            except BudgetError:
                raise
            except Exception as error:  # noqa: BLE001 - a candidate that fails is only not chosen
                self.choice.failed[name] = first_line(error)
        if feeds:
            self.choice.measured_ms = race(engines, feeds)
        if not engines:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.choice.failed.items())
            raise GraphoptError(f"MXNet cannot run graph {self.graph.name!r}: {reasons}")
        times = self.choice.measured_ms
        self.choice.engine = min(engines, key=lambda name: times.get(name, 0.0))
        if len(candidates) > 1:
            remember(self._key(candidates), {"engine": self.choice.engine, "measured_ms": times})
        chosen = engines.pop(self.choice.engine)
        engines.clear()  # before memory is counted
        # What was packed for engines that are not chosen.
        read = {*self._inputs, *chosen.inputs}
        self._fixed = {name: array for name, array in self._fixed.items() if name in read}
        kept = {id(array) for array in self._fixed.values()}
        self._keepers = [keeper for keeper in self._keepers if id(keeper.array) in kept]
        if self._keepers and self._with_products is not None:
            self.choice.tuning = list(self._with_products.told)
        self._with_products = None
        chosen = self._in_less_memory(chosen, arrays)
        kind = CachedOpEngine | ExecutorEngine
        if self._keeps and isinstance(chosen, kind) and runs_keeping(chosen.symbol):
            self.choice.weights = told(self._per_call)
        self._bound = [self._fixed_value(name) for name in chosen.inputs]
        return chosen

    def _in_less_memory(self, engine: Engine, arrays: Mapping[str, Any]) -> Engine:
        """The engine, with its operators in an order that takes less memory if one is found."""
        if self.training or not isinstance(engine, CachedOpEngine | ExecutorEngine):
            return engine
        if engine.name in (CONVOLUTION_KERNELS, PRODUCT_KERNELS):
            return engine  # regions share their memory already; packed nodes have no plain order
        parts = ("order", engine.name, *self._key(()))
        known = remembered(parts)
        if known is None:
            graph = unfuse(self._per_call, is_packed)
            found = in_less_memory(engine, graph, arrays, self.ctx)
            known = {"told": str(found or ""), "json": found.symbol.tojson() if found else ""}
            remember(parts, known)
        if not known["json"]:
            return engine
        self.choice.memory = known["told"]
        return engine.on(self._typed(import_mxnet().sym.load_json(known["json"])))

    def _key(self, candidates: Iterable[str]) -> tuple[str, ...]:
        """What the choice of an engine depends on, besides the machine."""
        packed = fingerprint(self._with_products.graph) if self._with_products else ""
        return ("engine", fingerprint(self._per_call), packed, str(self.ctx), *candidates)

    def _remembered(self, candidates: Mapping[str, object]) -> str | None:
        """The engine an earlier process chose, by comparing and timing, for an equal graph."""
        if len(candidates) < 2:
            return None
        known = remembered(self._key(candidates))
        if known is None or known["engine"] not in candidates:
            return None
        self.choice.measured_ms = dict(known["measured_ms"])
        self.choice.is_remembered = True
        return str(known["engine"])

    def _candidates(self, arrays: Mapping[str, Any]) -> dict[str, Callable[[], Engine]]:
        graph = self._per_call
        has_kernels = is_fused(graph)
        if self._pools is not None:
            name = STEP + KERNELS if has_kernels else STEP
            return {name: lambda: self._step(arrays, name)}
        if not self._frozen or self.ctx.device_type != "cpu":
            name = CACHED_OP + KERNELS if has_kernels else CACHED_OP
            if self.ctx.device_type == "cpu" and is_all_small(graph):
                symbol = run_by_caller(self._symbol)
                return {name: lambda: self._cached_op(symbol, name, is_run_by_caller=True)}
            return {name: lambda: self._cached_op(self._symbol, name)}
        packed = self._with_products.graph if self._with_products else graph
        if not has_packed(packed):
            return self._without_packed(graph, arrays)
        plain = unfuse(graph, is_packed) if has_packed(graph) else graph
        name = CONVOLUTION_KERNELS if has_convolutions(packed) else PRODUCT_KERNELS
        return self._without_packed(plain, arrays) | {
            name: lambda: self._packed(packed, arrays, name)
        }

    def _without_packed(
        self, graph: Graph, arrays: Mapping[str, Any]
    ) -> dict[str, Callable[[], Engine]]:
        if not is_fused(graph):
            return self._plain_candidates(graph, arrays)
        symbol = self._symbol if graph is self._per_call else to_symbol(graph)
        name = CACHED_OP + KERNELS
        if not has_plain_form(graph):
            # Unrolled it would take longer to plan than it is worth, and lengths have no form.
            return {name: lambda: self._cached_op(symbol, name)}
        # Kernels for all but activations that oneDNN computes with the product before them.
        mixed, plain = unfuse(graph, follows_anchor), unfuse(graph)
        others = self._plain_candidates(plain, arrays)
        if not any(node.op == "Convolution" for node in plain):
            # Then activations are all that oneDNN's subgraphs fuse, and `mixed` has those.
            others = {CACHED_OP: others[CACHED_OP]}
        return others | {
            name: lambda: self._cached_op(symbol, name),
            EXECUTOR_ONEDNN + KERNELS: lambda: self._executor(
                mixed, arrays, EXECUTOR_ONEDNN + KERNELS
            ),
        }

    def _plain_candidates(
        self, graph: Graph, arrays: Mapping[str, Any]
    ) -> dict[str, Callable[[], Engine]]:
        symbol = self._symbol if graph is self._per_call else to_symbol(graph)
        return {
            CACHED_OP: lambda: self._cached_op(symbol, CACHED_OP),
            CACHED_OP_ONEDNN: lambda: self._cached_op(rewritten_symbol(graph), CACHED_OP_ONEDNN),
            EXECUTOR_ONEDNN: lambda: self._executor(graph, arrays, EXECUTOR_ONEDNN),
        }

    def _cached_op(self, symbol: Any, name: str, *, is_run_by_caller: bool = False) -> Engine:
        is_static = self._frozen or not hands_on_gradients(self._per_call)
        return CachedOpEngine(
            self._typed(symbol),
            self.data,
            name,
            is_static=is_static and not is_run_by_caller,
            is_run_by_caller=is_run_by_caller,
            counts_writes=self._keeps,
        )

    def _step(self, arrays: Mapping[str, Any], name: str) -> Engine:
        assert self._pools is not None
        symbol = with_distinct_outputs(self._symbol)

        def planner(known: Mapping[str, Any], gradients: Mapping[str, Any]) -> tuple[Any, int]:
            memory = StepMemory(self._per_call, symbol, known, gradients, self.ctx)
            fitted = memory.fit(self._memory)
            self.choice.memory = str(fitted)
            return fitted.symbol, fitted.setting.match

        engine = StepEngine(
            symbol, self.data, self.ctx, self._pools, name, planner=planner, numpy=self._numpy
        )
        engine.plan([arrays[name] for name in engine.inputs])
        return engine

    def _executor(self, graph: Graph, arrays: Mapping[str, Any], name: str) -> Engine:
        symbol = self._typed(to_symbol(guard(graph)))
        values = [arrays[name] for name in symbol.list_inputs()]
        return ExecutorEngine(symbol, values, self.data, self.ctx, name)

    def _packed(self, graph: Graph, arrays: Mapping[str, Any], name: str) -> Engine:
        packed, params = with_packed(graph, arrays, self.ctx)
        packed, weights, self._keepers = with_packed_products(packed, arrays, self.ctx)
        params |= weights
        self._fixed |= params
        return self._executor(packed, {**arrays, **params}, name)

    def _typed(self, symbol: Any) -> Any:
        """The symbol as MXNet's numpy kind, where the outputs are to be ``mx.np`` arrays."""
        return symbol.as_np_ndarray() if self._numpy else symbol


def lower(
    graph: Graph,
    params: Mapping[str, Any] | None = None,
    ctx: Any = None,
    *,
    training: bool = False,
    frozen: bool = True,
    engine: str = "auto",
    numpy: bool = False,
    tune: bool = True,
    memory: int | None = None,
    pools: Pools | None = None,
) -> Lowered:
    """Make a graph callable.

    Args:
        graph: with static types.
        params: value (NDArray or numpy) per parameter and auxiliary state, by the names of the
            original graph; they are shared, not copied, where they are NDArrays on ``ctx``.
        ctx: MXNet context; default ``mx.cpu()``.
        training: lower for training: differentiable through ``mx.autograd``.
        frozen: compute what depends on parameters alone once, now.
        engine: ``auto`` measures at the first call; else the name of an engine.
        numpy: return ``mx.np`` arrays.
        tune: use the matrix products that are fastest on this machine.
        memory: bytes that a training step may take; with ``pools`` only.
        pools: train on MXNet's executors, in this memory.

    Raises:
        BudgetError: at the first call: no training step takes as little as ``memory``.
        InputError: parameters are missing or misshapen; the message names them.
    """
    mx = import_mxnet()
    ctx = ctx or mx.cpu()
    dtypes = {node.name: node.type.dtype for node in graph.inputs}
    arrays = {
        name: value
        if isinstance(value, mx.nd.NDArray)
        else mx.nd.array(value, ctx=ctx, dtype=dtypes.get(name) or np.asarray(value).dtype)
        for name, value in (params or {}).items()
    }
    return Lowered(
        graph,
        arrays,
        ctx,
        training=training,
        frozen=frozen and not training,
        engine=engine,
        numpy=numpy,
        tune=tune,
        memory=memory,
        pools=pools if training else None,
    )


def _fits(shape: tuple[int, ...], want: Sequence[int | None]) -> bool:
    return len(shape) == len(want) and all(
        w is None or s == w for s, w in zip(shape, want, strict=True)
    )


def _run_once(engine: Engine, known: Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    with import_mxnet().autograd.pause(train_mode=False):
        outputs = engine([known[name] for name in engine.inputs])
    return {f"output {i}": output.asnumpy() for i, output in enumerate(outputs)}


def _require(needed: set[str], known: set[str]) -> None:
    missing = sorted(needed - known)
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise InputError(f"no value for parameter {', '.join(missing[:3])}{more}")


def _check_names(
    data: Sequence[str], read: set[str], given: Mapping[str, Any], positional: int
) -> None:
    if positional > len(data):
        raise InputError(f"{positional} inputs given, the graph has {len(data)}: {list(data)}")
    for name in given:
        if name not in data:
            raise InputError(f"the graph has no data input {name!r}; it has {list(data)}")
    for name in data:
        if name not in given and name in read:
            raise InputError(f"data input {name!r} is missing")
