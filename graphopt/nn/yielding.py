"""Generators that run code of twins after the method that made them has returned."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from graphopt.nn.pairs import Pairs


def handed_over(made: Generator[Any, Any, Any], pairs: Pairs) -> Generator[Any, Any, Any]:
    """The same generator to its user: what it yields and returns holds the user's Blocks."""
    step: Any = made.send
    given: Any = None
    try:
        while True:
            try:
                found = pairs.own(step(given))
            except StopIteration as end:
                return pairs.own(end.value)
            finally:
                pairs.settle()
            try:
                step, given = made.send, pairs.given((yield found))
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - all that is thrown in is passed on
                step, given = made.throw, error
    finally:
        try:
            made.close()  # which may run code of its own
        finally:
            pairs.settle()
