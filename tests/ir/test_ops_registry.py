"""The operator table against MXNet's registry."""

from __future__ import annotations

import sys

from graphopt.ir.ops import Gradient, Kind, canonical, info, is_known, names
from tests.ir.ops_support import ENTRIES, Registry

# Registered only where MXNet is built with CUDA.
GPU_ONLY = {"CuDNNBatchNorm"}


def test_every_name_exists_and_aliases_agree(registry: Registry) -> None:
    registered = set(registry.names)
    ours = {name for entry in ENTRIES for name in (entry.name, *entry.aliases)}
    ours -= GPU_ONLY | {
        "graphopt_fused",
        "graphopt_batch_dot",
    }  # which is there once kernels are loaded
    assert sorted(ours - registered) == []
    wrong = [name for name in ours if registry.describe(name)[0] != canonical(name)]
    assert wrong == []


def test_coverage_of_the_registry(registry: Registry) -> None:
    forward = [name for name in registry.names if "backward" not in name]
    known = [name for name in forward if is_known(name)]
    opaque = [name for name in known if info(name).kind is Kind.OPAQUE]
    pure = [name for name in known if info(name).pure]
    sys.stdout.write(
        f"\n{len(known)} of {len(forward)} forward names classified "
        f"({len(names())} operators), {len(pure)} pure, {len(opaque)} opaque\n"
    )
    assert len(known) / len(forward) > 0.98


def test_arguments_and_auxiliary_states(registry: Registry) -> None:
    checked = set()
    for entry in (entry for entry in ENTRIES if entry.arguments and entry.name not in GPU_ONLY):
        for attrs in registry.settings(entry.name):
            try:
                symbol = registry.compose(entry.name, attrs)
            except registry.mx.MXNetError:  # this setting alone is not valid
                continue
            found = tuple(name.removeprefix("n_") for name in symbol.list_inputs())
            narrowed = info(entry.name, attrs)
            assert narrowed.name == entry.name
            assert set(narrowed.arguments) <= set(entry.arguments)
            if found != narrowed.arguments:
                assert entry.name in FREE_INPUTS, (entry.name, attrs, found)
                assert found == narrowed.arguments[: len(found)]
            states = symbol.list_auxiliary_states()
            assert [symbol.list_inputs()[at] for at in narrowed.mutates] == states, entry.name
            checked.add(entry.name)
    assert len(checked) > 400


# Their number of inputs hangs on attributes in ways not worth a rule.
FREE_INPUTS = {"_npi_bincount", "_npi_delete", "_npi_ediff1d"}


def test_gradients(registry: Registry) -> None:
    checked = set()
    for entry in (entry for entry in ENTRIES if entry.arguments and entry.name not in GPU_ONLY):
        for attrs in registry.settings(entry.name):
            try:
                symbol = registry.compose(entry.name, attrs)
            except registry.mx.MXNetError:
                continue
            needs = registry.backward_needs(symbol)
            if needs is None:
                continue
            checked.add(entry.name)
            inputs, outputs, heads = needs
            narrowed = info(entry.name, attrs)
            assert narrowed.gradient.needs_inputs >= inputs, (entry.name, attrs)
            assert narrowed.gradient.needs_outputs >= outputs, (entry.name, attrs)
            if any(needs):
                assert narrowed.gradient is not Gradient.NONE, entry.name
                assert narrowed.loss == (not heads), (entry.name, attrs)
    assert len(checked) > 350
