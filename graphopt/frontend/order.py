"""In which order MXNet initializes layers that wait for a first call to tell their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def noting_order(block: Any) -> Iterator[list[list[str]]]:
    """Names of parameters that wait, in the order in which calls come to their Blocks.

    Empty of hybridized Blocks, whose parameters MXNet initializes in their graph's order, as it
    does those of a hybridized Block within: they are one list.

    Args:
        block: whose Python runs in the block of code; hooks of its own do not.
    """
    found: list[list[str]] = []
    with ExitStack() as hooks:
        if not getattr(block, "_active", False):
            found.append(_waiting(block))
            for part in _parts(block):
                handle = part.register_forward_pre_hook(
                    lambda called, _: found.append(_waiting(called))
                )
                hooks.callback(handle.detach)
        yield found


def _parts(block: Any) -> Iterator[Any]:
    """Blocks below that wait, but none below hybridized ones."""
    seen: set[int] = set()
    stack = [*block._children.values()]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if _waiting(part):
            yield part
        if not getattr(part, "_active", False):
            stack.extend(part._children.values())


def _waiting(block: Any) -> list[str]:
    """Names of parameters that MXNet initializes when it calls a Block."""
    if getattr(block, "_active", False):
        known = block.collect_params().values()
    elif any(parameter._deferred_init for parameter in block._reg_params.values()):
        known = block.params.values()
    else:
        return []
    return [parameter.name for parameter in known if parameter._deferred_init]
