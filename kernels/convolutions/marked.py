"""MXNet's convolutions in training, marked to be computed by algorithms of ours.

The bridge looks at the mark (``marked_convolution.h``); everything else of the operator is MXNet's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from graphopt.kernels.convolutions.single import Layer
from graphopt.kernels.convolutions.spec import DIRECT, PAIRED
from graphopt.kernels.waiting import wait_for_all

#: The attribute that is the mark; MXNet keeps attributes with such names for others.
MARK: Final = "__algorithms__"
#: What is computed by itself: the output, and the gradients of the images and of the filters.
DIRECTIONS: Final = ("forward", "data", "weight")
#: MXNet's way, by oneDNN.
MXNET: Final = "mxnet"
WINOGRAD4: Final = "winograd4"
PAIRED_WINOGRAD4: Final = "paired-winograd4"
#: As a product with what filters see at each place (``kernels/bridge/columns.h``).
COLUMNS: Final = "columns"

#: Channels and filters of groups that the bridge knows.
_WIDTHS = (2, 4, 8)
#: Pixels along a side of filters of one channel, of which it knows the gradient.
_DEPTHWISE = (3, 5, 7)
#: Channels of images, not of what is made of them.
_FEW = 4
#: Images are timed up to so many multiplications, as all take the same time.
_MOST_MACS = 1e9
_ROUNDS = 4
#: Seconds after which a direction of a large layer, whose times differ less, is not timed again.
_PATIENCE_S = 0.06

#: How each direction can be computed besides by MXNet.
Ways = Mapping[str, Sequence[str]]
#: Milliseconds of each direction, by MXNet and by each of its ways.
Times = Mapping[str, Mapping[str, float]]


def mark(chosen: Mapping[str, str]) -> str:
    """The value of the mark: of each direction that is not MXNet's, how it is computed."""
    return " ".join(f"{direction}:{name}" for direction, name in chosen.items() if name != MXNET)


def ways(layer: Layer, *, has_pairs: bool) -> Ways:
    """How each direction of a layer that is not unfit can be computed besides by MXNet."""
    if _is_depthwise(layer):
        return {"forward": (), "data": (), "weight": (DIRECT,)}
    if layer.groups > 1 or layer.window.kernel == (1, 1):
        found = (DIRECT,) if layer.groups > 1 else (PAIRED,) if has_pairs else ()
        data = found if layer.window.stride == (1, 1) else ()
        return {"forward": found, "data": data, "weight": found}
    fast = (WINOGRAD4, PAIRED_WINOGRAD4) if has_pairs else (WINOGRAD4,)
    return {"forward": fast, "data": fast, "weight": (WINOGRAD4,)}


def by_columns(layer: Layer, lanes: int) -> tuple[str, ...]:
    """Directions for which columns may be faster than MXNet: oneDNN has no kernels for them.

    Those that it has are for whole blocks along two axes, for one pixel, and for images of few
    channels, as a net's first layer has them, that become whole blocks.

    Args:
        layer: the convolution.
        lanes: channels that make a block.
    """
    channels, filters = layer.shape[1], layer.made[1]
    if layer.groups > 1 or layer.window.kernel == (1, 1):
        return ()
    if layer.axes == 2 and not (channels % lanes or filters % lanes):
        return ()
    return DIRECTIONS[1:] if channels <= _FEW and filters % lanes == 0 else DIRECTIONS


def why_unfit(layer: Layer, lanes: int) -> str | None:
    """Why a convolution cannot be computed in blocks, or ``None``.

    Args:
        layer: the convolution.
        lanes: channels that make a block.
    """
    window, channels, filters = layer.window, layer.shape[1], layer.made[1]
    side = window.kernel[0]
    if window.kernel not in ((3, 3), (1, 1)) and not (
        _is_depthwise(layer) and window.kernel == (side, side) and side in _DEPTHWISE
    ):
        return "it is neither of 3x3 pixels nor of one"
    if window.kernel == (3, 3) and window.stride != (1, 1) and layer.groups == 1:
        return "it leaves out pixels"
    if window.dilation != (1, 1) and (window.kernel == (1, 1) or layer.groups > 1):
        return "its pixels lie apart"
    reach = ((side - 1) * apart for apart in window.dilation)
    if any(pad > most for pad, most in zip(window.pad, reach, strict=True)):
        return "its padding is large"
    if channels % lanes or filters % lanes:
        return f"its {channels} channels and {filters} filters are no whole blocks of {lanes}"
    width = channels // layer.groups
    fits = window.kernel == (3, 3) and channels == filters and width in _WIDTHS and width < lanes
    if layer.groups > 1 and not fits and not _is_depthwise(layer):
        return f"it has {layer.groups} groups of {width} channels"
    return None


def _is_depthwise(layer: Layer) -> bool:
    return 1 < layer.groups == layer.shape[1] == layer.made[1]


def direction_times_ms(mxnet: Any, layer: Layer, ways: Ways) -> dict[str, dict[str, float]]:
    """Milliseconds of each direction by MXNet and by its ways, in turns, the best of some.

    Args:
        mxnet: the module.
        layer: a convolution that can be marked; of its images some are taken.
        ways: of it; directions without any are not timed.
    """
    window = layer.window
    count, channels, height, width = layer.shape
    filters, pixels = layer.made[1], layer.made[2] * layer.made[3]
    macs = window.kernel[0] * window.kernel[1] * channels // layer.groups * filters * pixels
    count = max(1, min(count, int(_MOST_MACS / macs)))
    nd = mxnet.nd
    axes = slice(2 - layer.axes, 2)
    taps = tuple(window.kernel)[axes]
    options = {
        "kernel": taps,
        "stride": window.stride[axes],
        "pad": window.pad[axes],
        "dilate": window.dilation[axes],
        "num_filter": filters,
        "num_group": layer.groups,
        "no_bias": True,
    }

    def convolve(x: Any, w: Any, direction: str, name: str) -> Any:
        return nd.Convolution(x, w, **options, **_marked({direction: name}))

    draws = np.random.default_rng(0)  # MXNet's numbers are the user's

    def uniform(bound: float, shape: tuple[int, ...]) -> Any:
        return nd.array(draws.uniform(-bound, bound, shape).astype(np.float32))

    def blocks(shape: tuple[int, ...]) -> Any:
        """Numbers in the layout in which the marked ones leave them: as a filter a channel does."""
        if layer.axes == 1:
            return uniform(1, (*shape[:2], shape[3]))
        alone = {"num_filter": shape[1], "num_group": shape[1], "no_bias": True}
        numbers, weights = uniform(1, shape), nd.ones((shape[1], 1, 3, 3)) / 9
        return nd.Convolution(numbers, weights, kernel=(3, 3), pad=(1, 1), **alone)

    found: dict[str, dict[str, float]] = {}
    # As in training, where weights stay in rows.
    with mxnet.autograd.pause(train_mode=True):
        x = blocks((count, channels, height, width))
        head = blocks((count, *layer.made[1:]))
        w = uniform(0.1, (filters, channels // layer.groups, *taps))
        for direction in filter(ways.get, DIRECTIONS):
            x.attach_grad("write" if direction == "data" else "null")
            w.attach_grad("write" if direction == "weight" else "null")
            calls = {
                name: _call(mxnet, partial(convolve, x, w, direction, name), direction, head)
                for name in (MXNET, *ways[direction])
            }
            found[direction] = _in_turns(mxnet, calls)
    return found


def _marked(chosen: Mapping[str, str]) -> dict[str, str]:
    value = mark(chosen)
    return {MARK: value} if value else {}


def _call(
    mxnet: Any, forward: Callable[[], Any], direction: str, head: Any
) -> Callable[[], object]:
    if direction == "forward":
        return forward
    with mxnet.autograd.record():
        y = forward()
    return lambda: y.backward(head, retain_graph=True)


def _in_turns(mxnet: Any, calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    spent = 0.0
    for number in range(_ROUNDS + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            wait_for_all(mxnet)
            took = time.perf_counter() - start
            if number:  # the first one allocates
                best[name] = min(best[name], took * 1e3)
                spent += took
        if spent > _PATIENCE_S and number > 1:
            break
    return best
