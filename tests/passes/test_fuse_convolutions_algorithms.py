"""fuse-convolutions: which algorithms are measured, and which of them is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from graphopt.backend.infer import with_types
from graphopt.ir.parser import parse
from graphopt.kernels.convolutions.single import Layer
from graphopt.testing import run_pass
from tests.passes.fuse_convolutions_support import CONV, PASS, Clock, net, regions


@pytest.mark.parametrize(
    ("channels", "ms", "chosen"),
    [(512, 0.88, "winograd2"), (512, 0.8, "winograd4"), (128, 0.88, "winograd4")],
)
def test_memory_has_to_be_worth_it(channels: int, ms: float, chosen: str) -> None:
    """Of 512 channels and filters Winograd's larger tiles take 20 MiB more."""
    graph = with_types(
        parse(
            f"graph g(%x: f32[1,{channels},14,14], param %w: ?) {{ %c = Convolution(%x, %w)"
            f" {{kernel=(3, 3), no_bias=True, num_filter={channels}, pad=(1, 1)}} return %c }}"
        )
    )

    class Times(Clock):
        def layer_times_ms(self, layer: Layer, algorithms: Sequence[str]) -> dict[str, float]:
            return {name: {"winograd2": 1.0, "winograd4": ms}.get(name, 2.0) for name in algorithms}

    (region,) = regions(run_pass(graph, PASS, target=Times(), frozen=True).graph)
    assert region.attrs["algorithms"] == (chosen,)


@pytest.mark.parametrize(
    ("favourite", "option"),
    [
        ("winograd4", "winograd"),
        ("paired-winograd4", "winograd"),
        ("paired-winograd4", "paired"),
        ("paired", "paired"),
    ],
)
def test_algorithms_can_be_left_out(favourite: str, option: str) -> None:
    after = run_pass(
        net(f"{CONV} return %c"),
        f"{PASS}{{{option}=False}}",
        target=Clock(favourite),
        frozen=True,
    ).graph
    assert regions(after)[0].attrs["algorithms"] == ("direct",)


def test_pairs_are_not_measured_where_they_do_not_pay() -> None:
    """On processors whose multiplications keep them busy, or that have a matrix unit."""

    class Other(Clock):
        def dense_means(self) -> str:
            return "by the matrix unit"

    after = run_pass(net(f"{CONV} return %c"), PASS, target=Other("paired"), frozen=True).graph
    assert regions(after)[0].attrs["algorithms"] == ("direct",)
