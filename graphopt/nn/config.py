"""What the user asked ``graphopt.optimize`` for."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.blocks import input_names
from graphopt.pipeline.base import Mode, Pass, Settings

OptimizeMode = Literal["auto", "training", "inference"]
#: The largest shapes of inputs, by name.
Limits = Mapping[str, tuple[int, ...]]
#: What begins the names of a step's labels, as those of its data begin with "data".
_LABEL = "label"


@dataclass(frozen=True)
class Config:
    """Arguments of :func:`graphopt.optimize`, checked."""

    passes: str | tuple[Pass, ...] | Sequence[Pass] = "default"
    mode: OptimizeMode = "auto"
    check: bool = False
    precise: bool = False
    strict: bool = False
    memory: int | None = None  # bytes of a training step
    max_shapes: Limits | None = None
    record: bool | None = None  # None: where it is measured to be the fastest
    #: What the user's model says: whether operators of his own live as long as it, not a call.
    keeps_operators: bool = False
    #: Inputs that ``max_shapes`` may leave out though they grow with those that it names.
    labels: tuple[str, ...] = ()
    #: What the user calls inputs that graphs call otherwise.
    called: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Check what is to be true or false, and what does not go together.

        Raises:
            InputError: something is not as it has to be.
        """
        for name in ("check", "precise", "strict", "record"):
            value = getattr(self, name)
            allowed = (True, False, None) if name == "record" else (True, False)
            if value not in allowed:
                raise InputError(f"{name}={value!r} is none of {', '.join(map(str, allowed))}")
        for name in ("memory", "max_shapes"):
            value = getattr(self, name)
            if value is not None and self.record:
                raise InputError(f"{name}= is for nets that compile whole; leave out record=True")
            if value is not None and self.mode == "inference":
                raise InputError(f"{name}= is about training; leave it out with mode='inference'")

    @property
    def plans_memory(self) -> bool:
        """Whether training runs in memory that graphopt bounds or shares."""
        return self.memory is not None or self.max_shapes is not None

    def graph_mode(self, *, differentiating: bool) -> Mode:
        """Which graph a call needs: training whenever autograd records or trains."""
        if self.mode == "auto":
            return "training" if differentiating else "inference"
        return self.mode

    def follows(self, mode: Mode) -> bool:
        """Whether parameters may be computed in as long as nobody writes to them.

        Not where memory is planned, as that takes some more.
        """
        return self.mode == "auto" and mode == "inference" and not self.plans_memory

    def within(self, memory: int | None, max_shapes: Limits | None) -> Config:
        """The same within these limits, and those that it has where these say nothing."""
        limits = {**(self.max_shapes or {}), **(max_shapes or {})}
        memory = self.memory if memory is None else memory
        return replace(self, memory=memory, max_shapes=limits or None)

    def without_labels(self) -> Config:
        """For a net alone: the labels of its steps are no inputs of it."""
        limits = self.max_shapes or {}
        own = {name: shape for name, shape in limits.items() if not name.startswith(_LABEL)}
        return replace(self, max_shapes=own or None)

    def with_labels(self, data: int, labels: int) -> Config:
        """For the net and its loss as one Block, which takes so many labels behind the data.

        Raises:
            InputError: there is a largest shape of what is no input.
        """
        if self.max_shapes is None:
            return self
        names = input_names(data + labels)
        called = (*input_names(data), *input_names(labels, _LABEL))
        renamed = {**dict(zip(names, names, strict=True)), **dict(zip(called, names, strict=True))}
        for name in self.max_shapes:
            if name not in renamed:
                raise InputError(f"max_shapes names {name!r}; the inputs are {', '.join(called)}")
        limits = {renamed[name]: shape for name, shape in self.max_shapes.items()}
        told = dict(zip(names, called, strict=True))
        return replace(self, max_shapes=limits, labels=names[data:], called=told)

    def settings(self, mode: Mode) -> Settings:
        """Parameters are frozen for good only where the user said that he only infers."""
        frozen = self.mode == "inference"
        planned = self.plans_memory and mode == "training"
        return Settings(mode, frozen, self.precise, self.strict, plans_memory=planned)

    def pipeline(self, mode: Mode) -> str | Sequence[Pass]:
        """``default`` stands for the pipeline named as the mode."""
        return mode if self.passes == "default" else self.passes


def checked_shapes(max_shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Largest shapes as the user gave them, by the names of inputs.

    Raises:
        InputError: there are none, or one is no shape.
    """
    if not isinstance(max_shapes, Mapping) or not max_shapes:
        raise InputError(
            f"max_shapes: {max_shapes!r} names no input; write {{'data': (64, 500)}}, or leave it"
            " out"
        )
    return {name: _shape(name, shape) for name, shape in max_shapes.items()}


def _shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if not sizes or not all(map(_is_extent, sizes)):
        raise InputError(f"max_shapes: {shape!r} is no shape for {name!r}; write {name}: (64, 500)")
    return tuple(map(int, sizes))


def _is_extent(size: Any) -> bool:
    """Also of numpy's integers, which shapes are often computed with."""
    return hasattr(size, "__index__") and not isinstance(size, bool) and size > 0


def check_shapes(limits: Limits, shapes: Mapping[str, Any], called: Mapping[str, str]) -> None:
    """Refuse inputs larger than ``max_shapes`` says.

    Args:
        limits: the largest shapes.
        shapes: of the inputs.
        called: what the user calls inputs, where that is not their name.

    Raises:
        InputError: one is, or a name is unknown.
    """
    for name, limit in limits.items():
        if name not in shapes:
            raise InputError(f"max_shapes names {name!r}; the inputs are {', '.join(shapes)}")
        shape = tuple(shapes[name])
        if len(shape) != len(limit) or any(map(operator.gt, shape, limit)):
            raise InputError(
                f"input {called.get(name, name)!r} has shape {shape}, and max_shapes allows"
                f" {limit}: nothing was run"
            )


def largest_arrays(
    limits: Limits,
    arrays: Mapping[str, Any],
    labels: Collection[str] = (),
) -> dict[str, Any]:
    """The same arrays, but zeros of the largest shape where there is one.

    Labels without one are as large as the data in each extent that both have in the same place, as
    samples and steps.
    """
    found = dict(arrays)
    shapes = {name: _grown(arrays[name].shape, limits, arrays) for name in labels}
    for name, shape in {**shapes, **limits}.items():
        given = arrays[name]
        mx = import_mxnet()
        zeros = mx.nd.zeros(shape, given.ctx, given.dtype)
        found[name] = zeros.as_np_ndarray() if isinstance(given, mx.np.ndarray) else zeros
    return found


def _grown(shape: tuple[int, ...], limits: Limits, arrays: Mapping[str, Any]) -> tuple[int, ...]:
    def largest(axis: int) -> int:
        for name, limit in limits.items():
            if arrays[name].shape[axis : axis + 1] == shape[axis : axis + 1]:
                return limit[axis]
        return shape[axis]

    return tuple(map(largest, range(len(shape))))
