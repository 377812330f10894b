"""What a call computes, as is fastest on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphopt.backend.fixed import FixedArrays
from graphopt.backend.keeping import keeping
from graphopt.backend.own_weights import with_own_weights
from graphopt.backend.passing import (
    hands_on_gradients,
    without_kept_results,
    without_passed_inputs,
)
from graphopt.backend.products import has_products
from graphopt.backend.tuning import Products, Tuned, tune_learning, tune_recurrences
from graphopt.backend.tuning import tune as tune_products
from graphopt.backend.unfuse import unfuse
from graphopt.backend.unread import reading_all
from graphopt.ir.graph import Graph
from graphopt.ir.node import PRODUCT


def settle(
    graph: Graph,
    fixed: FixedArrays,
    *,
    training: bool,
    frozen: bool,
    is_on_cpu: bool,
    is_tuned: bool,
) -> Products:
    """The forms of a graph that are worth a trial here.

    Args:
        graph: with static types.
        fixed: what it reads besides data; takes what is computed of that once, if ``frozen``.
        training: gradients are wanted.
        frozen: parameters stay as they are.
        is_on_cpu: it runs on a CPU.
        is_tuned: measure algorithms on this machine.
    """
    is_tuned = is_tuned and is_on_cpu
    if frozen and is_on_cpu:
        graph = with_own_weights(graph)
    found = Products(Tuned(fixed.freeze(graph) if frozen else graph), None)
    if is_tuned:
        found = Products(tune_recurrences(found.plain.graph, training=training), None)
    if frozen and is_on_cpu:
        found = _with_products(found.plain, fixed, is_tuned=is_tuned)
    elif is_tuned:
        found = Products(_after(found.plain, tune_learning(found.plain.graph)), None)
    if training:
        graph = reading_all(without_passed_inputs(found.plain.graph))
        return replace(found, plain=_but(found.plain, graph))
    found = _each(found, lambda graph: without_kept_results(graph, fixed.computed_once))
    # An engine that is not static has no state from call to call.
    if not is_on_cpu or not (frozen or not hands_on_gradients(found.plain.graph)):
        return found
    return _each(found, keeping)


def _with_products(before: Tuned, fixed: FixedArrays, *, is_tuned: bool) -> Products:
    """A frozen graph without packed products, and the form with them, if there is one."""
    graph, packed = before.graph, None
    if has_products(graph):
        packed = Tuned(graph)
        graph = unfuse(graph, lambda _graph, node: node.op == PRODUCT)
    plain = Tuned(graph)
    if is_tuned:
        tuned = tune_products(graph)
        packed = tuned.packed or packed
        plain = _but(tuned.plain, fixed.freeze(tuned.plain.graph))
    if packed is not None:
        packed = _after(before, _but(packed, fixed.freeze(packed.graph)))
    return Products(_after(before, plain), packed)


def _after(before: Tuned, tuned: Tuned) -> Tuned:
    return replace(tuned, told=(*before.told, *tuned.told))


def _each(found: Products, change: Callable[[Graph], Graph]) -> Products:
    packed = found.packed and _but(found.packed, change(found.packed.graph))
    return Products(_but(found.plain, change(found.plain.graph)), packed)


def _but(tuned: Tuned, graph: Graph) -> Tuned:
    return replace(tuned, graph=graph)
