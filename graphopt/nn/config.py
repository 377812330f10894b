"""What the user asked ``graphopt.optimize`` for."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from graphopt.frontend.blocks import input_names
from graphopt.pipeline.base import Mode, Pass, Settings

OptimizeMode = Literal["auto", "training", "inference"]


@dataclass(frozen=True)
class Config:
    """Arguments of :func:`graphopt.optimize`, checked."""

    passes: str | tuple[Pass, ...] | Sequence[Pass] = "default"
    mode: OptimizeMode = "auto"
    check: bool = False
    precise: bool = False
    strict: bool = False
    memory: int | None = None  # bytes of a training step
    max_shapes: Mapping[str, tuple[int, ...]] | None = None
    record: bool | None = None  # None: where it is measured to be the fastest
    #: What the user's model says: whether operators of his own live as long as it, not a call.
    keeps_operators: bool = False
    #: Inputs that ``max_shapes`` may leave out though they grow with those that it names.
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what is to be true or false.

        Raises:
            InputError: it is something else.
        """
        for name in ("check", "precise", "strict", "record"):
            value = getattr(self, name)
            allowed = (True, False, None) if name == "record" else (True, False)
            if value not in allowed:
                raise InputError(f"{name}={value!r} is none of {', '.join(map(str, allowed))}")

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

    def with_labels(self, data: int, labels: int) -> Config:
        """For the net and its loss as one Block, which takes so many labels behind the data."""
        if self.max_shapes is None:
            return self
        names = input_names(data + labels)
        renamed = dict(zip(input_names(data), names, strict=False))
        limits = {renamed.get(name, name): shape for name, shape in self.max_shapes.items()}
        return replace(self, max_shapes=limits, labels=names[data:])

    def settings(self, mode: Mode) -> Settings:
        """Parameters are frozen for good only where the user said that he only infers."""
        frozen = self.mode == "inference"
        planned = self.plans_memory and mode == "training"
        return Settings(mode, frozen, self.precise, self.strict, plans_memory=planned)

    def pipeline(self, mode: Mode) -> str | Sequence[Pass]:
        """``default`` stands for the pipeline named as the mode."""
        return mode if self.passes == "default" else self.passes


def check_shapes(limits: Mapping[str, tuple[int, ...]], shapes: Mapping[str, Any]) -> None:
    """Refuse inputs larger than ``max_shapes`` says.

    Raises:
        InputError: one is, or a name is unknown.
    """
    for name, limit in limits.items():
        if name not in shapes:
            raise InputError(f"max_shapes names {name!r}; the inputs are {', '.join(shapes)}")
        shape = tuple(shapes[name])
        if len(shape) != len(limit) or any(map(operator.gt, shape, limit)):
            raise InputError(
                f"input {name!r} has shape {shape}, and max_shapes allows {limit}: nothing was run"
            )


def largest_arrays(
    limits: Mapping[str, tuple[int, ...]],
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


def _grown(
    shape: tuple[int, ...], limits: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Any]
) -> tuple[int, ...]:
    def largest(axis: int) -> int:
        for name, limit in limits.items():
            if arrays[name].shape[axis : axis + 1] == shape[axis : axis + 1]:
                return limit[axis]
        return shape[axis]

    return tuple(map(largest, range(len(shape))))
