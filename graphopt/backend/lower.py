"""Graph -> something to call, on the fastest of MXNet's engines for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphopt.backend.any_size import AtAnySize
from graphopt.backend.candidates import Candidates, Form, has_packed, is_packed
from graphopt.backend.choice import RUN_PRODUCTS, Choice
from graphopt.backend.choosing import choose, ordered
from graphopt.backend.engines import CachedOpEngine, Engine, ExecutorEngine
from graphopt.backend.findings import active
from graphopt.backend.fitting import as_input, check_names, require
from graphopt.backend.fixed import FixedArrays, as_arrays
from graphopt.backend.keeping import forgetting, runs_keeping, told
from graphopt.backend.kept import Kept
from graphopt.backend.late import wait_for
from graphopt.backend.memory import give_back_freed_memory, keep_freed_memory
from graphopt.backend.plans import Plans
from graphopt.backend.pools import Pools
from graphopt.backend.settle import settle
from graphopt.backend.step import StepEngine
from graphopt.backend.stored import with_stored
from graphopt.backend.symbol import to_symbol
from graphopt.backend.unfuse import unfuse
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.forking import lock
from graphopt.ir.graph import Graph
from graphopt.ir.node import AUX, DATA, FUSED, PARAM
from graphopt.kernels.library import prepare

if TYPE_CHECKING:
    from graphopt.memory.memory_plan import MemoryPlan


class Lowered:
    """A graph bound to parameters and a context, ready to be called.

    ``f(**inputs)`` takes one array per data input (NDArray or numpy) and returns a list of fresh
    NDArrays. Sparse arrays are made dense. The engine is chosen at the first call, by measuring.

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
        keeps_operators: bool = False,
        integers_learn: bool = False,
    ) -> None:
        """Bind; see :func:`lower`."""
        keep_freed_memory()
        self.graph = graph
        self.ctx = ctx or import_mxnet().cpu()
        self.training = training
        self.choice = Choice()
        self._wanted, self._frozen, self._follows = engine, frozen, follows
        self._types = {node.name: node.type for node in graph.inputs}
        self._fixed = FixedArrays(params, self.ctx)
        self._fixed.check(graph)
        self._fixed.add_constants([graph])
        is_on_cpu = self.ctx.device_type == "cpu"
        found = settle(
            graph,
            self._fixed,
            training=training,
            frozen=frozen,
            is_on_cpu=is_on_cpu,
            is_tuned=tune,
        )
        self.choice.tuning = list(found.plain.told)
        self._told_of_packed = list(found.packed.told if found.packed else ())
        if is_on_cpu:  # those for GPUs depend on extents
            specs = (str(n.attrs["spec"]) for g in found.graphs for n in g if n.op == FUSED)
            prepare(specs, gradients=training)
        self._fixed.add_constants(found.graphs)
        per_call = found.plain.graph
        form = with_stored(per_call, sized=pools is not None) if training else per_call
        self.data = tuple(node.name for node in per_call.role(DATA))
        self.form = Form(
            graph=per_call,
            symbol=to_symbol(form),
            with_products=found.packed.graph if found.packed else None,
            data=self.data,
            ctx=self.ctx,
            frozen=frozen,
            training=training,
            numpy=numpy,
            is_tuned=tune,
            memory=memory,
            pools=pools,
            keeps_operators=keeps_operators,
            integers_learn=integers_learn,
        )
        self._inputs: list[str] = self.form.symbol.list_inputs()
        self._read = set(self._inputs)
        learned = {node.name for node in per_call.inputs if node.op in (PARAM, AUX)}
        require(learned & self._read, self._fixed.names)
        self._engine: Engine | None = None
        self._is_settled = True
        self._bound: list[Any] = []
        self._made_at: list[int] = []  # where the engine reads arrays that are not the user's
        #: What is planned for other sizes, to share memory with.
        self.plans: Plans | None = None
        self._at_any_size: AtAnySize | None = None
        self._findings = active()
        self.choice.like = self._findings.told
        self._lock = lock()

    def __call__(self, *args: Any, **inputs: Any) -> list[Any]:
        """Run on data inputs, by position or by name.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype than the graph's.
        """
        arrays = dict(zip(self.data, args, strict=False)) | inputs
        check_names(self.data, self._read, arrays, len(args))
        return self.run({n: as_input(n, a, self._types[n], self.ctx) for n, a in arrays.items()})

    def __reduce__(self) -> Any:
        """Raises TypeError: engines can neither be copied nor pickled."""
        raise TypeError(
            "a lowered graph can be neither copied nor pickled: copy its .graph and the parameters,"
            " and lower those"
        )

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
        if self._made_at and import_mxnet().autograd.is_recording():
            # Autograd notes calls on arrays, and backward of one call ends what it noted for all.
            for at in self._made_at:
                arrays[at] = arrays[at].detach()
        return self._engine(arrays)

    @property
    def at_any_size(self) -> AtAnySize:
        """What runs the graph on data of other sizes."""
        with self._lock:
            if self._at_any_size is None:
                value = self._fixed.value
                self._at_any_size = AtAnySize(self.graph, self.form, self._engine, value)
            return self._at_any_size

    @property
    def read_data(self) -> set[str]:
        """Names of the data inputs that the graph does read."""
        return {*self.data} & self._read

    @property
    def symbol(self) -> Any:
        """The MXNet Symbol that runs, before engine-specific rewrites."""
        return self.form.symbol

    def exported(self, *, kernels: bool) -> Any:
        """The Symbol to save: with fused nodes, or with the MXNet operators they stand for."""
        # Training graphs have the user's own parameters, and say what they store for backward.
        if self.training and kernels and not has_packed(self.form.graph) and not self.form.keeps:
            return self.form.symbol
        graph = self._fixed.with_fills(self.form.graph)
        if not kernels:
            graph = unfuse(graph)
        # What is packed is so for one kind of processor, regions for one size of images too.
        elif has_packed(graph) or self.form.keeps:
            graph = forgetting(unfuse(graph, is_packed))
        return to_symbol(graph, self.parameters())

    def parameters(self) -> dict[str, Any]:
        """The arrays the symbol reads besides data: parameters, folded values, constants."""
        return {n: self._fixed.value(n) for n in self._inputs if n not in self.data}

    def reserve(self, data: Mapping[str, Any]) -> None:
        """Take the memory of a step on such inputs, for steps on smaller ones to share."""
        self.plan(data)
        assert isinstance(self._engine, StepEngine)
        self._engine.reserve([data.get(n, self._fixed.value(n)) for n in self._engine.inputs])

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
            if name not in self.data and getattr(self._fixed.value(name), "grad", None) is not None
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
        self._fixed.replace(params, self.graph)
        self._at_any_size = None
        if self._engine is not None:
            self._bound = self._fixed.values(self._engine.inputs)

    def _choose_once(self, data: Mapping[str, Any]) -> list[Any] | None:
        """Choose the engine if no thread did; what trying it computed of ``data``, if anything."""
        wait_for(data.values())  # before anybody waits for this thread
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
        arrays = {n: data[n] if n in data else self._fixed.value(n) for n in names}
        candidates = Candidates(form, self._fixed.made, self.choice)
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
                lambda n: data.get(n, self._fixed.value(n)),
                self.choice,
                candidates.forget,
            )
        self._findings.are_complete()
        chosen = found.engine
        self._keep_what_is_read(chosen, candidates.keepers)
        chosen = ordered(form, chosen, arrays, self.choice)
        if isinstance(chosen, CachedOpEngine):
            chosen.plans = self.plans
        kind = CachedOpEngine | ExecutorEngine
        if form.keeps and isinstance(chosen, kind) and runs_keeping(chosen.symbol):
            self.choice.weights = told(form.graph)
        self._bound = self._fixed.values(chosen.inputs)
        self._made_at = [at for at, name in enumerate(chosen.inputs) if name in self._fixed.made]
        del candidates, made, arrays
        self._is_settled = not give_back_freed_memory()
        return chosen, found.outputs

    def _keep_what_is_read(self, chosen: Engine, keepers: Sequence[Kept]) -> None:
        """Let go of what engines that are not chosen read."""
        read = {*self._inputs, *chosen.inputs}
        if self._follows:
            read -= self._fixed.computed_once.difference(chosen.inputs)
        self._fixed.let_go(read, keepers)
        if chosen.name in RUN_PRODUCTS and self.form.with_products is not None:
            self.choice.tuning = self._told_of_packed


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
    keeps_operators: bool = False,
    integers_learn: bool = False,
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
        keeps_operators: operators of the user's, which may keep something, live as long as this;
            else as long as a call.
        integers_learn: gradients of integer inputs are wanted, too.

    Raises:
        BudgetError: at the first call: no training step takes as little as ``memory``.
        InputError: parameters are missing or misshapen; the message names them.
    """
    ctx = ctx or import_mxnet().cpu()
    return Lowered(
        graph,
        as_arrays(graph, params or {}, ctx),
        ctx,
        training=training,
        frozen=frozen and not training,
        engine=engine,
        numpy=numpy,
        tune=tune,
        memory=memory,
        pools=pools if training else None,
        follows=follows,
        keeps_operators=keeps_operators,
        integers_learn=integers_learn,
    )
