"""MXNet's convolutions in training, marked to be computed by Winograd's algorithm.

The bridge looks at the mark (``marked_convolution.h``); everything else of the operator is MXNet's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from graphopt.kernels.convolutions.single import Layer

#: The attribute that is the mark; MXNet keeps attributes with such names for others.
MARK: Final = "__winograd__"
#: What is computed by itself: the output, and the gradients of the images and of the filters.
DIRECTIONS: Final = ("forward", "data", "weight")

#: Images are timed up to so many multiplications, as all take the same time.
_MOST_MACS = 3e9
_ROUNDS = 4

#: Milliseconds of a direction by MXNet's way and by Winograd's.
Times = Mapping[str, tuple[float, float]]


def mark(directions: tuple[str, ...]) -> str:
    """The value of the mark for some directions."""
    return " ".join(directions)


def why_unfit(layer: Layer, lanes: int) -> str | None:
    """Why a convolution cannot be marked, or ``None``.

    Args:
        layer: the convolution.
        lanes: channels that make a block.
    """
    window, channels, filters = layer.window, layer.shape[1], layer.made[1]
    if layer.groups > 1:
        return f"it has {layer.groups} groups"
    if window.kernel != (3, 3):
        return "it is none of 3x3 pixels"
    if window.stride != (1, 1) or window.dilation != (1, 1):
        return "it leaves out pixels"
    if max(window.pad) > 2:
        return "its padding is large"
    if channels % lanes or filters % lanes:
        return f"its {channels} channels and {filters} filters are no whole blocks of {lanes}"
    return None


def direction_times_ms(mxnet: Any, layer: Layer) -> dict[str, tuple[float, float]]:
    """Milliseconds of each direction by MXNet's way and by Winograd's, in turns, the best of some.

    Args:
        mxnet: the module.
        layer: a convolution that can be marked; of its images some are taken.
    """
    count, channels, height, width = layer.shape
    filters, macs = layer.made[1], 9 * channels * layer.made[1] * layer.made[2] * layer.made[3]
    count = max(1, min(count, int(_MOST_MACS / macs)))
    nd, every = mxnet.nd, mark(DIRECTIONS)

    def convolve(x: Any, w: Any, marked: bool, pad: tuple[int, int]) -> Any:
        extra = {MARK: every} if marked else {}
        options = {"kernel": (3, 3), "pad": pad, "num_filter": w.shape[0], "no_bias": True}
        return nd.Convolution(x, w, **options, **extra)

    def blocks(shape: tuple[int, ...]) -> Any:
        """Numbers in the layout in which the marked ones leave them."""
        around = shape[1]
        numbers = nd.random.uniform(-1, 1, shape=shape)
        return convolve(numbers, nd.ones((around, around, 3, 3)) / around, True, (1, 1))

    found: dict[str, tuple[float, float]] = {}
    with mxnet.autograd.pause():
        x = blocks((count, channels, height, width))
        head = blocks((count, *layer.made[1:]))
        w = nd.random.uniform(-0.1, 0.1, shape=(filters, channels, 3, 3))
        for direction in DIRECTIONS:
            x.attach_grad("write" if direction == "data" else "null")
            w.attach_grad("write" if direction == "weight" else "null")
            calls = [
                _call(mxnet, partial(convolve, x, w, marked, layer.window.pad), direction, head)
                for marked in (False, True)
            ]
            found[direction] = _in_turns(mxnet, calls)
    return found


def _call(
    mxnet: Any, forward: Callable[[], Any], direction: str, head: Any
) -> Callable[[], object]:
    if direction == "forward":
        return forward
    with mxnet.autograd.record():
        y = forward()
    return lambda: y.backward(head, retain_graph=True)


def _in_turns(mxnet: Any, calls: list[Callable[[], object]]) -> tuple[float, float]:
    best = [float("inf")] * len(calls)
    for number in range(_ROUNDS + 1):
        for at, call in enumerate(calls):
            start = time.perf_counter()
            call()
            mxnet.nd.waitall()
            if number:  # the first one allocates
                best[at] = min(best[at], (time.perf_counter() - start) * 1e3)
    return best[0], best[1]
