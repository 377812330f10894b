"""Graph -> something to call, on the fastest of MXNet's engines for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.backend.any_size import AtAnySize
from graphopt.backend.candidates import Candidates, Form, has_packed, is_packed
from graphopt.backend.choice import RUN_PRODUCTS, Choice
from graphopt.backend.choosing import choose, ordered
from graphopt.backend.engines import CachedOpEngine, Engine, ExecutorEngine
from graphopt.backend.findings import active
from graphopt.backend.freeze import Frozen, freeze
from graphopt.backend.keeping import forgetting, keeping, runs_keeping, told
from graphopt.backend.kept import Kept
from graphopt.backend.memory import give_back_freed_memory, keep_freed_memory
from graphopt.backend.passing import hands_on_gradients, without_passed_inputs
from graphopt.backend.pools import Pools
from graphopt.backend.products import has_products
from graphopt.backend.step import StepEngine
from graphopt.backend.stored import with_stored
from graphopt.backend.symbol import constants, to_symbol
from graphopt.backend.tuning import Tuned, tune_learning, tune_recurrences
from graphopt.backend.tuning import tune as tune_products
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, DATA, FUSED, PARAM, PRODUCT
from graphopt.kernels.library import prepare

if TYPE_CHECKING:
    from graphopt.memory.memory_plan import MemoryPlan


class Lowered:
    """A graph bound to parameters and a context, ready to be called.

    ``f(**inputs)`` takes one array per data input (NDArray or numpy) and returns a list of fresh
    NDArrays. The engine is chosen at the first call, by measuring.

    Attributes:
        choice: which engine runs, and the measured times.
        form: what engines are made of.
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
        follows: bool = False,
    ) -> None:
        """Bind; see :func:`lower`."""
        keep_freed_memory()
        self.graph = graph
        self.ctx = ctx or import_mxnet().cpu()
        self.training = training
        self.choice = Choice()
        self._wanted, self._frozen, self._follows = engine, frozen, follows
        self._params = dict(params)
        self._types = {node.name: node.type for node in graph.inputs}
        self._check_params(graph)
        self._fixed = self._as_arrays(constants(graph))
        self._once: list[Frozen] = []  # what is computed from parameters beforehand
        self._with_products: Tuned | None = None  # what runs with packed products besides
        self._keepers: list[Kept] = []
        per_call = self._settle(graph, is_tuned=tune)
        forms = [per_call, *([self._with_products.graph] if self._with_products else [])]
        self._prepare(forms)
        form = with_stored(per_call, sized=pools is not None) if training else per_call
        self.data = tuple(node.name for node in per_call.role(DATA))
        self.form = Form(
            graph=per_call,
            symbol=to_symbol(form),
            with_products=forms[1] if len(forms) > 1 else None,
            data=self.data,
            ctx=self.ctx,
            frozen=frozen,
            training=training,
            numpy=numpy,
            is_tuned=tune,
            memory=memory,
            pools=pools,
        )
        self._inputs: list[str] = self.form.symbol.list_inputs()
        self._read = set(self._inputs)
        learned = {node.name for node in per_call.inputs if node.op in (PARAM, AUX)}
        _require(learned & self._read, self._known())
        self._engine: Engine | None = None
        self._is_settled = True
        self._bound: list[Any] = []
        self._at_any_size: AtAnySize | None = None
        self._findings = active()
        self.choice.like = self._findings.told
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **inputs: Any) -> list[Any]:
        """Run on data inputs, by position or by name.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype than the graph's.
        """
        arrays = dict(zip(self.data, args, strict=False)) | inputs
        _check_names(self.data, self._read, arrays, len(args))
        return self.run({n: self._array(n, a) for n, a in arrays.items()})

    @property
    def bound(self) -> tuple[Engine | None, list[Any]]:
        """The engine, once it is chosen, and what it reads: ``None`` in place of data."""
        return self._engine, self._bound

    def run(self, data: Mapping[str, Any]) -> list[Any]:
        """Run on NDArrays that are known to fit, by name."""
        if self._engine is None:
            computed = self._choose_once(data)
            if computed is not None:
                return computed
        elif not self._is_settled:
            self._is_settled = True
            give_back_freed_memory(always=True)  # MXNet's engine has let go of the rest meanwhile
        assert self._engine is not None
        arrays = [
            data.get(n, fixed) for n, fixed in zip(self._engine.inputs, self._bound, strict=True)
        ]
        return self._engine(arrays)

    @property
    def at_any_size(self) -> AtAnySize:
        """What runs the graph on data of other sizes."""
        with self._lock:
            if self._at_any_size is None:
                graph, value = self.graph, self._fixed_value
                self._at_any_size = AtAnySize(graph, self.form, self._engine, value)
            return self._at_any_size

    @property
    def symbol(self) -> Any:
        """The MXNet Symbol that runs, before engine-specific rewrites."""
        return self.form.symbol

    def exported(self, *, kernels: bool) -> Any:
        """The Symbol to save: with fused nodes, or with the MXNet operators they stand for."""
        if not kernels:
            return to_symbol(unfuse(self.form.graph))
        # What is packed is so for one kind of processor, regions for one size of images too.
        if has_packed(self.form.graph) or self.form.keeps:
            return to_symbol(forgetting(unfuse(self.form.graph, is_packed)))
        return self.form.symbol

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
        self._choose_once(data)

    def memory_plan(self, **options: Any) -> MemoryPlan:
        """The memory plan of what runs; nothing is run.

        Of a step in planned memory, with what is computed again; see
        :meth:`graphopt.nn.optimized.Optimized.memory_plan`.
        """
        from graphopt.memory.memory_plan import plan

        if isinstance(self._engine, StepEngine):
            return self._engine.memory_plan(self.form.graph, **options)
        if not self.training:
            return plan(self.graph, frozen=self._frozen, ctx=self.ctx, **options)
        wanted = {
            name: "write"
            for name in self.form.symbol.list_arguments()
            if name not in self.data and getattr(self._fixed_value(name), "grad", None) is not None
        }
        return plan(self.form.graph, training=True, grad_req=wanted, ctx=self.ctx, **options)

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
        self._at_any_size = None
        if self._engine is not None:
            self._bound = [self._fixed_value(name) for name in self._engine.inputs]

    def _known(self) -> set[str]:
        return {*self._params, *self._fixed} | self._computed_once()

    def _computed_once(self) -> set[str]:
        return {name for split in self._once for name in split.names}

    def _as_arrays(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        mx = import_mxnet()
        return {n: mx.nd.array(a, ctx=self.ctx, dtype=a.dtype) for n, a in arrays.items()}

    def _settle(self, graph: Graph, *, is_tuned: bool) -> Graph:
        """What a call computes, as is fastest on this machine."""
        per_call = self._freeze(graph) if self._frozen else graph
        is_tuned = is_tuned and self.ctx.device_type == "cpu"
        if is_tuned:
            recurrences = tune_recurrences(per_call, training=self.training)
            per_call, self.choice.tuning = recurrences.graph, list(recurrences.told)
        if self._frozen and self.ctx.device_type == "cpu":
            per_call = self._settle_products(per_call, is_tuned=is_tuned)
        elif is_tuned:
            learning = tune_learning(per_call)
            per_call = learning.graph
            self.choice.tuning += learning.told
        return without_passed_inputs(per_call) if self.training else self._with_kept(per_call)

    def _prepare(self, forms: Sequence[Graph]) -> None:
        """Has the kernels of some forms compiled, and their constants where they are read."""
        if self.ctx.device_type == "cpu":  # those for GPUs depend on extents
            specs = (str(n.attrs["spec"]) for form in forms for n in form if n.op == FUSED)
            prepare(specs, gradients=self.training)
        for form in forms:
            known = constants(form).items()
            self._fixed |= self._as_arrays({n: a for n, a in known if n not in self._fixed})

    def _freeze(self, graph: Graph) -> Graph:
        """The rest of a graph, once what no data reaches is computed."""
        split = freeze(graph, self._known())
        if split.once is not None:
            self._once.append(split)
            self._fixed |= self._computed(split)
        return split.per_call

    def _settle_products(self, graph: Graph, *, is_tuned: bool) -> Graph:
        """The graph without packed products; keeps the form with them, if there is one."""
        found = None
        if has_products(graph):
            found = Tuned(graph)
            graph = unfuse(graph, lambda _graph, node: node.op == PRODUCT)
        before, plain = self.choice.tuning, Tuned(graph)
        if is_tuned:
            tuned = tune_products(graph)
            plain = tuned.plain
            graph, found = self._freeze(plain.graph), tuned.packed or found
        if found is not None:
            self._with_products = Tuned(self._freeze(found.graph), (*before, *found.told))
        self.choice.tuning = [*before, *plain.told]
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

    def _computed(self, split: Frozen) -> dict[str, Any]:
        assert split.once is not None
        engine = CachedOpEngine(to_symbol(split.once), ())
        _require(set(engine.inputs), self._known())
        with import_mxnet().autograd.pause(train_mode=False):
            found = engine([self._fixed_value(name) for name in engine.inputs])
        return dict(zip(split.names, found, strict=True))

    def _fixed_value(self, name: str) -> Any:
        """The array of a parameter or constant; ``None`` for data."""
        for known in (self._fixed, self._params):
            if name in known:
                return known[name]
        for split in self._once:
            if name in split.names:  # it was let go of
                self._fixed |= self._computed(split)
                return self._fixed[name]
        return None

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

    def _choose_once(self, data: Mapping[str, Any]) -> list[Any] | None:
        """Choose the engine if no thread did; what trying it computed of ``data``, if anything."""
        with self._lock:
            if self._engine is not None:
                return None
            self._engine, computed = self._choose(data)
        # It was computed without gradients.
        return None if import_mxnet().autograd.is_recording() else computed

    def _choose(self, data: Mapping[str, Any]) -> tuple[Engine, list[Any] | None]:
        form = self.form
        names = {*self._inputs}
        if form.with_products is not None:
            names |= {node.name for node in form.with_products if not node.inputs}
        arrays = {n: data[n] if n in data else self._fixed_value(n) for n in names}
        candidates = Candidates(form, self._fixed, self.choice)
        made = candidates.by_name(arrays)
        if self._wanted not in ("auto", *made):
            raise InputError(f"engine {self._wanted!r} is none of auto, {', '.join(made)}")
        if self._wanted != "auto":
            made = {self._wanted: made[self._wanted]}
        with self._findings.active():
            found = choose(
                form,
                made,
                arrays,
                lambda n: data.get(n, self._fixed_value(n)),
                self.choice,
                candidates.forget,
            )
        self._findings.are_complete()
        chosen = found.engine
        self._keep_what_is_read(chosen, candidates.keepers)
        chosen = ordered(form, chosen, arrays, self.choice)
        kind = CachedOpEngine | ExecutorEngine
        if form.keeps and isinstance(chosen, kind) and runs_keeping(chosen.symbol):
            self.choice.weights = told(form.graph)
        self._bound = [self._fixed_value(name) for name in chosen.inputs]
        del candidates, made, arrays
        self._is_settled = not give_back_freed_memory()
        return chosen, found.outputs

    def _keep_what_is_read(self, chosen: Engine, keepers: Sequence[Kept]) -> None:
        """Let go of what engines that are not chosen read."""
        read = {*self._inputs, *chosen.inputs}
        if self._follows:
            read -= self._computed_once().difference(chosen.inputs)
        self._fixed = {name: array for name, array in self._fixed.items() if name in read}
        kept = {id(array) for array in self._fixed.values()}
        self._keepers = [keeper for keeper in keepers if id(keeper.array) in kept]
        if chosen.name in RUN_PRODUCTS and self._with_products is not None:
            self.choice.tuning = list(self._with_products.told)
        self._with_products = None


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
    follows: bool = False,
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
        follows: a graph that is frozen is lowered anew once parameters were written, so that what
            is computed from them may be let go of, and computed again where it is asked for.

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
        follows=follows,
    )


def _fits(shape: tuple[int, ...], want: Sequence[int | None]) -> bool:
    return len(shape) == len(want) and all(
        w is None or s == w for s, w in zip(shape, want, strict=True)
    )


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
