"""Ways to run a Symbol: MXNet's CachedOp and its executor, with and without oneDNN subgraphs.

An engine takes NDArrays in the order of its ``inputs`` and returns fresh NDArrays: nothing it
returned earlier is overwritten by a later call.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import count
from math import prod
from threading import get_ident
from typing import Any, Protocol

import numpy as np

from graphopt.backend.arrays import Alike, Copier, bytes_of
from graphopt.backend.documents import document_of
from graphopt.backend.environment import environment
from graphopt.backend.keeping import flush_bulk
from graphopt.backend.onednn import ONEDNN
from graphopt.backend.openmp import release_threads
from graphopt.backend.plans import Plans
from graphopt.backend.pushing import TURN, turn_to_call
from graphopt.backend.retiring import bound_executor, cached_op, free_retired
from graphopt.cached import cached_property
from graphopt.compat import import_mxnet
from graphopt.forking import lock
from graphopt.kernels.bridge.memory import may_be_view

_SPARE = "graphopt_spare"

_calls = count(1)


class Engine(Protocol):
    """Something that runs a graph for one set of input types."""

    name: str
    inputs: Sequence[str]

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on arrays in the order of ``inputs``."""


class InferenceEngine(Engine, Protocol):
    """An engine that can be had again for another form of its symbol."""

    def rewritten(self) -> Any:
        """The symbol as it runs."""

    def on(self, symbol: Any) -> InferenceEngine:
        """An engine like this one for another symbol with the same inputs."""


class CachedOpEngine:
    """MXNet's CachedOp: asynchronous, differentiable, statically planned unless told otherwise."""

    def __init__(
        self,
        symbol: Any,
        data: Collection[str],
        name: str = "CachedOp",
        *,
        is_static: bool = True,
        static_shape: bool = False,
        counts_writes: bool = False,
        takes_views: bool = True,
    ) -> None:
        """Plan ``symbol``; ``data`` names the inputs that change from call to call.

        ``is_static``: memory is planned once (``static_alloc``).
        ``static_shape``: operators are prepared once, too, and handed to MXNet's engine in pieces.
        Not where gradients are wanted: MXNet goes on writing the arrays that it wrote first, which
        may have been a sum's. Nor for loops, whose own operators nothing waits for then.
        ``counts_writes``: it may have operators that notice writes to parameters.
        ``takes_views``: its operators read parts of arrays that oneDNN has laid out, as all do but
        those of oneDNN's subgraphs.
        """
        self._counts_writes, self._static_shape = counts_writes, is_static and static_shape
        self._takes_views = takes_views
        mx = import_mxnet()
        self.name = name
        self.inputs: Sequence[str] = symbol.list_inputs()
        self.symbol, self._names, self._is_static = symbol, data, is_static
        self._spare: list[Any] = []
        if not symbol.list_arguments():
            # MXNet wants something to differentiate by, even here.
            kind = type(symbol)  # of which its results are
            symbol = mx.sym.Group([symbol, mx.sym.identity(mx.sym.var(_SPARE))], kind)
            self._spare = [mx.nd.zeros((1,))]
        self._planned = symbol
        self._op: Any = None  # planned in the first call
        self._types: dict[str, tuple[Any, Any]] = {}  # of what it was planned for
        #: Engines for other sizes, and when this one was called last.
        self.plans: Plans | None = None
        self.last_call = 0
        # Of two calls at once MXNet gives one the other's result now and then, and its first call
        # infers shapes where a second one may read them. What is computed is not waited for here.
        self._turn = turn_to_call(symbol)

    def rewritten(self) -> Any:
        """The symbol as it runs."""
        return self.symbol

    def on(self, symbol: Any) -> CachedOpEngine:
        """An engine like this one for another symbol with the same inputs."""
        return CachedOpEngine(
            symbol,
            self._names,
            self.name,
            is_static=self._is_static,
            static_shape=self._static_shape,
            counts_writes=self._counts_writes,
            takes_views=self._takes_views,
        )

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run; recorded by autograd when it records."""
        release_threads()
        free_retired()
        if self._counts_writes:
            flush_bulk()  # a write in one piece with what counts it would not be counted yet
        if not self._takes_views:
            arrays = self._without_views(arrays)
        if self.plans is not None:
            self.last_call = next(_calls)
            if self._op is None:
                self.plans.make_room(self)
        with self._turn:
            if self._op is None:
                self._op = self._plan(arrays)
            self._op.user = get_ident()
            found = self._op(*arrays, *self._spare)
        outputs = found if isinstance(found, list) else [found]
        return outputs[: len(outputs) - len(self._spare)]

    def _without_views(self, arrays: Sequence[Any]) -> list[Any]:
        mx, found = import_mxnet(), list(arrays)
        for at, name in enumerate(self.inputs):
            if name in self._names and may_be_view(mx, found[at]):
                copy = mx.np.copy if isinstance(found[at], mx.np.ndarray) else mx.nd.identity
                found[at] = copy(found[at])
        return found

    @property
    def may_be_prepared(self) -> bool:
        """Whether its operators may be set up once for arrays that stay the same."""
        return self._is_static and not self._counts_writes and self._turn is TURN

    def renew(self) -> None:
        """Let go of the plan; the next call makes another."""
        with self._turn:
            self._op = None

    @property
    def planned_bytes(self) -> int:
        """Bytes that its plan for a step keeps, about: all that forward computes."""
        if self._op is None or not self._is_static:
            return 0
        found = self._planned.get_internals()
        _, shapes, _ = found.infer_shape_partial(
            **{n: shape for n, (shape, _) in self._types.items()}
        )
        _, dtypes, _ = found.infer_type_partial(
            **{n: dtype for n, (_, dtype) in self._types.items()}
        )
        given = {*self._planned.list_inputs()}
        return sum(
            prod(shape) * np.dtype(dtype).itemsize
            for name, shape, dtype in zip(found.list_outputs(), shapes, dtypes, strict=True)
            if name not in given and _is_known(shape)
        )

    def _plan(self, arrays: Sequence[Any]) -> Any:
        # MXNet prepares operators for the arrays of those that do not change, and again whenever
        # one is replaced.
        self._types = {n: (a.shape, a.dtype) for n, a in zip(self.inputs, arrays, strict=True)}
        is_data = [name in self._names for name in self._planned.list_inputs()]
        flags = [
            ("data_indices", [i for i, yes in enumerate(is_data) if yes]),
            ("param_indices", [i for i, yes in enumerate(is_data) if not yes]),
            ("static_alloc", self._is_static),
            ("static_shape", self._static_shape),
        ]
        return cached_op(import_mxnet(), self._planned, flags)


def _is_known(shape: tuple[int, ...] | None) -> bool:
    """Whether MXNet knows a shape before it has run; what it plans has such shapes."""
    return shape is not None and -1 not in shape


class ExecutorEngine:
    """MXNet's executor with its oneDNN subgraphs, inference only.

    oneDNN keeps reordered copies of the parameters, so a write to them later may or may not show.
    Data is copied into buffers of the engine and results out of them, past MXNet's engine: each of
    its operations costs about 0.1 ms of waking threads, and could run OpenMP on one more thread,
    whose idle workers would take the cores from those that compute. So a call returns when it is
    done, and one call at a time runs.
    """

    def __init__(
        self,
        symbol: Any,
        arrays: Sequence[Any],
        data: Collection[str],
        ctx: Any,
        name: str,
        *,
        as_is: bool = False,
        draws: bool = False,
    ) -> None:
        """Bind ``symbol`` to ``arrays``, given in the order of its inputs.

        ``as_is``: oneDNN's rewrites were made before.
        ``draws``: it may have operators that draw. An executor's draw from the generator of the
        thread that binds it, and ``mx.random.seed`` seeds that of the thread that calls; so in
        other threads a CachedOp runs.
        """
        self.name = name
        self.inputs: Sequence[str] = symbol.list_inputs()
        self._mx = import_mxnet()
        self.symbol, self._names, self._ctx, self._as_is = symbol, data, ctx, as_is
        self._home = _this_thread() if draws else None
        self._bound = [
            Alike(array)() if name in data else array  # each call copies its own there
            for name, array in zip(self.inputs, arrays, strict=True)
        ]
        by_name = dict(zip(self.inputs, self._bound, strict=True))
        if as_is:
            executor = bind_as_is(symbol, by_name, ctx)
        else:
            with quiet_binding():
                executor = bound_executor(
                    symbol,
                    ctx,
                    {n: by_name[n] for n in symbol.list_arguments()},
                    grad_req="null",
                    aux_states={n: by_name[n] for n in symbol.list_auxiliary_states()},
                )
        self._executor = executor
        self._outputs = list(executor.outputs)[: len(symbol.list_outputs())]
        self._copier = Copier() if ctx.device_type == "cpu" else None
        self._is_numpy = isinstance(symbol, self._mx.symbol.numpy._Symbol)
        self._data = [
            (at, self._bound[at], bytes_of(self._bound[at]))
            for at, name in enumerate(self.inputs)
            if name in data
        ]
        self._made = [(output, Alike(output), bytes_of(output)) for output in self._outputs]
        self._passed = _passed(symbol, self.inputs)
        self._lock, self._caller = lock(), 0

    def rewritten(self) -> Any:
        """The symbol as it runs, with oneDNN's rewrites."""
        return self.symbol if self._as_is else self.symbol.optimize_for(ONEDNN)

    def on(self, symbol: Any) -> ExecutorEngine:
        """An engine like this one for another symbol, rewritten, with the same inputs."""
        known = dict(zip(self.inputs, self._bound, strict=True))
        arrays = [known[name] for name in symbol.list_inputs()]
        draws = self._home is not None
        return ExecutorEngine(
            symbol, arrays, self._names, self._ctx, self.name, as_is=True, draws=draws
        )

    @cached_property
    def _elsewhere(self) -> CachedOpEngine:
        return CachedOpEngine(self.symbol, self._names, self.name)

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run; the outputs are copies, since the executor writes to the same arrays again.

        Those that are inputs lie in the memory of these, as of MXNet's CachedOp.
        """
        here = get_ident()
        is_away = self._home is not None and self._home is not _this_thread()
        if is_away or self._caller == here:  # by a signal's handler in the midst of a call
            return self._elsewhere(arrays)
        free_retired()
        if self._copier is not None:
            for at, *_ in self._data:  # before others wait: an operator of theirs may make it
                arrays[at].wait_to_read()
        with self._lock:
            try:
                self._caller = self._executor.user = here
                found = self._run(arrays)
            finally:
                self._caller = 0
        return [array.as_np_ndarray() for array in found] if self._is_numpy else found

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        base = self._mx.base
        release_threads()
        for at, buffer, size in self._data:
            self._copy(arrays[at], buffer, size)
        with TURN:
            base.check_call(base._LIB.MXExecutorForward(self._executor.handle, 0))
        found = []
        for at, (output, alike, size) in enumerate(self._made):
            if at in self._passed:
                found.append(arrays[self._passed[at]].detach())
                continue
            fresh = alike()
            self._copy(output, fresh, size)
            found.append(fresh)
        return found

    def _copy(self, source: Any, target: Any, size: int) -> None:
        if self._copier is None:
            source.copyto(target)
        else:
            self._copier.copy(source, target, size)


def _passed(symbol: Any, inputs: Sequence[str]) -> dict[int, int]:
    """Which outputs are inputs: the place of an input by that of an output."""
    document, places = document_of(symbol), {name: at for at, name in enumerate(inputs)}
    heads = [document["nodes"][node] for node, *_ in document["heads"]]
    return {at: places[n["name"]] for at, n in enumerate(heads) if n["op"] == "null"}


_threads = threading.local()


def _this_thread() -> object:
    """The same for calls in one thread, whose number a later one may have as well."""
    try:
        found: object = _threads.token
    except AttributeError:
        found = _threads.token = object()
    return found


def bind_as_is(symbol: Any, arrays: Mapping[str, Any], ctx: Any) -> Any:
    """An executor that runs the symbol forward as it stands, without oneDNN's rewrites.

    These are for graphs from which nobody wants a gradient, refuse control dependencies, and cannot
    be switched off without a word from MXNet on the screen. So there is a gradient, of a value that
    nothing else reads.
    """
    mx = import_mxnet()
    spare = mx.nd.zeros((1,), ctx)
    whole = mx.sym.Group([symbol, mx.sym.identity(mx.sym.var(_SPARE))])
    names = symbol.list_arguments()
    with environment(MXNET_SUBGRAPH_VERBOSE="0"):
        return bound_executor(
            whole,
            ctx,
            {name: arrays[name] for name in names} | {_SPARE: spare},
            {_SPARE: mx.nd.zeros((1,), ctx)},
            dict.fromkeys(names, "null") | {_SPARE: "write"},
            {name: arrays[name] for name in symbol.list_auxiliary_states()},
        )


def quiet_binding() -> AbstractContextManager[None]:
    """Inside the block MXNet's executor picks its oneDNN subgraphs without announcing it."""
    return environment(MXNET_SUBGRAPH_BACKEND=ONEDNN, MXNET_SUBGRAPH_VERBOSE="0")
