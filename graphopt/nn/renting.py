"""When a signature is worth compiling, where a Block is called with many.

The ski-rental rule: from the ninth signature on one is run as plain MXNet runs it until that has
taken as long as compiling takes, and compiled then. So no sequence of calls takes more than twice
as long as by the better of both, whatever lengths come (Karlin, Manasse, Rudolph and Sleator,
Competitive snoopy caching, Algorithmica 3, 1988).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.frontend.gluon import Traced

#: So many signatures are compiled at their first call: buckets, a last batch, another batch size.
AT_ONCE = 8
#: How many signatures are remembered that are not compiled.
_REMEMBERED = 4096
#: A backward pass takes about twice as long as what it is the backward of.
_STEP = 3.0

Key = tuple[Any, ...]
#: MXNet's operator for a graph, its inputs (Parameters, or names of data), and where it is from.
Plain = tuple[Any, list[Any], Traced]


class Renting:
    """Plain calls of one Block, and what they took.

    Attributes:
        calls: how many there were.
    """

    def __init__(self, parameters: Callable[[], dict[str, Any]]) -> None:
        """Nothing was compiled yet; ``parameters`` are the Block's, by name."""
        self._parameters = parameters
        self._plain: dict[Key, Plain] = {}
        self._spent: OrderedDict[Key, float] = OrderedDict()  # seconds of plain calls
        self._lock = threading.Lock()
        self._compiling = 0.0
        self._compiled = 0
        self.calls = 0

    @property
    def signatures(self) -> int:
        """How many signatures were called and not compiled, as far as remembered."""
        return len(self._spent)

    def compiled(self, key: Key, seconds: float) -> None:
        """A signature was compiled."""
        self._compiled += 1
        self._compiling += seconds
        self._spent.pop(key, None)

    def is_due(self, key: Key) -> bool:
        """Whether a signature is to be compiled now."""
        if self._compiled < AT_ONCE:
            return True
        return self._spent.get(key, 0.0) * self._compiled >= self._compiling

    def plain(self, key: Key, trace: Callable[[], Traced]) -> Plain:
        """What runs calls with arguments of that layout, of any shape."""
        kind = key[:3]
        if kind not in self._plain:
            traced = trace()
            known = dict(self._parameters().items())  # what Gluon returns makes what it has not
            reads = [known.get(name, name) for name in traced.symbol.list_inputs()]
            self._plain[kind] = import_mxnet().nd.CachedOp(traced.symbol), reads, traced
        return self._plain[kind]

    def run(self, key: Key, given: Sequence[Any], plain: Plain) -> tuple[list[Any], Any] | None:
        """A plain call: its outputs and their layout; ``None`` where parameters are not there."""
        operator, reads, traced = plain
        ctx, data = key[2], dict(zip(traced.names, given, strict=True))
        parameters = [each for each in reads if not isinstance(each, str)]
        if any(p._data is None or ctx not in p.list_ctx() for p in parameters):
            return None
        arrays = [data[each] if isinstance(each, str) else each.data(ctx) for each in reads]
        start = time.perf_counter()
        outputs = operator(*arrays)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        for output in outputs:
            output.wait_to_read()  # calls return before they have run
        seconds = (time.perf_counter() - start) * (_STEP if key[0] == "training" else 1.0)
        self._spend(key, seconds)
        return outputs, traced.results

    def _spend(self, key: Key, seconds: float) -> None:
        with self._lock:
            self.calls += 1
            # The first call of a shape plans memory, which says little about those after it.
            before = self._spent.pop(key, None)
            self._spent[key] = 0.0 if before is None else before + seconds
            if len(self._spent) > _REMEMBERED:
                self._spent.popitem(last=False)
