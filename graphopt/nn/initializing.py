"""Parameters that wait for a first call, of layers whose results nobody reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphopt.compat import import_mxnet
from graphopt.frontend.gluon import Traced, without_hooks
from graphopt.nn.originals import original


def initialize_unread(block: Any, traced: Traced, args: Sequence[Any], known: set[str]) -> None:
    """Have a Block that is not hybridized initialize them, as MXNet does in its first call.

    Its Python does, once, without gradients; so numbers are drawn in its order. A hybridized Block
    has the parameters of its graph initialized alone, as in MXNet.

    Args:
        block: the view that was traced.
        traced: its Symbol.
        args: of the call.
        known: names of parameters that its Python left as they were; more are noted.
    """
    if getattr(block, "_active", False):
        return
    read = {*traced.symbol.list_inputs()}
    parameters = block.collect_params().items()
    waiting = {n for n, p in parameters if p._deferred_init and n not in read} - known
    if not waiting:
        return
    own = original(block)
    with import_mxnet().autograd.pause(train_mode=False), without_hooks(own):
        own(*args)
    known |= {name for name in waiting if block.collect_params()[name]._deferred_init}
