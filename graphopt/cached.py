"""``cached_property`` as it is from Python 3.12 on, without a lock.

Before, each has a lock for all instances of its class: threads that ask for it wait for each other,
and a child that is forked meanwhile waits for ever.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - as the one of Python
        """A property that is computed when it is first asked for."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            """The value; it lies in the way of another call."""
            if instance is None:
                return self
            found = instance.__dict__[self.attrname] = self.func(instance)
            return found
