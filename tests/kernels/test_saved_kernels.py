"""Kernels in nets and Symbols that are exported, saved and loaded again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.backend.infer import with_types
from graphopt.backend.symbol import to_symbol
from graphopt.backend.target import MXNetTarget
from graphopt.compat import import_mxnet
from graphopt.ir.node import FUSED
from graphopt.ir.parser import parse as parse_graph
from graphopt.testing import run_pass
from tests.kernels.gate_support import call, data, gate, is_fused, python

mx = import_mxnet()


def test_an_exported_net_runs_where_graphopt_was_imported(tmp_path: Path) -> None:
    fast = graphopt.optimize(gate(), mode="inference")
    x = data(5, 4)
    want = fast(x).asnumpy()
    assert is_fused(fast)
    fast.export(str(tmp_path / "net"), kernels=True)
    assert FUSED in (tmp_path / "net-symbol.json").read_text()
    np.save(tmp_path / "x.npy", x.asnumpy())
    code = """
import sys
import numpy as np
import graphopt
import mxnet as mx
path = sys.argv[1]
net = mx.gluon.SymbolBlock.imports(path + "/net-symbol.json", ["data"], path + "/net-0000.params")
for name in ("out", "again"):
    np.save(f"{path}/{name}.npy", net(mx.nd.array(np.load(path + "/x.npy"))).asnumpy())
    net.hybridize()
"""
    python(code, tmp_path)
    for name in ("out", "again"):
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), want, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Cannot decide type")
def test_by_default_plain_mxnet_loads_what_is_exported(tmp_path: Path) -> None:
    fast = graphopt.optimize(gate(), mode="inference")
    x = data(5, 4)
    want = fast(x).asnumpy()
    assert is_fused(fast)
    prefix = str(tmp_path / "net")
    fast.export(prefix)
    assert FUSED not in (tmp_path / "net-symbol.json").read_text()
    again = mx.gluon.SymbolBlock.imports(f"{prefix}-symbol.json", ["data"], f"{prefix}-0000.params")
    np.testing.assert_allclose(again(x).asnumpy(), want, rtol=1e-5, atol=1e-6)


def test_a_symbol_that_is_copied_and_saved_stays_what_it_is() -> None:
    graph = with_types(
        parse_graph(
            "graph g(%x: f32[8,4], %w: f32[4])"
            " { %a = broadcast_mul(%x, %w) %b = tanh(%a) %c = exp(%b) return %c }"
        )
    )
    symbol = to_symbol(run_pass(graph, "fuse-pointwise", target=MXNetTarget()).graph)
    again = mx.sym.load_json(symbol.tojson())
    x, w = data(8, 4), data(4)
    want = call(symbol, x, w).asnumpy()
    np.testing.assert_array_equal(call(again, x, w).asnumpy(), want)
    np.testing.assert_allclose(want, np.exp(np.tanh(x.asnumpy() * w.asnumpy())), rtol=1e-5)
