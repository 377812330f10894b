"""What batched Blocks must not miss: children and arrays that change after they were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.batching.native.programs import Parameter
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.frontend.blocks import descendants
from graphopt.kernels.bridge.versions import Versions, fit
from graphopt.nn.settings import Settings


class Fingerprint:
    """What a Block's graph is made of: its children, parameters and settings."""

    def __init__(self, block: Any) -> None:
        """Note them as they are."""
        self._block, self._parts = block, _parts(block)
        self._settings = Settings(descendants(block))

    def is_same(self) -> bool:
        """Whether they are what they were."""
        return _parts(self._block) == self._parts and self._settings.are_same()


def _parts(block: Any) -> list[tuple[Any, ...]]:
    return [_of_one(part) for part in descendants(block)]


def _of_one(block: Any) -> tuple[Any, ...]:
    return (
        id(block),
        type(block),
        [(name, id(child)) for name, child in block._children.items()],
        [(name, id(p), p.shape, p.dtype) for name, p in block._reg_params.items()],
        bool(block._forward_hooks or block._forward_pre_hooks),
    )


class Watched:
    """What a block was computed from, as it was then.

    Attributes:
        stores: numbers of the recorder's stores that were read.
        parameters: that were read besides.
    """

    def __init__(
        self,
        stores: Sequence[int],
        parameters: Sequence[Parameter],
        ctx: Any,
        arrays: Sequence[Any],
    ) -> None:
        """Nobody waits: the engine notes how often arrays were written when it comes to it.

        Args:
            stores: their numbers.
            parameters: by context, of any shapes and dtypes.
            ctx: where they are read.
            arrays: the recorder's stores; those that are None are not watched.

        Raises:
            GraphoptError: MXNet's engine refuses.
        """
        self.stores = [store for store in stores if arrays[store] is not None]
        self.parameters, self._ctx = parameters, ctx
        self._arrays = self._now(arrays)
        self._versions = Versions(import_mxnet(), self._arrays)

    def check(self, arrays: Sequence[Any]) -> None:
        """Raise if what would be read now is not what was read then.

        Raises:
            GraphoptError: an array was written since, or a parameter has another one.
        """
        count = len(self.stores)
        now = self._now(arrays)
        written = Versions(import_mxnet(), self._arrays).read()
        for at, (then, before) in enumerate(zip(self._arrays, self._versions.read(), strict=True)):
            if now[at] is not then and at < count:
                continue  # the recorder keeps a copy, made before somebody wrote into the array
            if now[at] is not then or written[at] != before:
                raise GraphoptError(
                    "a value that a batched Block did not return is read for the first time after"
                    " parameters or inputs were changed, and can no longer be computed: read it"
                    " before (.asnumpy()), or return it from the Block"
                )

    def _now(self, arrays: Sequence[Any]) -> list[Any]:
        return [
            *(arrays[store] for store in self.stores),
            *(parameter(self._ctx) for parameter in self.parameters),
        ]


def why_unwatched() -> str | None:
    """Why changed arrays cannot be noticed, or None if they are. Needs the bridge."""
    if fit(import_mxnet()):
        return None
    return (
        "this build of MXNet does not lay out arrays as the one on PyPI, so values that are read"
        " for the first time after parameters were changed may be those of the new parameters"
    )
