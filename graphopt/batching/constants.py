"""What calls without inputs make, such as ``mx.nd.zeros``, kept for later batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from graphopt.backend.arrays import bytes_of

#: More bytes than this, and those that were not asked for longest are made anew next time.
MAX_BYTES = 32 << 20


class Constants:
    """The arrays that were asked for last, by key.

    Attributes:
        size: bytes of all of them.
    """

    def __init__(self) -> None:
        """Nothing was asked for."""
        self.size = 0
        self._arrays: OrderedDict[Hashable, Any] = OrderedDict()
        self._weights: dict[Hashable, Any] = {}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The array of a key; the latest one is always kept, however large it is."""
        if key in self._weights:
            return self._weights[key]
        found = self._arrays.pop(key, None)
        if found is None:
            found = make()
            self.size += bytes_of(found)
        self._arrays[key] = found
        while self.size > MAX_BYTES and len(self._arrays) > 1:
            self.size -= bytes_of(self._arrays.popitem(last=False)[1])
        return found

    def share(self, array: Any) -> None:
        """If it is one of them: keys of calls have itself from now on, so it is kept."""
        for key, found in self._arrays.items():
            if found is array:
                self._weights[key] = self._arrays.pop(key)
                self.size -= bytes_of(array)
                break
