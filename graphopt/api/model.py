"""A Symbol with parameters, optimized and callable."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphopt.api.casting import Casts
from graphopt.api.given import input_of, parameter_of
from graphopt.api.plain import PlainRuns, on
from graphopt.backend.fitting import require, require_known
from graphopt.backend.plans import Plans
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.forking import lock
from graphopt.frontend.gluon import Traced, in_call_order
from graphopt.frontend.symbol import data_names, lift_symbol
from graphopt.ir.graph import Graph
from graphopt.ir.types import dtype_name
from graphopt.nn.any_size import Run
from graphopt.nn.building import build_graph
from graphopt.nn.built import Built
from graphopt.nn.config import Config
from graphopt.nn.context_pools import ContextPools
from graphopt.nn.entries import Entries
from graphopt.nn.entry import Entry
from graphopt.nn.following import Following
from graphopt.nn.for_files import for_files
from graphopt.nn.other_sizes import OtherSizes
from graphopt.nn.signatures import Signature, signature_of
from graphopt.nn.ski_rental import SkiRental
from graphopt.pipeline.base import Mode
from graphopt.pipeline.manager import Receipt

if TYPE_CHECKING:
    from graphopt.memory.memory_plan import MemoryPlan


class Model:
    """A Symbol with parameters that compiles itself per input signature.

    ``model(x)`` or ``model(data=x)`` takes NDArrays or numpy arrays and returns an NDArray, or a
    list of them when the Symbol has several outputs; those of a Symbol of ``mx.np`` are arrays of
    ``mx.np``. ``model(x, y)`` gives ``data0`` and ``data1``,
    as the Block that was exported takes them, whichever the Symbol reads first. What is in
    ``params`` may be given by name as well, in place of that and for this call only. Under
    ``mx.autograd.record()`` the training graph runs, and gradients reach the arrays in ``params``
    that have ``attach_grad()``. Calls with sparse arrays run the Symbol as MXNet does. What was
    compiled for the last 64 signatures is kept.
    """

    def __init__(
        self,
        symbol: Any,
        params: Mapping[str, Any],
        config: Config,
        shapes: Mapping[str, Sequence[int]] | None = None,
        name: str = "",
    ) -> None:
        """Keep the parts; nothing is compiled before the first call."""
        self.symbol = symbol
        self._is_numpy = isinstance(symbol, import_mxnet().sym.np._Symbol)
        self.params: dict[str, Any] = {
            key: parameter_of(key, value) for key, value in params.items()
        }
        self.config = config
        self._name = name
        self._inputs: list[str] = symbol.list_inputs()
        _check_known(self.params, self._inputs)
        self._forget()
        for key in shapes or {}:
            _check_known({key: None}, self._inputs)
        self._data = list(shapes) if shapes else self._guess_data()

    def _forget(self) -> None:
        """Nothing is compiled."""
        self._memory = ContextPools(self.config)
        #: Of steps, by context; others that never run at the same time may have them, too.
        self.plans: defaultdict[Any, Plans] = defaultdict(Plans)
        self._compiled = Entries()
        self._plain, self._casts = PlainRuns(self.symbol), Casts(self.symbol)
        self._sparse: dict[str, None] = {}  # sparse inputs of calls, as explain() tells them
        self._rule = SkiRental()
        self._other_sizes = OtherSizes(self._rule)
        self._lock = lock()

    def __getstate__(self) -> dict[str, Any]:
        """What was given: copies compile anew."""
        own = {
            "_memory",
            "plans",
            "_compiled",
            "_plain",
            "_casts",
            "_sparse",
            "_rule",
            "_other_sizes",
            "_lock",
        }
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __repr__(self) -> str:
        """Its name, and how much is compiled."""
        name = self._name or self.symbol.name or ""
        return f"Model({name!r}, mode={self.config.mode!r}, compiled={len(self._compiled)})"

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take over what was given."""
        self.__dict__.update(state)
        if self._is_numpy:
            self.symbol = self.symbol.as_np_ndarray()  # MXNet does not pickle which it is
        self._forget()

    if not TYPE_CHECKING:  # to which all attributes would be known then

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, which says what to do instead where a Symbol is expected."""
            message = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(import_mxnet().sym.Symbol, name):
                message += (
                    f"; its Symbol has: .symbol.{name}. To bind it, optimize the Module or executor"
                    " instead: graphopt.optimize(mx.mod.Module(symbol)) or"
                    " graphopt.optimize(symbol.simple_bind(...))"
                )
            raise AttributeError(message)

    @property
    def data(self) -> tuple[str, ...]:
        """Names of the inputs a call gives, in the order of positional arguments."""
        return tuple(self._data)

    def __call__(self, *args: Any, **inputs: Any) -> Any:
        """Run.

        Raises:
            InputError: an input is unknown or missing, a parameter has no value or another shape
                than the inputs call for.
            UnsupportedError: an input is sparse, and MXNet is not to run the Symbol instead.
        """
        if len(args) > len(self._data):
            raise InputError(f"{len(args)} inputs given, the model takes {self._data}")
        by_place = dict(zip(self._data, args, strict=False))
        for name in inputs:
            if name in by_place:
                raise InputError(f"input {name!r} is given twice: by its place and by its name")
        given = by_place | inputs
        _check_known(given, self._inputs)
        arrays = {name: input_of(name, value) for name, value in given.items()}
        if not arrays:
            raise InputError(f"no input given; the model takes {self._data}")
        key = self._key(arrays)
        found = None if key in self._compiled else self._not_compiled(key, arrays)
        if found is None:
            start = time.perf_counter()
            entry = self._entry(key, arrays)
            found = entry.built.run(arrays)
            if not entry.has_run:
                entry.has_run = True
                self._rule.compiled(key, time.perf_counter() - start)
                with self._lock:
                    self._other_sizes.look_again(key, entry, list(arrays.values()))
        return found[0] if len(found) == 1 else found

    def built(self, arrays: Mapping[str, Any]) -> Built | Following:
        """What runs on such NDArrays, by name, as autograd's state is now; compiled if it was not.

        Raises:
            InputError: a parameter has no value, or another shape than the inputs call for.
        """
        return self._entry(self._key(arrays), arrays).built

    def receipts(self) -> dict[str, tuple[Receipt, ...]]:
        """Per compiled signature (mode and input types), a receipt per pass."""
        return {_title(entry): entry.result.receipts for entry in self._compiled.values()}

    def graph(self) -> Graph:
        """The optimized graph compiled last.

        Raises:
            InputError: the model was not called yet.
        """
        return self._last().result.graph

    def memory_plan(self) -> MemoryPlan:
        """The memory plan of what runs of the graph compiled last; nothing is run.

        Of a training step with ``memory=`` or ``max_shapes=`` that is the step as planned last: in
        its order, and with all that is computed again (phase ``recompute``). Print ``.report()``
        for its peak, the tensors there, bytes by layer, and live bytes over time.

        Raises:
            InputError: nothing was compiled yet, or MXNet cannot bind it for training.
        """
        return self._last().lowered.memory_plan()

    def explain(self) -> str:
        """What was done, on which engine it runs, and why not more was done."""
        from graphopt.nn.explain import explain_rented, explain_result

        lines = explain_rented(self._name or "model", self._rule, self._other_sizes.graphs)
        for entry in self._compiled.values():
            result, choice, told = entry.result, entry.lowered.choice, entry.built.told
            lines += explain_result(entry.original, result, choice, _title(entry), told)
        lines += [f"run as in MXNet, since input {told}" for told in list(self._sparse)]
        return "\n".join(lines) or "nothing compiled yet: it happens at the first call"

    def report(self, path: str | Path) -> Path:
        """Write an HTML report about the graph compiled last; returns the path."""
        from graphopt.api.reporting import write_report

        entry = self._last()
        return write_report(
            entry.original,
            self.config.pipeline(entry.mode),
            path,
            mode=entry.mode,
            frozen=entry.built.frozen,
            title=entry.original.name,
            step=entry.lowered.step_plan(),
        )

    def export(self, path: str | Path, epoch: int = 0, *, kernels: bool = False) -> None:
        """Write the graph compiled last as ``path-symbol.json`` and ``path-<epoch>.params``.

        Args:
            path: prefix of the files.
            epoch: a number for the name of the parameters.
            kernels: keep fused kernels; such files load in processes that imported graphopt.

        Raises:
            InputError: the model was not called yet.
        """
        from graphopt.nn.exporting import warn_of_sizes, write

        entry = self._last()
        if entry.mode != "inference":
            lowered = entry.lowered
            write(str(path), epoch, lowered.exported(kernels=kernels), lowered.parameters())
            return
        found = for_files(
            entry,
            lambda arrays: self._compile(_signature("inference", arrays), arrays),
            kernels=kernels,
        )
        if found is None:
            warn_of_sizes(str(path))
            found = self.symbol, self.params
        write(str(path), epoch, *found)

    def _last(self) -> Entry:
        if not self._compiled:
            how = "with dense arrays" if self._sparse else "first"
            raise InputError(f"the model has no compiled graph yet: call it once {how}")
        return list(self._compiled.values())[-1]

    def _guess_data(self) -> list[str]:
        aux = set(self.symbol.list_auxiliary_states())
        if self.params:
            found = [n for n in self._inputs if n not in self.params and n not in aux]
        else:
            found = data_names(self.symbol)
        return in_call_order(found)

    def _key(self, arrays: Mapping[str, Any]) -> Signature:
        autograd = import_mxnet().autograd
        differentiating = autograd.is_recording() or autograd.is_training()
        mode = self.config.graph_mode(differentiating=differentiating)
        return _signature(mode, arrays)

    def _entry(self, key: Signature, arrays: Mapping[str, Any]) -> Entry:
        """Compiled for a signature, once the memory of the largest shapes is taken."""
        mode, _, ctx, _ = key
        with self._lock:
            if key not in self._compiled and mode == "training" and self.config.plans_memory:
                self._prepare_memory(arrays, ctx)
            entry = self._compiled.get(key)
            if entry is None or entry.lacks_gradients(list(arrays.values())):
                entry = self._compile(key, arrays)
                self._compiled.keep(key, entry)
            return entry

    def _not_compiled(self, key: Signature, arrays: Mapping[str, Any]) -> list[Any] | None:
        """A call that nothing was compiled for; None if that is to be."""
        kinds = zip(arrays, key[3], strict=True)
        sparse = [name for name, (_, _, stype) in kinds if stype != "default"]
        return self._of_sparse(key, arrays, sparse) if sparse else self._at_any_size(key, arrays)

    def _of_sparse(
        self, key: Signature, arrays: Mapping[str, Any], sparse: Sequence[str]
    ) -> list[Any]:
        """A call with some sparse arrays as MXNet runs it: what is compiled reads dense ones."""
        told = ", ".join(f"{name!r} is {arrays[name].stype}" for name in sparse)
        if self.config.strict or self.config.plans_memory:
            raise UnsupportedError(
                f"what is compiled reads dense arrays, and input {told}:"
                " give it as .tostype('default')"
            )
        if {*self._inputs} - {*arrays, *self.params}:
            # Passes find out whether the others are needed, as the labels of inference are not.
            dense = {name: array.tostype("default") for name, array in arrays.items()}
            found = self(**dense)
            return found if isinstance(found, list) else [found]
        run = self._as_in_mxnet(arrays)
        assert run is not None, "all inputs are given"
        self._sparse[told] = None
        is_inference = key[0] == "inference"
        with import_mxnet().autograd.predict_mode() if is_inference else nullcontext():
            return list(run(list(arrays.values())))

    def _at_any_size(self, key: Signature, arrays: Mapping[str, Any]) -> list[Any] | None:
        """A call by a graph for other sizes, where compiling for these would save little."""
        if self.config.strict or self.config.plans_memory:
            return None
        given = list(arrays.values())
        with self._lock:
            other = self._other_sizes.find(key, self._compiled)
            if other is None:
                return None
            self._other_sizes.settle(
                other,
                given,
                lambda: self._as_in_mxnet(arrays),
                is_compiled_else=self._rule.compiles_at_once(),
            )
            if self._rule.is_due(key, may_wait=other.suffices, at_once=sys.maxsize):
                return None
        found = self._other_sizes.run(
            other, key, given, lambda: self._as_in_mxnet(arrays), is_compiled_else=True
        )
        return None if found is None else found[0]

    def _as_in_mxnet(self, arrays: Mapping[str, Any]) -> Run | None:
        """What runs the Symbol as it is, on arrays of any size; ``None`` where that cannot be."""
        return self._plain.of(arrays, self._typed_params(arrays))

    def _compile(self, key: Signature, arrays: Mapping[str, Any]) -> Entry:
        mode, _, ctx, _ = key
        params = {name: on(array, ctx) for name, array in self._typed_params(arrays).items()}
        shapes = {n: tuple(a.shape) for n, a in (params | dict(arrays)).items()}
        dtypes = {n: dtype_name(a.dtype) for n, a in (params | dict(arrays)).items()}
        # What a call gives by name may be another array in the next, whatever it is called.
        data = {*self._data, *arrays} - set(params)
        graph = lift_symbol(self.symbol, shapes, dtypes, data=data, name=self._name)
        pools = self._memory.pools(ctx) if mode == "training" else None
        made = build_graph(
            self.config,
            graph,
            params,
            arrays,
            ctx,
            mode,
            akin=self._compiled.akin(key),
            numpy=self._is_numpy,
            pools=pools,
        )
        if mode == "training":
            made.lowered.plans = self.plans[ctx]
        self._require(made.lowered.read_data - set(arrays))
        traced = Traced(self.symbol, tuple(arrays), None)
        return Entry(mode, _told(arrays), graph, made, traced, [])

    def _prepare_memory(self, arrays: Mapping[str, Any], ctx: Any) -> None:
        """Take the memory of the largest shapes before the first step, and refuse larger ones."""
        largest = self._memory.admit(arrays, ctx)
        if largest is None:
            return
        key = _signature("training", largest)
        try:
            compiled = self._compile(key, largest)
            compiled.lowered.reserve(largest)
        except Exception as error:
            self._memory.forget(largest, ctx)
            if isinstance(error, InputError):
                raise self._memory.explained(error, largest) from None
            raise
        self._compiled.keep(key, compiled)

    def _typed_params(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters that the Symbol reads and a call does not give, in the Symbol's dtypes."""
        return self._casts.as_read(self.params, arrays)

    def _require(self, missing: Collection[str]) -> None:
        """Raise InputError if a call gives less data than is read."""
        if not missing:
            return
        data = [name for name in data_names(self.symbol) if name in missing]
        require({*missing}.difference(data), set())
        raise InputError(f"no input {data[0]!r} given; the model takes {self._data}")


def _check_known(given: Mapping[str, Any], inputs: Sequence[str]) -> None:
    require_known(given, inputs, "the model")


def _signature(mode: Mode, arrays: Mapping[str, Any]) -> Signature:
    given = list(arrays.values())
    return signature_of(mode, " ".join(arrays), given[0].ctx, given)


def _told(arrays: Mapping[str, Any]) -> str:
    types = ((n, dtype_name(a.dtype), list(a.shape)) for n, a in arrays.items())
    return ", ".join(f"{name}: {dtype}{shape}" for name, dtype, shape in types)


def _title(entry: Entry) -> str:
    return f"{entry.mode} ({entry.types})"
