"""Optimized executors: what ``Symbol.bind`` returns, on compiled graphs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from graphopt.api.model import Model
from graphopt.backend.bound import BoundEngine
from graphopt.backend.late import LateError
from graphopt.backend.refused import RefusedError
from graphopt.backend.symbol import first_line
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.modules import direct
from graphopt.modules.gradients import own_arrays
from graphopt.modules.group import Group
from graphopt.modules.heads import Heads
from graphopt.modules.modes import Modes
from graphopt.modules.outputs import Outputs
from graphopt.modules.plain import Plain
from graphopt.modules.prepared import PreparedStep
from graphopt.modules.stay import FEW, Stay
from graphopt.modules.tapes import Tapes
from graphopt.nn.config import Config

mx = import_mxnet()

_KEEPS = "operators of the user's may keep something from call to call"
_LOOPS = "autograd cannot differentiate a while_loop that takes no steps, or another number of them"
_BRIEF = f"others of this graph were dropped after few calls; it is compiled in its call {FEW + 1}"


class OptimizedExecutor(mx.executor.Executor):  # type: ignore[misc, name-defined]
    """An ``mx.executor.Executor`` of which graphs compiled by graphopt compute the outputs.

    Arrays of arguments, gradients and states are those it was made of, and the methods are
    MXNet's. Where graphopt cannot compile the Symbol, where a while_loop is differentiated, and
    while a monitor looks at what is computed inside, MXNet's executor runs on the same arrays;
    :meth:`explain` says so.

    Attributes:
        model: what is compiled; has ``receipts()``, ``graph()``, ``report(path)`` and the like.
        group: executors that never run at the same time.
    """

    def __init__(
        self,
        model: Model,
        ctx: Any,
        arguments: Mapping[str, Any],
        gradients: Mapping[str, Any],
        states: Mapping[str, Any],
        grad_req: Mapping[str, str],
        group: Group | None = None,
        stay: Stay | None = None,
    ) -> None:
        """Bind; nothing is compiled before the first call. See :func:`executor_of`."""
        self.model = model
        self.group = group or Group()
        self._stay = stay or Stay(model.symbol)
        self.arg_arrays, self.aux_arrays = [*arguments.values()], [*states.values()]
        self.grad_arrays = [gradients.get(name) for name in arguments]
        self._symbol, self._ctx, self._grad_req = model.symbol, ctx, dict(grad_req)
        self._group2ctx = self._optimized_symbol = None
        self._arg_dict = self._grad_dict = self._aux_dict = self._output_dict = None
        self._monitor_callback: Any = None
        self._monitor_all = False
        self._names = model.symbol.list_arguments()
        self._data = own_arrays(self.arg_dict, self.grad_dict, self._grad_req, model.data)
        written = [
            gradient
            for name, gradient in self.grad_dict.items()
            if gradient is not None and self._grad_req.get(name, "null") != "null"
        ]
        self._learns = bool(written)
        self._outputs = Outputs(model.symbol, ctx, self.arg_dict, self.aux_arrays)
        self._tape: list[Any] = []
        # What runs on these arrays, for training or not, once it is known.
        self._direct: dict[bool, BoundEngine | PreparedStep | None] = {}
        self._heads, self._tapes = Heads(model.symbol, written), Tapes(model.symbol)
        self._modes = Modes(model.symbol)
        self._is_run: bool | None = None  # for training or not; None: never
        self._built: dict[bool, Any] = {}
        self._plain = Plain(model.symbol, ctx, arguments, gradients, states, grad_req)

    def __del__(self) -> None:
        """Nothing: MXNet's free an executor here."""

    @property
    def handle(self) -> Any:
        """Of an executor of MXNet's on the same arrays, for others that share memory with it."""
        return self._plain.executor.handle

    @property
    def outputs(self) -> list[Any]:
        """Arrays, one per output, for others in the same memory in all calls."""
        return self._outputs.arrays

    def forward(self, is_train: bool = False, **kwargs: Any) -> list[Any]:
        """Compute the outputs, of the arguments that are given and those that are bound.

        Raises:
            TypeError: an argument is unknown.
            ValueError: it is no array, or of another shape.
        """
        self._load(kwargs)
        self.group.enter(self)
        self._count_call()
        self._tape, self._is_run = [], bool(is_train)
        if self._stay.keeps_operators and not (self._built or self._plain.reason):
            self._prepare_once()
        # One executor that keeps operators does both.
        draws = self._tapes.needed_in_inference and not self._stay.keeps_operators
        records = self._learns and (self._is_run or draws)
        engine = self._direct.get(self._is_run) if self._is_run or not records else None
        if engine is not None and not self._plain.reason:
            engine.forward(self.outputs, is_train=self._is_run)
            return self.outputs
        if not self._plain.reason:
            found = self._compute(training=self._is_run, recording=records)
            if found is not None:
                self._outputs.give(found)
                if self._is_run or not records:
                    self._find_direct(is_train=self._is_run)
                return self.outputs
        self._outputs.give(self._plain.forward(is_train=is_train))
        return self.outputs

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Compute the gradients of arguments.

        Args:
            out_grads: gradients of outputs, a list in their order or a dict by name; ones where
                there are none. Operators that are losses do not read them.
            is_train: whether BatchNorm is differentiated as in training, which need not be how
                forward ran: MXNet's executor runs both then. Where forward drew numbers, and with a
                memory budget, it is as forward ran.

        Where nothing was computed yet, forward is.

        Raises:
            RefusedError: a gradient does not fit its output.
            TypeError: a gradient is no array.
        """
        if self._is_run is None:
            self.forward(is_train=is_train)
        ran_train = bool(self._is_run)
        heads = self._heads.of(out_grads, self.outputs)
        if self._plain.reason:
            self._backward_in_mxnet(out_grads, is_train=is_train, ran_train=ran_train)
            return
        if not self._learns:
            return
        mode = self._modes.of_backward(bool(is_train), ran_train)
        if mode != ran_train and self._may_run_again():
            known = self._heads.known(heads, self.outputs)
            self._plain.turn(known, is_train=mode, ran_train=ran_train)
            return
        engine = self._direct.get(True) if ran_train or self._stay.keeps_operators else None
        if engine is not None and not self._tape and not engine.is_ready:
            engine = None  # called once more, as autograd allows
            if not self._stay.keeps_operators:
                self._direct[True] = None
        self.group.enter(self)
        if engine is not None and not self._tape:
            engine.backward(self._heads.known(heads, self.outputs), self.outputs, is_train=mode)
        elif self._tape or self._compute(training=ran_train, recording=True) is not None:
            stays = self._tapes.may_stay
            mx.autograd.backward(self._tape, heads, retain_graph=stays, train_mode=ran_train)
            self._tape = self._tape if stays else []
        else:
            self._backward_in_mxnet(out_grads, is_train=is_train, ran_train=ran_train)

    def _backward_in_mxnet(self, out_grads: Any, *, is_train: bool, ran_train: bool) -> None:
        """Where it may be called once after forward, have forward run again before the next."""
        self._plain.backward(out_grads, is_train=is_train, ran_train=ran_train)
        if not self._tapes.may_stay:
            self._plain.let_go()

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **kwargs: Any
    ) -> OptimizedExecutor:
        """An executor for other shapes, with the same parameters.

        Smaller arrays lie in the memory of this one's, as MXNet's do; larger ones are new.

        Args:
            partial_shaping: also arguments that are not named may change their shapes.
            allow_up_sizing: has no effect: arrays may always be larger.
            kwargs: shapes of arguments by name.

        Raises:
            RefusedError: a shape contradicts the graph, or a parameter would have another.
        """
        shapes, _, states = _inferred(self._symbol, kwargs)
        arguments = {
            n: _resized(self.arg_dict[n], s) for n, s in zip(self._names, shapes, strict=True)
        }
        changed = [name for name, array in arguments.items() if array is not self.arg_dict[name]]
        others = [name for name in changed if name not in kwargs]
        if others and not partial_shaping:
            raise RefusedError(f"{others[0]!r} would have another shape: give partial_shaping=True")
        gradients = {
            name: None if array is None else _resized(array, arguments[name].shape)
            for name, array in self.grad_dict.items()
        }
        aux = {n: _resized(a, s) for (n, a), s in zip(self.aux_dict.items(), states, strict=True)}
        if {*changed} <= {*self.model.data}:
            made = OptimizedExecutor(
                *(self.model, self._ctx, arguments, gradients, aux, self._grad_req),
                *(self.group, self._stay),
            )
        else:  # the model has other parameters
            made = executor_of(
                *(self._symbol, self.model.config, self.model.data, self._ctx),
                *(arguments, gradients, aux, self._grad_req),
                shared=self,
            )
        if self._monitor_callback is not None:
            made.set_monitor_callback(self._monitor_callback, self._monitor_all)
        return made

    def set_monitor_callback(self, callback: Any, monitor_all: bool = False) -> None:
        """Have a function look at what is computed; MXNet computes it from then on."""
        if self._plain.reason in ("", _BRIEF):
            self._plain.begin("a monitor looks at it")
        self._plain.executor.set_monitor_callback(callback, monitor_all)
        self._monitor_callback, self._monitor_all = callback, monitor_all

    def debug_str(self) -> str:
        """The graph compiled last, and MXNet's lines about memory, of which it takes none."""
        if self._plain.reason:
            return str(self._plain.executor.debug_str())
        graph = next(reversed(self._built.values())).result.graph if self._built else ""
        return f"{graph}\nTotal 0 MB allocated\nTotal 0 TempSpace resource requested\n"

    def get_optimized_symbol(self) -> Any:
        """The Symbol that runs, with fused nodes; before the first call the one that was bound."""
        if self._plain.reason:
            return self._plain.executor.get_optimized_symbol()
        if not self._built:
            return self._symbol
        return next(reversed(self._built.values())).lowered.exported(kernels=True)

    def explain(self) -> str:
        """What was done, on which engine it runs, and why not more was done."""
        if self._plain.reason:
            return f"MXNet's executor runs it: {self._plain.reason}"
        told = self.model.explain()
        for is_train, engine in sorted(self._direct.items()):
            if isinstance(engine, PreparedStep):
                told += f"\n  training on these arrays: {engine.name}, prepared once"
            elif engine is not None and not is_train:
                told += (
                    f"\n  inference on these arrays: {engine.name}, parameters read in every call"
                )
        if self._plain.has_turned:
            told += "\n  backward in another mode than forward's: MXNet's executor ran both"
        return told

    def take_over(self, executor: Any) -> None:
        """Go on with the outputs of another, for what is bound on them, once that one is gone.

        If it is still there at the first use of outputs, they stay its own.
        """
        self._outputs.take_over(executor)

    def adopt(self, executor: Any) -> None:
        """Have one of MXNet's on the same arrays run the first calls if they may be all."""
        if self._stay.is_brief:
            self._plain.adopt(executor)

    def let_go(self) -> None:
        """Have what backward reads computed again if it is called without another forward."""
        self._tape = []
        for engine in self._direct.values():
            if engine is not None:
                engine.let_go()

    def _load(self, given: Mapping[str, Any]) -> None:
        for name, array in given.items():
            if not isinstance(array, (mx.nd.NDArray, np.ndarray)):
                kind = type(array).__name__
                raise ValueError(f"argument {name!r} is a {kind}, no array")  # noqa: TRY004 - as MXNet
            if name not in self.arg_dict:
                raise TypeError(f"unknown argument {name!r}; there are {', '.join(self._names)}")
            bound = self.arg_dict[name]
            if bound.shape != tuple(array.shape):
                raise ValueError(f"argument {name!r} is {bound.shape}, {array.shape} was given")
            bound[:] = array

    def _compute(self, *, training: bool, recording: bool) -> list[Any] | None:
        """The outputs; ``None`` if MXNet's executor is to compute them."""
        config = self.model.config
        may_leave = not (config.strict or config.plans_memory)
        if recording and may_leave and not self._tapes.may_stay:
            self._plain.begin(_LOOPS)
            return None
        scope = mx.autograd.record if recording else mx.autograd.pause
        is_step = training or recording
        is_first = is_step not in self._built
        with scope(train_mode=training):
            try:
                if is_first:
                    self._built[is_step] = self.model.built(self._data)
                found: list[Any] = self._built[is_step].run(self._data)
            except LateError:
                raise
            except (GraphoptError, mx.MXNetError) as error:  # MXNet's of CachedOps, not executors
                if not (is_first and may_leave):
                    raise
                self._plain.begin(first_line(error))
                return None
        if not recording:
            return found
        self._tape = found
        return [array.detach() for array in found]

    def _may_run_again(self) -> bool:
        """Whether MXNet's executor may run what ran last, for backward in the other mode."""
        if self._stay.keeps_operators or self.model.config.plans_memory:
            return False
        return self._modes.may_run_again(is_train=bool(self._is_run))

    def _find_direct(self, *, is_train: bool) -> None:
        """Whether further calls need neither autograd nor copies."""
        if is_train in self._direct:
            return
        built = self._built[is_train]
        if is_train:
            self._direct[True] = direct.training(
                built.lowered, self._data, self.grad_dict, self._grad_req, self.group
            )
            return
        with mx.autograd.pause(train_mode=False):
            found = direct.inference(built, self._data, self.outputs)
        if found is not None:  # all calls are to round alike
            found.forward(self.outputs, is_train=False)
        self._direct[False] = found

    def _prepare_once(self) -> None:
        """Have one executor run all calls, with operators that live as long as this one."""
        if not self._learns:
            self._plain.begin(_KEEPS)
            return
        with mx.autograd.record():
            try:
                built = self._built[True] = self.model.built(self._data)
                built.lowered.plan(self._data)
                step = direct.training(
                    *(built.lowered, self._data, self.grad_dict, self._grad_req, self.group),
                    keeps_operators=True,
                )
            except GraphoptError as error:
                self._plain.begin(first_line(error))
                return
        if step is None:
            self._plain.begin(_KEEPS)
        else:
            self._direct = {True: step, False: step}

    def _count_call(self) -> None:
        """Have MXNet's executor run it for some calls if it is about to be dropped."""
        self._stay.calls += 1
        config = self.model.config
        if not self._stay.is_brief or config.strict or config.plans_memory:
            return
        if self._stay.calls > FEW:
            if self._plain.reason == _BRIEF:
                self._plain.end()
        elif not self._plain.reason and not self._built:
            self._plain.begin(_BRIEF)


def executor_of(
    symbol: Any,
    config: Config,
    data: Collection[str],
    ctx: Any,
    arguments: Mapping[str, Any],
    gradients: Mapping[str, Any],
    states: Mapping[str, Any],
    grad_req: Mapping[str, str],
    shared: OptimizedExecutor | None = None,
) -> OptimizedExecutor:
    """An executor on such arrays.

    Args:
        symbol: what it runs.
        config: what the user asked for.
        data: names of arguments that change from call to call; all others are parameters. All are,
            if none is known.
        ctx: where it runs.
        arguments: arrays by name.
        gradients: an array, or None, by the name of the argument.
        states: arrays by name.
        grad_req: "write", "add" or "null" by the name of the argument.
        shared: one that never runs at the same time, to share memory with.
    """
    data = [name for name in arguments if name in data] or [*arguments]  # else nothing is called
    params = [name for name in arguments if name not in data]
    own = own_arrays(arguments, gradients, grad_req, params)
    own |= {name: array.detach() for name, array in states.items()}
    shapes = {name: arguments[name].shape for name in arguments if name in data}
    config = replace(config, keeps_operators=True)
    model = Model(symbol, own, config, shapes, symbol.name or "")
    if shared is not None:
        model.plans = shared.model.plans
    group = None if shared is None else shared.group
    return OptimizedExecutor(model, ctx, arguments, gradients, states, grad_req, group)


def _resized(array: Any, shape: tuple[int, ...]) -> Any:
    """The array in another shape: its first numbers, in its memory, or zeros if there are fewer."""
    if array.shape == shape:
        return array
    size = prod(shape)
    if not 0 < size <= array.size:
        return mx.nd.zeros(shape, array.context, array.dtype)
    with mx.autograd.pause():
        return array.as_nd_ndarray().reshape((-1,))[:size].reshape(shape)


def _inferred(symbol: Any, shapes: Mapping[str, Any]) -> Any:
    known = {*symbol.list_inputs()}
    try:
        found = symbol.infer_shape(**{name: s for name, s in shapes.items() if name in known})
    except mx.MXNetError as error:
        raise RefusedError(str(error).strip().splitlines()[-1]) from None
    if found[0] is None:
        raise RefusedError(f"the shapes of {', '.join(shapes)} do not tell those of all arguments")
    return found
