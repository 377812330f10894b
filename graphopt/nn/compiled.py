"""One HybridBlock, compiled once per signature: shapes, dtypes, context and autograd state."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphopt.backend.findings import Findings
from graphopt.backend.late import wait_for
from graphopt.backend.plans import Plans
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.forking import lock
from graphopt.frontend.blocks import describe, input_names
from graphopt.frontend.containers import in_kinds, kinds_given
from graphopt.frontend.gluon import Traced, lift_traced
from graphopt.ir.graph import Graph
from graphopt.ir.types import dtype_name
from graphopt.nn.config import Config
from graphopt.nn.context_pools import ContextPools
from graphopt.nn.control_flow import require_steps
from graphopt.nn.entries import Entries
from graphopt.nn.entry import Entry, compile_graph
from graphopt.nn.initializing import PythonFirst, initialized, needs_python
from graphopt.nn.learning import require_dense
from graphopt.nn.other_sizes import OtherSizes
from graphopt.nn.parameters import is_computed, is_replaced, is_there
from graphopt.nn.renting import Plain, Renting
from graphopt.nn.separate import CommonResult, require_common_result
from graphopt.nn.signatures import Signature, Signatures, signature_of, told_of, types_of
from graphopt.nn.ski_rental import AT_ONCE
from graphopt.nn.tracing import Tracer
from graphopt.pipeline.base import Mode

#: Calls of an entry that go by what was measured for quite other sizes, at least.
_FEWEST_CALLS = 8

#: Where DataLoader's workers put batches.
_OTHER_HOST_MEMORY = ("cpu_shared", "cpu_pinned")


class CompiledBlock:
    """Compiles a HybridBlock at its first call with a signature and runs it from then on."""

    def __init__(self, block: Any, config: Config, on_set: Callable[[], None]) -> None:
        """Nothing is traced before the first call.

        Args:
            block: a HybridBlock.
            config: how it is compiled.
            on_set: is called when Python of it ran and has set attributes.
        """
        self._block = block
        self._config = config
        self._trace = Tracer(block, on_set)
        self._entries = Entries()
        self._lock = lock()
        self._python_was_first = self._is_preparing = False
        # Those that MXNet calls as one operator, hybridized or not, or of which all is read.
        self._reads_all = bool(getattr(block, "graphopt_reads_all", False)) or isinstance(
            block, import_mxnet().gluon.SymbolBlock
        )
        self._common: list[CommonResult] = []  # of graphs with parameters that may learn later
        self._signatures = Signatures()
        self.renting = Renting(block.collect_params)
        self.other_sizes = OtherSizes(self.renting.rule)
        self._memory = ContextPools(config)
        self._plans: defaultdict[Any, Plans] = defaultdict(Plans)  # of steps, by context
        mx = self._mx = import_mxnet()
        # Looked up once: a call of a small net takes as long as a few dozen attribute reads.
        self._flatten, self._regroup = mx.gluon.block._flatten, mx.gluon.block._regroup
        self._array = mx.nd.NDArray

    @property
    def entries(self) -> list[Entry]:
        """What was compiled, the latest used last."""
        with self._lock:
            return list(self._entries.values())

    def is_outdated(self) -> bool:
        """Whether the Block has forgotten the graph that was compiled."""
        return self._trace.is_outdated()

    def follows(self, args: Sequence[Any]) -> bool:
        """Whether the Block, which has forgotten its graph, makes the same again for such a call.

        What was compiled for calls that other Python makes is dropped then, as it may be another.
        Numbers of parameters that were folded may be others, so nothing with such stays.
        """
        if self._config.mode == "inference":
            return False
        with self._lock:
            self._signatures = Signatures()
            self._trace.forget_states()
            try:
                kind = self._signed(args)[0][:2]
                traced = self._trace(args)
            except Exception:  # noqa: BLE001 - the call itself says why
                return False
            earlier = self._entries.of_kind(kind)
            if earlier is None or not traced.is_like(earlier.traced):
                return False
            self._entries.only_kind(kind)
            self.renting.only_kind(kind)
            self.other_sizes.only_kind(kind)
        return True

    def __call__(self, args: Sequence[Any]) -> Any:
        """Run on NDArrays (nested lists and Nones allowed), compiling first where needed.

        Raises:
            UnsupportedError: the Block cannot be traced.
            InputError: a parameter is not initialized, or the inputs do not fit the Block.
        """
        try:
            flat, layout = self._flatten(list(args), "input")
        except ValueError as error:
            raise UnsupportedError(f"{describe(self._block)}: {error}") from None
        given = [array for array in flat if array is not None]
        if not given or not all(isinstance(array, self._array) for array in given):
            raise UnsupportedError(f"{describe(self._block)} was not called with NDArrays only")
        key, given = self._signature(args, given, self._nesting(args, layout))
        ctx = key[2]
        if self._common and key[0] == "training":
            for common in self._common:
                common.require_still()
        entry = self._entries.get(key)
        start = time.perf_counter()
        if entry is None:
            if key[0] == "training" and self._config.plans_memory:
                self._prepare_memory(key, args, given)
            rented = self._rent(key, args, given)
            if rented is not None:
                return self._returned(*rented)
            entry = self._compile(key, args, given)
        else:
            with self._lock:
                if key in self._entries:  # another thread may just have let go of it
                    self._entries.move_to_end(key)
            if entry.calls_left is not None:
                entry = self._measured(key, entry, args, given)
        if not entry.refresh(ctx) or entry.lacks_gradients(given):
            entry = self._rebuilt(key, entry, args, given)
        found = entry.built.run(entry.data(given, ctx))
        if not entry.has_run:
            seconds = entry.prepared_s + time.perf_counter() - start
            self._compiled(key, entry, given, seconds)
        return self._returned(found, entry.traced)

    def _returned(self, outputs: list[Any], traced: Traced) -> Any:
        """Outputs, nested as the Block's Python returns them."""
        found = self._regroup(outputs, traced.results)
        return found if traced.kinds is None else in_kinds(found, traced.kinds)

    def prepare(self, args: Sequence[Any]) -> None:
        """Compile for a call like this one, the first, which the Block's Python has made.

        Raises:
            UnsupportedError: the Block cannot be traced.
        """
        self._python_was_first = self._is_preparing = True
        key, given = self._signed(args)
        start = time.perf_counter()
        try:
            entry = self._compile(key, args, given)
        finally:
            self._is_preparing = False
        entry.prepared_s = time.perf_counter() - start

    def entry(self, args: Sequence[Any]) -> Entry | None:
        """What such a call runs as autograd's state is now, if it was compiled."""
        key, _ = self._signed(args)
        with self._lock:
            return self._entries.get(key)

    def _signed(self, args: Sequence[Any]) -> tuple[Signature, list[Any]]:
        """The signature of a call, and its arrays."""
        flat, layout = self._flatten(list(args), "input")
        given = [array for array in flat if array is not None]
        return self._signature(args, given, self._nesting(args, layout))

    def _nesting(self, args: Sequence[Any], layout: Any) -> Hashable:
        """How arguments are nested, and in what, which the Block's Python may ask for."""
        text = str(layout)
        return text if text.find("[", 1) < 0 else (text, kinds_given(self._block, args))

    def _signature(
        self, args: Sequence[Any], given: list[Any], layout: Hashable
    ) -> tuple[Signature, list[Any]]:
        """Of a call with those arguments, and their arrays where a graph can read them."""
        told = told_of(given)
        known = self._signatures.find(told, layout)
        if known is not None:
            return known, given
        ctx = given[0].ctx
        if any(array.ctx.device_type in _OTHER_HOST_MEMORY for array in given):
            # MXNet's graphs want all arrays in one place; its single operators do not mind.
            told, ctx = None, self._mx.cpu()
            given = [array.as_in_context(ctx) for array in given]
        autograd = self._mx.autograd
        differentiating = autograd.is_recording() or autograd.is_training()
        mode = self._config.graph_mode(differentiating=differentiating)
        with self._lock:
            state = self._trace.state(mode, layout, args)
        found = signature_of(mode, (layout, state), ctx, given)
        self._signatures.keep(told, layout, found)
        return found, given

    def _prepare_memory(self, key: Signature, args: Sequence[Any], given: Sequence[Any]) -> None:
        """Take the memory of the largest shapes before the first step, and refuse larger ones."""
        ctx = key[2]
        with self._lock:
            arrays = dict(zip(input_names(len(given)), given, strict=True))
            arrays = self._memory.admit(arrays, ctx) or {}
            if not arrays:
                return
            largest = list(arrays.values())
            key = signature_of(*key[:3], largest)
            try:
                entry = self._compile(key, args, largest)
                with self._mx.autograd.pause():  # which draws no numbers
                    arrays = entry.data(largest, ctx)
                entry.lowered.reserve(arrays)
            except Exception as error:
                self._entries.pop(key, None)
                self._memory.forget(arrays, ctx)
                if isinstance(error, InputError):
                    raise self._memory.explained(error, arrays) from None
                raise

    def _rent(
        self, key: Signature, args: Sequence[Any], given: Sequence[Any]
    ) -> tuple[list[Any], Traced] | None:
        """A call as MXNet runs it, of a signature that is not worth compiling yet."""
        if self._config.strict or self._config.plans_memory:
            return None
        rule = self.renting.rule
        with self._lock:
            alike = next((e for other, e in self._entries.items() if other[:3] == key[:3]), None)
            if any(array.stype != "default" for array in given):
                return None

            def plain() -> Plain:
                # Blocks are traced without shapes.
                return self.renting.plain(
                    key, lambda: alike.traced if alike else trace(), is_whole=self._is_hybridized()
                )

            def trace() -> Traced:
                traced = self._trace(args)
                arrays = dict(zip(traced.names, given, strict=True))
                graph = lift_traced(self._block, traced, *_types(arrays))
                self._require_whole(key[0], graph, traced)
                return traced

            def as_in_mxnet() -> Callable[[Sequence[Any]], list[Any]] | None:
                return self.renting.runner(key, given, plain())

            other = self.other_sizes.find(key, self._entries)
            if other is not None:
                self.other_sizes.settle(
                    other,
                    given,
                    as_in_mxnet,
                    is_compiled_else=rule.compiles_at_once(is_first=False),
                )
            widens = other is None and self.other_sizes.would_widen(key)
            kind = None if other else self.other_sizes.kind_to_widen(key)
            if rule.is_due(
                key,
                is_first=alike is None,
                may_wait=other is not None and other.suffices,
                at_once=2 * AT_ONCE if widens else AT_ONCE,
                kind=kind,
            ):
                return None
        found = None if other is None else self.other_sizes.run(other, key, given, as_in_mxnet)
        if found is not None:
            return found
        return self.renting.run(key, given, plain(), 1.0 if other is None else other.saved, kind)

    def _measured(
        self, key: Signature, entry: Entry, args: Sequence[Any], given: Sequence[Any]
    ) -> Entry:
        """The entry, measured for its own sizes once its calls have taken as long as that."""
        with self._lock:
            if entry.calls_left:
                entry.calls_left -= 1
            elif self._entries.get(key) is entry:
                entry = self._entries[key] = self._build(key[0], args, given)
        return entry

    def _rebuilt(
        self, key: Signature, entry: Entry, args: Sequence[Any], given: Sequence[Any]
    ) -> Entry:
        """In place of an entry whose parameters were not computed, or had another dtype, before.

        Or of which gradients are asked now that it does not compute.
        """
        with self._lock:
            if self._entries.get(key) is entry:
                self._entries[key] = self._build(key[0], args, given)
                entry.built.release()
        return self._compile(key, args, given)

    def _compiled(self, key: Signature, entry: Entry, given: Sequence[Any], seconds: float) -> None:
        """Note what it took until a first call of it had run."""
        with self._lock:
            if entry.has_run:  # for another thread, which compiled it
                return
            entry.has_run = True
        findings = entry.built.findings
        self.renting.rule.compiled(key, max(0.0, seconds - findings.seconds), types_of(key))
        with self._lock:
            self.other_sizes.look_again(key, entry, given)
        if findings.is_makeshift and findings.like is not None:
            worth_ms = (findings.like.seconds + findings.like.earlier_s) * 1e3
            ms = min(entry.lowered.choice.measured_ms.values(), default=worth_ms)
            entry.calls_left = _FEWEST_CALLS + int(worth_ms / max(ms, 1e-3))

    def _compile(self, key: Signature, args: Sequence[Any], given: Sequence[Any]) -> Entry:
        wait_for(given)  # before others wait: an operator that calls this net may make it
        with self._lock:
            if key in self._entries:
                return self._entries[key]
            will_do = not self._config.plans_memory
            akin = self._entries.akin(key)
            entry = self._build(key[0], args, given, akin, of_any_size=will_do)
            self._entries.keep(key, entry)
            return entry

    def _build(
        self,
        mode: Mode,
        args: Sequence[Any],
        given: Sequence[Any],
        akin: Iterable[Findings] = (),
        *,
        of_any_size: bool = False,
    ) -> Entry:
        sparse = next((a for a in given if a.stype != "default"), None)
        if sparse is not None:
            raise UnsupportedError(f"{describe(self._block)} was given a {sparse.stype} array")
        traced = self._trace(args, may_run=not self._is_preparing)
        arrays = dict(zip(traced.names, given, strict=True))
        return self._of_traced(mode, traced, arrays, akin, of_any_size=of_any_size)

    def alike(self, entry: Entry, arrays: dict[str, Any]) -> Entry:
        """The graph of an entry, compiled for other data; it is not kept."""
        akin = [entry.built.findings]
        return self._of_traced(entry.mode, entry.traced, arrays, akin, of_any_size=True)

    def _of_traced(
        self,
        mode: Mode,
        traced: Traced,
        arrays: dict[str, Any],
        akin: Iterable[Findings],
        *,
        of_any_size: bool,
    ) -> Entry:
        first = next(iter(arrays.values()))
        ctx = first.ctx
        computed = self._computed(traced, arrays, ctx)
        with self._mx.autograd.pause():  # which draws no numbers
            arrays |= {name: parameter.data(ctx) for name, parameter in computed.items()}
        graph = lift_traced(self._block, traced, *_types(arrays), computed)
        may_run = not self._python_was_first and not self._config.plans_memory
        if may_run and needs_python(graph, traced):
            raise PythonFirst
        self._require_whole(mode, graph, traced)
        parameters = initialized(self._block, graph, traced, ctx)
        entry = compile_graph(
            replace(self._config, keeps_operators=_keeps_operators(self._block)),
            graph,
            {n: p for n, p in parameters.items() if n not in computed},
            arrays,
            ctx,
            mode,
            traced=traced,
            computed=tuple(computed.values()),
            akin=akin,
            of_any_size=of_any_size,
            numpy=isinstance(first, self._mx.np.ndarray),
            pools=self._memory.pools(ctx) if mode == "training" else None,
        )
        if mode == "training":
            entry.lowered.plans = self._plans[ctx]
        return entry

    def _is_hybridized(self) -> bool:
        return bool(getattr(self._block, "_active", False))

    def _require_whole(self, mode: Mode, graph: Graph, traced: Traced) -> None:
        """Refuse to learn by a graph whose gradients are others than those of the Block in MXNet.

        Raises:
            LearnsInPythonError: it makes sparse arrays, or results that are read in turns.
            UnsupportedError: the Block is not hybridized, and its Python may stop where a graph
                does not.
        """
        if mode != "training":
            return
        require_dense(graph)
        if self._is_hybridized():
            return
        require_steps(graph)
        if not (self._config.strict or self._config.plans_memory or self._reads_all):
            returned = len(graph.outputs) - traced.unread
            common = require_common_result(graph, returned, self._block.collect_params().values())
            if common and common not in self._common:
                self._common.append(common)

    def _computed(self, traced: Traced, arrays: Mapping[str, Any], ctx: Any) -> dict[str, Any]:
        """The Block's parameters by name that are computed for every call, initialized for good.

        Raises:
            UnsupportedError: one is an auxiliary state.
        """
        known = self._block.collect_params()
        read = [known[name] for name in traced.symbol.list_inputs() if name in known]
        if any(is_computed(p) and not is_there(p, ctx) for p in read):
            initialized(self._block, lift_traced(self._block, traced, *_types(arrays)), traced, ctx)
        found = {p.name: p for p in read if is_computed(p) or is_replaced(p, ctx)}
        for name in traced.symbol.list_auxiliary_states():
            if name in found:
                raise UnsupportedError(
                    f"{describe(self._block)} has a state that is computed, parameter {name!r}"
                )
        return found


def _keeps_operators(block: Any) -> bool:
    """Whether MXNet, as the user hybridized it, makes operators once."""
    flags = dict(getattr(block, "_flags", ()))
    is_static = flags.get("static_alloc") and flags.get("static_shape")
    return bool(is_static and block._active)


def _types(arrays: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Shapes and dtypes by name."""
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    return shapes, {name: dtype_name(array.dtype) for name, array in arrays.items()}
