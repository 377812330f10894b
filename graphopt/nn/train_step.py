"""Training steps as one call: forward, loss, backward and the update of the weights."""

from __future__ import annotations

import ctypes
import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from graphopt.backend.arrays import Alike
from graphopt.backend.caller import LearningEngine
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError
from graphopt.frontend.gluon import why_not_traceable
from graphopt.kernels import bridge
from graphopt.memory.sizes import parse_size
from graphopt.nn.config import Config, checked_shapes
from graphopt.nn.entry import Entry
from graphopt.nn.optimized import Optimized
from graphopt.nn.originals import original
from graphopt.nn.settings import Settings, settings_if_known
from graphopt.nn.signatures import told_of
from graphopt.nn.structure import Structure
from graphopt.nn.views import view
from graphopt.nn.with_loss import with_loss
from graphopt.optimizers.trainer import OptimizedTrainer, TrainerPlan, trainer_view
from graphopt.pipeline.remarks import counted

#: The most elements of all weights that one thread updates, and of those of one operation.
_MOST_BY_ONE, _MOST_WEIGHTS = 1 << 17, 1 << 23
#: Types of inputs that steps are prepared for.
_MOST_TYPES = 64


def train_step(
    net: Any,
    loss: Any,
    trainer: Any,
    *,
    memory: str | int | None = None,
    max_shapes: Mapping[str, Sequence[int]] | None = None,
) -> TrainStep:
    """A training step as one call.

    ``step(data, label)`` does what these lines do, and returns the losses::

        with mx.autograd.record():
            losses = loss(net(data), label)
        losses.backward()
        trainer.step(len(data))

    Net and loss are compiled as one graph, or recorded as one where that is the fastest way of a
    net with Python of its own, and one kernel updates the weights. Where all of it is dense layers
    and what lies between them, the step is one operation without autograd, and if it is small the
    calling thread runs it: a policy of some layers takes a tenth of the time. Gradients are in
    ``parameter.grad()`` afterwards, but inputs get none. A trainer with a key-value store, or whose
    class has a ``step`` of its own, is called as in those lines.

    Args:
        net: a Gluon Block, or what :func:`graphopt.optimize` made of one, with its options.
        loss: a Gluon Block of predictions and labels.
        trainer: a ``gluon.Trainer`` of the net's parameters, optimized or not.
        memory: the budget of a step, as :func:`graphopt.optimize` takes it; the net's if left out.
        max_shapes: the largest shapes of data and labels, which go before the net's: ``data`` and
            ``label``, or ``data0``, ``data1`` and ``label0``, ``label1`` where there are several.
            Labels that are left out are as large as the data in the extents that they share.

    Raises:
        InputError: something else was given.
    """
    mx = import_mxnet()
    for what, block in (("net", net), ("loss", loss)):
        if not isinstance(block, mx.gluon.Block):
            raise InputError(f"{what}: a {type(block).__name__} is no Gluon Block")
    if not isinstance(trainer, mx.gluon.Trainer):
        raise InputError(f"trainer: a {type(trainer).__name__} is no gluon.Trainer")
    limits = {
        "memory": None if memory is None else parse_size(memory),
        "max_shapes": None if max_shapes is None else checked_shapes(max_shapes),
    }
    return TrainStep(net, loss, trainer, limits)


class TrainStep:
    """What :func:`train_step` returns."""

    def __init__(self, net: Any, loss: Any, trainer: Any, limits: dict[str, Any]) -> None:
        """See :func:`train_step`; ``limits`` are its ``memory`` and ``max_shapes``, checked."""
        config = net._graphopt_config if isinstance(net, Optimized) else Config()
        config = config.within(**limits)
        self._mx = import_mxnet()
        self._given = net, loss, trainer
        self._limits = limits
        self._trainer: Any = (
            trainer
            if isinstance(trainer, OptimizedTrainer)
            else trainer_view(trainer, precise=config.precise, strict=False)
        )
        # Whose inputs have no largest shapes: predictions are one of them.
        of_loss = replace(config, max_shapes=None)
        self._parts = [
            block if isinstance(block, Optimized) else view(block, own)
            for block, own in ((net, config.without_labels()), (loss, of_loss))
        ]
        self._own = [part for part in self._parts if part is not net and part is not loss]
        self._blocks = [original(block) for block in self._parts]
        self._structures = list(map(Structure, self._blocks))
        self._settings = self._settings_now()
        self._states = [part.graphopt_state for part in self._parts]
        self._config = config
        self._wholes: dict[tuple[int, int], Any] = {}
        self._small: dict[bytes, _SmallStep] = {}

    def __call__(self, data: Any, label: Any, batch_size: int | None = None) -> Any:
        """Take a step.

        Args:
            data: an NDArray, or several for a net that takes several.
            label: an NDArray, or several, which the loss takes behind the predictions.
            batch_size: what gradients are divided by; the first extent of the data by default.

        Returns:
            What the loss returned, an NDArray of any shape.

        Raises:
            InputError: data or label is no NDArray, or there are no samples.
        """
        read, labels = _arrays("data", data), _arrays("label", label)
        given = read + labels
        size = given[0].shape[0] if batch_size is None else batch_size
        if not _is_number(size) or not size:
            several = "; give several labels, or weights of samples, as a list: step(x, [y, w])"
            hint = several if isinstance(size, self._mx.nd.NDArray) else ""
            raise InputError(f"batch_size {size!r}: gradients cannot be divided by it{hint}")
        self._follow()
        told = None if self._has_hooks() else told_of(given)
        known = None if told is None else self._small.get(told)
        if known is not None:
            found = known(given, size)
            if found is not None:
                return found
        losses, entry = self._recorded(read, labels)
        self._mx.autograd.backward(losses)
        self._trainer.step(size)
        if told is not None:
            self._prepare(told, entry, given)
        return losses

    def __repr__(self) -> str:
        """The net, the loss and the trainer, which tell of themselves."""
        net, loss, trainer = (type(given).__name__ for given in self._given)
        return f"TrainStep(net={net}, loss={loss}, trainer={trainer})"

    def explain(self) -> str:
        """What was done to net and loss, what updates the weights, and which thread runs it."""
        blocks = list(self._wholes.values()) or self._parts
        lines = [block.explain() for block in blocks]
        lines.append(self._trainer.explain())
        reason = self._trainer.graphopt_state.why_stepwise()
        if reason is not None:
            lines.append(f"the trainer's step is called for every update: {reason}")
            return "\n".join(lines)
        by_caller = sum(small.engine.is_small for small in self._small.values())
        if by_caller:
            lines.append(f"the calling thread runs all of a step, for {_types(by_caller)}")
        if len(self._small) > by_caller:
            count = len(self._small) - by_caller
            lines.append(f"all of a step is one operation, for {_types(count)}")
        return "\n".join(lines)

    def reset(self) -> None:
        """Forget what was compiled: what net and loss hold is compiled in at the next step.

        ``reset`` and ``hybridize`` of an optimized net or loss that was given do so, too.
        """
        for part in self._own:
            part.reset()
        self._forget()

    def _forget(self) -> None:
        """Make all of a step anew; graphs of hybridized Blocks are theirs, and stay."""
        self._structures = list(map(Structure, self._blocks))
        self._states = [part.graphopt_state for part in self._parts]
        self._wholes.clear()
        self._small.clear()

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Hybridize net and loss, as Block.hybridize; they are compiled anew at the next step."""
        for part in self._parts:
            part.hybridize(active, **kwargs)
        self.reset()

    def __reduce__(self) -> Any:
        """Copy and pickle net, loss and trainer as one; they are compiled anew."""
        return _step_of_copies, (*self._given, self._limits)

    def _follow(self) -> None:
        """Forget what was made of Blocks that were reset, or whose children are others now."""
        states = [part.graphopt_state for part in self._parts]
        are_same = all(structure.is_same() for structure in self._structures)
        if not are_same or not all(map(operator.is_, states, self._states)):
            self._forget()
        if any(whole.graphopt_state.compiled.is_outdated() for whole in [*self._wholes.values()]):
            self._small.clear()  # as below
        if not all(settings.are_same() for settings in self._settings):
            self._settings = self._settings_now()
            self._small.clear()  # the views follow by themselves

    def _settings_now(self) -> list[Settings]:
        return [found for found in map(settings_if_known, self._blocks) if found is not None]

    def _has_hooks(self) -> bool:
        return any(
            block._forward_hooks or block._forward_pre_hooks or structure.hooked()
            for block, structure in zip(self._blocks, self._structures, strict=True)
        )

    def _recorded(self, data: list[Any], labels: list[Any]) -> tuple[Any, Entry | None]:
        """The losses as autograd records them, and what was compiled for them as one graph."""
        whole = self._whole(len(data), len(labels))
        with self._mx.autograd.record():
            if whole is None:
                return self._parts[1](self._parts[0](*data), *labels), None
            losses = whole(*data, *labels)
            return losses, whole.graphopt_state.compiled.entry([*data, *labels])

    def _whole(self, data: int, labels: int) -> Any:
        """Net and loss as one Block; ``None`` where there are hooks."""
        if self._has_hooks():
            return None
        if (data, labels) not in self._wholes:
            is_plain = any(map(why_not_traceable, self._blocks))
            net, loss = self._blocks
            made = with_loss(net, loss, data, is_plain=is_plain)
            self._wholes[data, labels] = view(made, self._config.with_labels(data, labels))
        return self._wholes[data, labels]

    def _prepare(self, told: bytes, entry: Entry | None, given: list[Any]) -> None:
        """Have the next step of that type be one operation, if it can."""
        self._small.pop(told, None)
        small = None if entry is None else _prepared(entry, self._trainer, given)
        if small is None:
            return
        if len(self._small) >= _MOST_TYPES:
            self._small.clear()
        self._small[told] = small


def _types(count: int) -> str:
    return f"{counted(count, 'types')} of inputs"


def _is_number(size: Any) -> bool:
    return isinstance(size, numbers.Real)


def _step_of_copies(net: Any, loss: Any, trainer: Any, limits: dict[str, Any]) -> TrainStep:
    """A step that learns as that of the originals.

    MXNet copies no array's mark for autograd, and an optimizer without its parameters, which have
    multipliers of rates.
    """
    learned = {*net.collect_params().values(), *loss.collect_params().values(), *trainer._params}
    for p in learned:
        if p._grad is not None and p._data[0].grad is None:
            import_mxnet().autograd.mark_variables(p._data, p._grad, p.grad_req)
    trainer._optimizer.param_dict = dict(enumerate(trainer._params))
    return TrainStep(net, loss, trainer, limits)


def _arrays(what: str, given: Any) -> list[Any]:
    arrays = list(given) if isinstance(given, (list, tuple)) else [given]
    if not arrays or not all(isinstance(a, import_mxnet().nd.NDArray) for a in arrays):
        raise InputError(f"{what}: give an NDArray, or a list of NDArrays")
    return arrays


@dataclass
class _SmallStep:
    """A step of one type of inputs that is one operation."""

    entry: Entry
    engine: LearningEngine
    bound: list[Any]
    trainer: Any
    plan: TrainerPlan
    at: list[int]  # which of the engine's inputs each array of a call is; -1: none
    make: Alike

    def __post_init__(self) -> None:
        grads = {id(weight.data): weight.grad for weight in self.plan.weights}
        handles = [None if array is None else array.handle for array in self.bound]
        drawn = [None] * len(self.engine.draws)
        handles += drawn
        self._read = (ctypes.c_void_p * len(handles))(*handles)
        gradients = [*(grads.get(id(array)) for array in self.bound), *drawn]
        self._gradients = (ctypes.c_void_p * len(handles))(
            *(None if grad is None else grad.handle for grad in gradients)
        )
        self._library = _function()
        self._ids = {*map(id, self.bound)}
        parameters = (watched[0] for watched in self.entry.watched)
        self._frozen = [p for p in parameters if p.grad_req == "null" and p._differentiable]

    def __call__(self, given: Sequence[Any], batch_size: int) -> Any:
        """The losses; ``None``, and nothing done, if it does not fit any more."""
        trainer = self.trainer
        if trainer.graphopt_state.why_stepwise() is not None or not trainer._kv_initialized:
            return None
        # Of a parameter that is data, too, the gradient has a part that is not computed here.
        if any(id(array) in self._ids for array in given):
            return None
        trainer._check_and_rescale_grad(trainer._scale / batch_size)
        plan = trainer.graphopt_state.plan()
        is_followed = self.entry.refresh(given[0].ctx)
        if (
            not is_followed
            or plan is not self.plan
            or self.entry.lowered.bound[1] is not self.bound
        ):
            return None
        if any(parameter.grad_req != "null" for parameter in self._frozen):
            return None  # what the trainer does not have is to get its gradient, too
        read = type(self._read).from_buffer_copy(self._read)  # threads may call one step
        for at, array in zip(self.at, given, strict=True):
            if at >= 0:
                read[at] = array.handle
        drawn = [draw(given[0].ctx) for draw in self.engine.draws]
        for at, array in enumerate(drawn, len(self.bound)):
            read[at] = array.handle
        losses = self.make()
        told = plan.told()
        if told is None:
            return None
        made = (ctypes.c_void_p * 1)(losses.handle)
        if self._library.graphopt_step(self.engine.number, read, self._gradients, made, *told):
            raise GraphoptError(self._library.graphopt_error().decode())
        return losses


def _prepared(entry: Entry, trainer: Any, given: Sequence[Any]) -> _SmallStep | None:
    """A step that is one operation, if the graph is, and the rest is as it is mostly."""
    engine, bound = entry.lowered.bound
    if not isinstance(engine, LearningEngine) or len(engine.types) != 1 or entry.computed:
        return None
    if trainer.graphopt_state.why_stepwise() is not None:
        return None
    plan = trainer.graphopt_state.plan()
    if isinstance(plan, str) or plan.refused or engine.types[0].dtype != "float32":
        return None
    weights = {id(weight.data) for weight in plan.weights}
    learned = [array for array in bound if array is not None and array.grad is not None]
    if {id(array) for array in learned} != weights or len(learned) != len(weights):
        return None  # others get gradients, too, or some none
    if any(p.grad_req != "write" for p in trainer._params if p.grad_req != "null"):
        return None
    most = _MOST_BY_ONE if engine.is_small else _MOST_WEIGHTS
    if sum(weight.data.size for weight in plan.weights) > most:
        return None
    names = dict(zip(entry.traced.names, range(len(given)), strict=True))
    at = [-1] * len(given)
    for place, name in enumerate(engine.inputs):
        if name in names:
            at[names[name]] = place
    mx = import_mxnet()
    type_ = engine.types[0]
    losses = mx.nd.empty(type_.shape, given[0].ctx, np.dtype(type_.dtype))
    if isinstance(given[0], mx.np.ndarray):
        losses = losses.as_np_ndarray()
    return _SmallStep(entry, engine, bound, trainer, plan, at, Alike(losses))


@cache
def _function() -> ctypes.CDLL:
    library = bridge.load(import_mxnet())
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.graphopt_step.argtypes = [
        *(number, pointer, pointer, pointer),
        *(pointer, pointer, number, number),
        *(pointer, number, number),
    ]
    return library
