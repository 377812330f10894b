"""What executors of a graph are in for: those that are called a few times are not compiled.

Programs bind for every request, or for every size of image that comes. Once some executors of one
graph were dropped after a few calls, the next one's first calls are MXNet's.
"""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from typing import Any, Final

from graphopt.analysis.effects import is_foreign
from graphopt.backend.documents import text_of

#: Calls that compiling takes longer than.
FEW: Final = 4
#: So many executors in a row that were dropped after few calls tell of the next one.
_IN_A_ROW: Final = 3
#: There is no end of graphs.
_MOST: Final = 256

_OPS: Final = re.compile(r'"op": "([^"]+)"')

#: How many in a row, by their graphs.
_dropped: OrderedDict[int, int] = OrderedDict()


class Stay:
    """Calls of executors that have one compiled graph.

    Attributes:
        calls: so far.
        is_brief: whether there will be few, as far as one can tell.
        keeps_operators: whether some are the user's, which may keep something from call to call:
            MXNet makes one of each for an executor.
    """

    def __init__(self, symbol: Any) -> None:
        """Nothing was called yet."""
        text = text_of(symbol)
        self._graph = hash(text)
        self.calls = 0
        self.keeps_operators = any(map(is_foreign, {*_OPS.findall(text)} - {"null"}))
        self.is_brief = _dropped.get(self._graph, 0) >= _IN_A_ROW and not self.keeps_operators

    def __del__(self) -> None:
        """Remember whether it was worth compiling."""
        if sys.is_finalizing():  # this module is taken apart
            return
        if self.calls >= FEW:
            _dropped.pop(self._graph, None)
        elif self.calls:
            _dropped[self._graph] = _dropped.pop(self._graph, 0) + 1
            if len(_dropped) > _MOST:
                _dropped.popitem(last=False)


def forget() -> None:
    """Know nothing of executors that are no more."""
    _dropped.clear()
