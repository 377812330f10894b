"""What an optimized net tells of itself, in words, receipts and a page of HTML."""

from __future__ import annotations

import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.errors import InputError
from tests.nn.optimize_support import image, small_cnn

mx = import_mxnet()
nn = mx.gluon.nn


def test_check_compares_on_the_first_calls_values() -> None:
    fast = graphopt.optimize(small_cnn(), mode="inference", check=True)
    fast(image())
    (receipts,) = fast.receipts().values()
    assert any(r.max_error is not None for r in receipts)


def test_reports_before_the_first_call() -> None:
    fast = graphopt.optimize(small_cnn())
    assert "nothing compiled yet" in fast.explain()
    assert fast.receipts() == {}
    with pytest.raises(InputError, match="call it once first"):
        fast.graph()
    with pytest.raises(InputError, match="call it once first"):
        fast.export("x")


@pytest.mark.parametrize("mode", ["auto", "inference"])
def test_report_is_one_html_page_with_every_pass(tmp_path, mode: str) -> None:
    fast = graphopt.optimize(small_cnn(), mode=mode)
    with pytest.raises(InputError, match="call it once first"):
        fast.report(tmp_path / "r.html")
    fast(image())
    text = fast.report(tmp_path / "r.html").read_text()
    assert "<html" in text
    for receipt in next(iter(fast.receipts().values())):
        assert receipt.pass_text in text
    with pytest.raises(InputError, match="cannot write"):
        fast.report(tmp_path / "none" / "r.html")
    with pytest.raises(InputError, match=r"cannot write .*null byte"):
        fast.report(f"{tmp_path}/a\0b")
    with pytest.raises(InputError, match="takes the path of a file, not a NoneType"):
        fast.report(None)


def test_explain_tells_of_methods_that_mxnet_runs() -> None:
    class Siamese(nn.HybridSequential):
        def template(self, x):
            return self[0](x)

    net = Siamese()
    net.add(nn.Dense(3))
    net.initialize()
    optimized = graphopt.optimize(net)
    optimized.template(mx.nd.ones((2, 4)))
    assert optimized.explain().endswith("of the Block itself; MXNet runs its methods template")
    assert graphopt.optimize(nn.HybridSequential()).explain().endswith("at the first call")


def test_explain_tells_of_equal_layers_once() -> None:
    from graphopt.nn.explain import _grouped

    told = ["a: faster, 1 ms", "b, c: faster, 1 ms", "d: faster, 2 ms", "e: faster, 1 ms"]
    assert _grouped(told) == ["a and 2 more: faster, 1 ms", "d: faster, 2 ms"]
    steps = [f"cell: packed {0.1 * n:.1f} ms, by MXNet {n} ms" for n in (2, 1, 3)]
    spans = "cell and 2 more: packed 0.1 to 0.3 ms, by MXNet 1 to 3 ms"
    assert _grouped([*steps, *told[2:3]]) == [spans, "d: faster, 2 ms"]
