"""Training on MXNet's executors, which recompute what is marked and share each other's memory.

MXNet's CachedOp, on which Gluon trains, can do neither. Autograd sees one operator of the bridge
for the whole graph (``kernels/bridge/executor_operator.h``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.backend.biases import with_biases_that_learn
from graphopt.backend.environment import environment
from graphopt.backend.invoke import invoke
from graphopt.backend.pools import Bound, Names, Pool, Pools, executors
from graphopt.backend.retiring import bound_executor
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.ir.types import dtype_name
from graphopt.memory.listing import allocated
from graphopt.memory.training import Type

if TYPE_CHECKING:
    from graphopt.ir.graph import Graph
    from graphopt.memory.memory_plan import MemoryPlan

OPERATOR = "graphopt_executor"
#: What is tried as the range of sizes that share memory; MXNet's default first.
MATCHES = (16, 2)


@dataclass(frozen=True)
class StepPlan:
    """How a step runs that has gradients for some of its arguments.

    Attributes:
        symbol: with marks, in its order.
        match: see :func:`bind`.
        wanted: of each argument, whether there is a gradient.
        types: of the arrays it was planned for, by name.
    """

    symbol: Any
    match: int
    wanted: tuple[bool, ...]
    types: Mapping[str, Type]

    def serves(self, wanted: Sequence[bool]) -> bool:
        """Whether it has all gradients that are wanted."""
        return not any(map(operator.gt, wanted, self.wanted))


#: Makes a plan from arrays and gradients, by name.
Planner = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Any, int]]


class StepEngine:
    """A training graph on MXNet's executors: differentiable, asynchronous.

    Calls whose tapes live at one time, as those of siamese nets, each get memory of their own. A
    step with more gradients than those before, of an input for example, is planned anew.

    Attributes:
        megabytes: what the executor bound last holds besides inputs, parameters and their
            gradients, by MXNet's count.
    """

    def __init__(
        self,
        symbol: Any,
        data: Collection[str],
        ctx: Any,
        pools: Pools,
        name: str,
        *,
        planner: Planner,
        made: Collection[str] = (),
        numpy: bool = False,
        binds_each_call: bool = False,
    ) -> None:
        """Bind nothing yet.

        Args:
            symbol: without marks.
            data: names of the inputs that change from call to call.
            ctx: where it runs.
            pools: the memory it runs in.
            name: of the engine.
            planner: returns the symbol with marks, and ``match`` as in :func:`bind`.
            made: names of the inputs that nobody replaces, such as constants.
            numpy: return ``mx.np`` arrays.
            binds_each_call: operators are to live as long as a call, as they may keep something;
                an executor makes them when it is bound.
        """
        self.name = name
        self._binds_each_call = binds_each_call
        self._planner = planner
        self._plans: list[StepPlan] = []
        self.inputs: Sequence[str] = symbol.list_inputs()
        self.megabytes = 0
        self._symbol, self._ctx, self._pools, self._numpy = symbol, ctx, pools, numpy
        arguments = self._names = symbol.list_arguments()
        self._arguments = [self.inputs.index(name) for name in arguments]
        self._is_data = [name in data for name in arguments]
        self._states = {n: self.inputs.index(n) for n in symbol.list_auxiliary_states()}
        # Each recorded call has objects of its own for what was made (`Lowered.run`).
        # States are bound as they are, whoever gives them.
        self._followed = [
            at
            for at, name in enumerate(self.inputs)
            if (name not in data or name in self._states) and name not in made
        ]
        self._learned: list[Any] = []
        self._mx = import_mxnet()
        self._wants_gradient = executors().graphopt_wants_gradient

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run; recorded by autograd when it records."""
        given = [arrays[at] for at in self._arguments]
        training = self._mx.autograd.is_training()
        wanted = self._wanted(given)
        with self._pools.lock:
            self._follow(arrays)
            if self._binds_each_call:
                self._pools.drop(self)
            pool = self._pools.free(self._inputs_of(wanted))
            number = self._binding(arrays, wanted, pool, training=training)
            found = invoke(OPERATOR, given, {"binding": number})
        return [array.as_np_ndarray() for array in found] if self._numpy else found

    def plan(self, arrays: Sequence[Any]) -> None:
        """Plan a step on such arrays now.

        Raises:
            BudgetError: there is no plan.
        """
        with self._pools.lock:
            self._plan(arrays, self._wanted([arrays[at] for at in self._arguments]))

    def memory_plan(self, graph: Graph, **options: Any) -> MemoryPlan:
        """The memory plan of the step planned last; nothing is run.

        Args:
            graph: what the step was made of.
            options: as of :func:`graphopt.memory.step.plan_step`.
        """
        from graphopt.memory.step import plan_step

        last = self._plans[-1]
        wanted = dict(zip(self._names, last.wanted, strict=True))
        return plan_step(
            graph, last.symbol, last.types, wanted, match=last.match, ctx=self._ctx, **options
        )

    def release(self) -> None:
        """Let go of the executors; their memory stays for other shapes."""
        with self._pools.lock:
            self._pools.drop(self)

    def reserve(self, arrays: Sequence[Any]) -> None:
        """Take the memory of a training step on such arrays, now and in pools to come.

        Once a call wants gradients of inputs, also of the step that has those.
        """
        given = [arrays[at] for at in self._arguments]

        def reservation(pool: Pool, gradients: Names) -> None:
            self._follow(arrays)
            wanted = tuple(
                name in gradients and _is_floating(a) if is_data else a.grad is not None
                for name, a, is_data in zip(self._names, given, self._is_data, strict=True)
            )
            self._binding(arrays, wanted, pool, training=True)

        with self._pools.lock:
            self._pools.reserve(reservation)

    def _inputs_of(self, wanted: Sequence[bool]) -> Names:
        return frozenset(
            name
            for name, is_data, is_wanted in zip(self._names, self._is_data, wanted, strict=True)
            if is_data and is_wanted
        )

    def _follow(self, arrays: Sequence[Any]) -> None:
        """Drop what was bound to other parameters."""
        learned = [arrays[at] for at in self._followed]
        if len(learned) != len(self._learned) or any(map(operator.is_not, learned, self._learned)):
            self._pools.drop(self)
            self._learned = learned

    def _wanted(self, given: Sequence[Any]) -> tuple[bool, ...]:
        recording = self._mx.autograd.is_recording()
        return tuple(
            recording and (bool(self._wants_gradient(a.handle)) if is_data else a.grad is not None)
            for a, is_data in zip(given, self._is_data, strict=True)
        )

    def _plan(self, arrays: Sequence[Any], wanted: Sequence[bool]) -> StepPlan:
        for plan in reversed(self._plans):
            if plan.serves(wanted):
                return plan
        names = self._names
        given = [arrays[at] for at in self._arguments]
        gradients = {
            name: self._mx.nd.empty(a.shape, self._ctx, a.dtype) if is_data else a.grad
            for name, a, is_data, is_wanted in zip(names, given, self._is_data, wanted, strict=True)
            if (is_wanted if is_data else a.grad is not None)
        }
        known = dict(zip(self.inputs, arrays, strict=True))
        with self._mx.autograd.pause():
            symbol, match = self._planner(known, gradients)
        types = {name: Type(a.shape, dtype_name(a.dtype)) for name, a in known.items()}
        is_wanted = tuple(name in gradients for name in names)
        self._plans.append(StepPlan(symbol, match, is_wanted, types))
        return self._plans[-1]

    def _binding(
        self, arrays: Sequence[Any], wanted: Sequence[bool], pool: Pool, *, training: bool
    ) -> int:
        """The number of an executor in a pool, bound now if there is none."""
        # What is recorded outside of training may run backward in training's mode, in which
        # nothing comes out as before that is computed again.
        plan = self._plan(arrays, wanted)
        symbol = plan.symbol if training else self._symbol
        # MXNet tells operators how they run when it hands them over, and those of the step before,
        # on the same executor, may not have begun.
        key = (self, wanted, id(symbol), training)
        number = pool.bindings.get(key)
        if number is None:
            with self._mx.autograd.pause():
                bound = self._bind(symbol, arrays, wanted, pool, plan.match)
            self.megabytes = bound.megabytes
            number = self._pools.add(pool, key, bound)
        return number

    def _bind(
        self, symbol: Any, arrays: Sequence[Any], wanted: Sequence[bool], pool: Pool, match: int
    ) -> Bound:
        names = self._names
        given = [arrays[at] for at in self._arguments]
        own = [
            self._like(array) if is_data else array
            for array, is_data in zip(given, self._is_data, strict=True)
        ]
        # An array under two names has one gradient, and the executor writes one for each name.
        first = {id(array): at for at, array in reversed(list(enumerate(given)))}
        is_users = [
            not is_data and first[id(array)] == at
            for at, (array, is_data) in enumerate(zip(given, self._is_data, strict=True))
        ]
        gradients = [
            (array.grad if is_own else self._like(array)) if is_wanted else None
            for array, is_own, is_wanted in zip(given, is_users, wanted, strict=True)
        ]
        states = [arrays[at] for at in self._states.values()]
        arguments = dict(zip(names, own, strict=True))
        learning = {n: g for n, g in zip(names, gradients, strict=True) if g is not None}
        if self._ctx.device_type == "cpu":  # weights may have been frozen since it was planned
            symbol = with_biases_that_learn(symbol, arguments, learning)
        executor = bind(
            symbol,
            self._ctx,
            arguments,
            learning,
            dict(zip(self._states, states, strict=True)),
            pool.last,
            match,
        )
        outputs, megabytes = list(executor.outputs), allocated(executor.debug_str())
        # From here on the bridge frees it, when the last tape is gone.
        handle, executor.handle = executor.handle, self._mx.base.ExecutorHandle()
        return Bound(handle, own, gradients, is_users, outputs, states, megabytes)

    def _like(self, array: Any) -> Any:
        return self._mx.nd.zeros(array.shape, self._ctx, array.dtype)


def bind(
    symbol: Any,
    ctx: Any,
    arguments: Mapping[str, Any],
    gradients: Mapping[str, Any],
    states: Mapping[str, Any],
    shared: Any = None,
    match: int = MATCHES[0],
) -> Any:
    """An executor for training; gradients are written, not added.

    Args:
        symbol: what it runs.
        ctx: where.
        arguments: arrays by name.
        gradients: arrays by name of the argument.
        states: arrays by name.
        shared: an executor whose memory it shares.
        match: a value may get the memory of one that is this many times larger or smaller.
    """
    if not gradients:
        # Then MXNet would fuse as for inference, BatchNorm with its moving averages. Backward to
        # the last argument takes the least.
        name, array = list(arguments.items())[-1]
        gradients = {name: import_mxnet().nd.zeros(array.shape, ctx, array.dtype)}
    # MXNet announces oneDNN's subgraphs, of which it makes none in training.
    with environment(MXNET_SUBGRAPH_VERBOSE="0", NNVM_EXEC_MATCH_RANGE=str(match)):
        return bound_executor(
            symbol,
            ctx,
            dict(arguments),
            args_grad=dict(gradients),
            grad_req={name: "write" if name in gradients else "null" for name in arguments},
            aux_states=dict(states),
            shared_exec=shared,
        )


def _is_floating(array: Any) -> bool:
    """Whether there can be a gradient of it."""
    return bool(np.issubdtype(np.dtype(array.dtype), np.floating))


def watch_gradient(op: str) -> None:
    """Let MXNet drop repetitions of this operator that nobody reads (kernels/bridge/kept.h)."""
    library = executors()
    if library.graphopt_watch_gradient(op.encode()):
        raise GraphoptError(f"the gradient of {op}: {library.graphopt_error().decode()}")
