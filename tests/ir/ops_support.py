"""What tests of the operator table share: its entries, and what MXNet says of its operators."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pytest

from graphopt.compat import import_mxnet
from graphopt.ir.ops import info, names

ENTRIES = [info(name) for name in names()]


class Registry:
    """What MXNet says about its operators, through the C interface that its front end uses."""

    def __init__(self) -> None:
        pytest.importorskip("numpy")
        try:
            self.mx = import_mxnet()
        except ImportError as error:
            pytest.skip(str(error))
        from mxnet import base

        self.base = base
        size, array = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
        base.check_call(base._LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(array)))
        self.names = [array[at].decode() for at in range(size.value)]

    def handle(self, op: str) -> Any:
        found = self.base.OpHandle()
        self.base.check_call(self.base._LIB.NNGetOpHandle(op.encode(), ctypes.byref(found)))
        return found

    def describe(self, op: str) -> tuple[str, dict[str, str]]:
        """The canonical name, and the type of every argument and attribute by name."""
        name, text, key, returns = (ctypes.c_char_p() for _ in range(4))
        count = ctypes.c_uint()
        columns = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
        self.base.check_call(
            self.base._LIB.MXSymbolGetAtomicSymbolInfo(
                self.handle(op),
                *(ctypes.byref(out) for out in (name, text, count, *columns, key, returns)),
            )
        )
        kinds = {columns[0][at].decode(): columns[1][at].decode() for at in range(count.value)}
        assert name.value is not None
        return name.value.decode(), kinds

    def compose(self, op: str, attrs: dict[str, str]) -> Any:
        """A symbol of one node called ``n`` whose inputs MXNet creates by itself."""
        symbol = self.base.SymbolHandle()
        count = len(attrs)
        keys = (ctypes.c_char_p * count)(*(key.encode() for key in attrs))
        values = (ctypes.c_char_p * count)(*(value.encode() for value in attrs.values()))
        self.base.check_call(
            self.base._LIB.MXSymbolCreateAtomicSymbol(
                self.handle(op), ctypes.c_uint(count), keys, values, ctypes.byref(symbol)
            )
        )
        node = self.mx.sym.Symbol(symbol)
        node._compose(name="n")
        return node

    def settings(self, op: str) -> list[dict[str, str]]:
        """Attributes that make ``op`` valid, then each of its choices in turn."""
        _, kinds = self.describe(op)
        kinds = {key: kind for key, kind in kinds.items() if not kind.startswith(("NDA", "Symbol"))}
        needed = {key: guess(kind) for key, kind in kinds.items() if "required" in kind}
        needed.update(ATTRS.get(op, {}))
        found = [needed]
        for key, kind in kinds.items():
            if kind.startswith("boolean"):
                found += [{**needed, key: "True"}, {**needed, key: "False"}]
            elif kind.startswith("{") and key not in ("dtype", "ctx"):
                words = kind[1 : kind.index("}")].replace("'", "").split(",")
                found += [{**needed, key: word.strip()} for word in words if "None" not in word]
        return found

    def call(self, op: str, inputs: list[Any], attrs: dict[str, str], out: Any = None) -> Any:
        from mxnet._ctypes.ndarray import _imperative_invoke

        result = _imperative_invoke(
            self.handle(op).value, inputs, list(attrs), list(attrs.values()), out, False, None
        )
        return result[0] if isinstance(result, (list, tuple)) else result

    def backward_needs(self, symbol: Any) -> tuple[bool, bool, bool] | None:
        """Whether the gradient graph reads inputs, outputs, head gradients; None if not known."""
        lib, inputs = self.base._LIB, symbol.list_inputs()
        group = self.mx.sym.Group
        heads = group([self.mx.sym.var(f"head{at}") for at in range(len(symbol.list_outputs()))])
        internals = symbol.get_internals()
        leaves = group([internals[name] for name in inputs])
        graph, done, back = (ctypes.c_void_p() for _ in range(3))
        assert lib.NNGraphCreate(symbol.handle, ctypes.byref(graph)) == 0
        for key, value in (
            (b"grad_ys", symbol),
            (b"grad_ys_out_grad", heads),
            (b"grad_xs", leaves),
        ):
            assert lib.NNGraphSetNodeEntryListAttr_(graph, key, value.handle) == 0
        passes = (ctypes.c_char_p * 1)(b"MXGradient")
        if lib.NNGraphApplyPasses(graph, 1, passes, ctypes.byref(done)) != 0:
            return None
        assert lib.NNGraphGetSymbol(done, ctypes.byref(back)) == 0
        symbol = self.mx.sym.Symbol(self.base.SymbolHandle(back.value))
        nodes = json.loads(symbol.tojson())["nodes"]
        reads = [False, False, False]
        for node in nodes:
            # zeros_like and ones_like look at shapes only
            if node["op"] in ("null", "zeros_like", "ones_like") or node["name"] == "n":
                continue
            for source in (nodes[at] for at, *_ in node["inputs"]):
                reads[0] |= source["name"] in inputs
                reads[1] |= source["name"] == "n"
                reads[2] |= source["name"].startswith("head")
        return reads[0], reads[1], reads[2]


def guess(kind: str) -> str:
    """A value for a required attribute of this type."""
    if kind.startswith("{"):
        return kind[1:].split(",")[0].strip("'} ")
    return "(1,1)" if "Shape" in kind or "tuple" in kind else "1"


ATTRS: dict[str, dict[str, str]] = {
    "Activation": {"act_type": "softsign"},
    "Cast": {"dtype": "float32"},
    "Pad": {"mode": "constant", "pad_width": "(0,0,0,0,1,1,1,1)"},
    "amp_cast": {"dtype": "float32"},
    "broadcast_axis": {"axis": "1", "size": "3"},
    "broadcast_to": {"shape": "(2,3,4)"},
    "clip": {"a_min": "-0.5", "a_max": "0.5"},
    "_np_roll": {"shift": "1"},
    "_npi_broadcast_to": {"shape": "(2,3,4)"},
    "_npi_full_like": {"fill_value": "2"},
}
