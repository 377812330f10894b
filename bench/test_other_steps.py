"""Recurrences that no layer or cell of Gluon's is: beside plain MXNet, and fused but unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import graphopt
from bench.recurrence import Size
from bench.report import Record
from bench.test_recurrence import Case, inputs
from bench.timing import figures, race, ratios
from graphopt.compat import import_mxnet
from graphopt.demo.checking import relative_error
from graphopt.passes import PIPELINES

mx = import_mxnet()
FULL, QUICK = Size(40, 32, 128, 128), Size(40, 2, 4, 4)
NARROW, QUICK_NARROW = Size(150, 64, 1, 1), Size(40, 2, 1, 1)


class Sru(mx.gluon.HybridBlock):
    """Simple recurrent units (Lei et al., 2018), unrolled: all products are in front."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        self.size = size
        with self.name_scope():
            self.gates = mx.gluon.nn.Dense(3 * size.units, flatten=False, in_units=size.columns)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        split = {"num_outputs": self.size.steps, "axis": 0, "squeeze_axis": True}
        rows = F.split(x, **split)
        state, found = F.zeros_like(rows[0]), []
        for row, gates in zip(rows, F.split(self.gates(x), **split), strict=True):
            new, forget, out = F.split(gates, num_outputs=3, axis=1)
            forget, out = F.sigmoid(forget), F.sigmoid(out)
            state = forget * state + (1 - forget) * new
            found.append(out * F.tanh(state) + (1 - out) * row)
        return F.stack(*found)


class PackedLstm(mx.gluon.HybridBlock):
    """An LSTM in ``foreach`` with gates along an axis, and one state for both of its own."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        self.units = units = size.units
        with self.name_scope():
            self.enter = mx.gluon.nn.Dense(4 * units, flatten=False, in_units=size.columns)
            self.back = self.params.get("back", shape=(4 * units, units))

    def hybrid_forward(self, F: Any, x: Any, back: Any) -> Any:
        def body(row: Any, state: Any) -> Any:
            h, c = F.split(state, num_outputs=2, axis=1)
            back_h = F.FullyConnected(h, back, no_bias=True, num_hidden=4 * self.units)
            gates = F.reshape(row + back_h, shape=(0, 4, -1))
            i, f, o, new = F.split(gates, num_outputs=4, axis=1, squeeze_axis=True)
            c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(new)
            h = F.sigmoid(o) * F.tanh(c)
            return h, F.concat(h, c, dim=1)

        first = F.slice_axis(F.concat(x, x, dim=2), axis=0, begin=0, end=1)
        return F.contrib.foreach(body, self.enter(x), F.zeros_like(F.squeeze(first, axis=0)))[0]


class Leaky(mx.gluon.HybridBlock):
    """A leaky integrator with three updates a step, of one number for each sequence, unrolled."""

    def __init__(self, size: Size, **more: Any) -> None:
        super().__init__(**more)
        self.size = size

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = F.split(x, num_outputs=self.size.steps, axis=0, squeeze_axis=True)
        state, found = rows[0], []
        for row in rows[1:]:
            for part in (0.1, 0.2, 0.3):
                state = F.tanh(state * (1 - part) + part * row)
            found.append(state)
        return F.stack(rows[0], *found)


NETS = {
    "SRU": (Sru, "reroll-recurrence", FULL, QUICK),
    "leaky": (Leaky, "reroll-recurrence", NARROW, QUICK_NARROW),
    "packed LSTM": (PackedLstm, "import-foreach", FULL, QUICK),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize("name", NETS)
def test_other_steps(
    name: str,
    backward: bool,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    make, finder, full, small = NETS[name]
    size = small if quick else full
    net = make(size, prefix="net_")
    net.initialize(mx.init.Uniform(0.1))
    x = inputs(size)
    cases = {"graphopt": Case(graphopt.optimize(net, strict=True), x)}
    if finder == "reroll-recurrence":
        pipeline = PIPELINES["training" if backward else "inference"]
        assert f"{finder}," in pipeline
        unrolled = pipeline.replace(f"{finder},", "")
        cases["unrolled"] = Case(graphopt.optimize(net, passes=unrolled), x)
    plain = make(size, prefix="net_", params=net.collect_params())
    plain.hybridize(static_alloc=True, static_shape=True)
    cases["plain"] = Case(plain, x)
    results = {label: case.found() for label, case in cases.items()}
    error = max(relative_error(results["plain"], found) for found in results.values())
    assert error < 1e-4
    assert found_by(finder, cases["graphopt"].net) == [1, 1]
    medians = race(
        benchmark,
        {label: case.step if backward else case.forward for label, case in cases.items()},
        rounds,
        quick,
    )
    if medians:
        table = f"Steps of other forms, {'training step' if backward else 'forward'}"
        shown = figures(medians) | {"max error": error}
        record(Record(f"{table}: {name}", str(size), shown, ratios(medians), {"plain": 1.0}))


def found_by(finder: str, net: Any) -> list[int]:
    """How many recurrences a pass made, in the graph of inference and in that of training."""
    return [
        receipt.stats.get("recurrences", 0)
        for entry in net._graphopt_entries()
        for receipt in entry.result.receipts
        if receipt.pass_text.startswith(finder)
    ]
