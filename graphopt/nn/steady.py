"""Tracing Python of Blocks that may do something else in another call."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphopt.errors import UnsupportedError
from graphopt.frontend.alone import traced_alone
from graphopt.frontend.blocks import describe
from graphopt.frontend.gluon import Traced, trace
from graphopt.nn.asking import why_every_call
from graphopt.nn.initializing import PythonFirst
from graphopt.nn.settings import Settings, not_hybridized, settings_read


def steadily_traced(
    block: Any, args: Sequence[Any], on_set: Callable[[], None], *, may_run: bool = False
) -> Traced:
    """The Block's Symbol; what its Python does once may be done.

    Args:
        block: any HybridBlock.
        args: arrays, or lists of arrays.
        on_set: is called if it has set attributes, for good.
        may_run: whether its Python may make this call instead.

    Raises:
        UnsupportedError: it cannot be traced, sets something in every call, keeps arrays, reads
            iterators, draws numbers in Python, or does something else for Symbols.
        PythonFirst: it does something once, in this call, and nothing of it is done yet.
    """
    with traced_alone(block), _looked_at(block) as before:
        traced = trace(block, args)
        if not before.are_same():
            if names := before.with_symbols():
                raise _refused(block, f"is called every time: it keeps an array as {names[0]}")
            then, first = before.anew(), traced
            traced = trace(block, args)
            if names := then.changed():
                raise _refused(block, f"sets {names[0]} in every call")
            if not traced.is_like(first):
                once = f"does something once: it sets {before.changed()[0]}"
                raise PythonFirst if may_run else _refused(block, once)
            on_set()
    return traced


@contextmanager
def once_for_all_calls(block: Any) -> Iterator[None]:
    """Python of a Block that runs within does for all of its calls.

    Raises:
        UnsupportedError: it does not: it sets something, draws numbers in Python, reads iterators,
            or does something else for Symbols. What it has set and drawn is as before then.
    """
    with _looked_at(block) as before:
        yield
        if not before.are_same():
            raise _refused(block, f"sets {(before.with_symbols() or before.changed())[0]}")


@contextmanager
def _looked_at(block: Any) -> Iterator[Settings]:
    """What a Block's Python reads, before it is traced; as before if anything is raised within.

    Raises:
        UnsupportedError: its code says that it has to run in every call, or it has drawn.
    """
    try:
        before = settings_read(block, is_thorough=True)
        every_call = why_every_call(not_hybridized(block))
    except Exception as error:
        why = f"reads what cannot be looked at: {type(error).__name__}: {error}"
        raise _refused(block, why) from error
    if every_call:
        raise _refused(block, f"is called every time: {every_call}")
    drawing = Generators(may_draw=before.may_draw)
    try:
        yield before
        if drawing.have_drawn():
            raise _refused(block, "draws numbers in Python")
    except BaseException:
        drawing.restore()
        before.restore()
        raise


def _refused(block: Any, why: str) -> UnsupportedError:
    return UnsupportedError(f"{describe(block)} {why}")


@contextmanager
def undone(block: Any) -> Iterator[None]:
    """What Python of a Block sets within is set as before."""
    before = settings_read(block, is_thorough=True)
    drawing = Generators(may_draw=before.may_draw)
    try:
        yield
    finally:
        drawing.restore()
        before.restore()


class Generators:
    """States of the generators of random numbers that Python has for all threads."""

    def __init__(self, *, may_draw: bool) -> None:
        """Note them; ``may_draw`` tells whether code that runs then may draw, as far as known."""
        self._python, self._numpy = random.getstate(), np.random.get_state()
        # Otherwise another thread has, which prepares data.
        self._counts = may_draw or threading.active_count() == 1

    def have_drawn(self) -> bool:
        """Whether that code has drawn numbers."""
        numpy: Any = np.random.get_state()
        same = all(np.array_equal(*pair) for pair in zip(numpy, self._numpy, strict=True))
        return self._counts and (not same or random.getstate() != self._python)

    def restore(self) -> None:
        """As if it had drawn none."""
        if self.have_drawn():
            random.setstate(self._python)
            np.random.set_state(self._numpy)
