"""Memory that executors of a net's training steps share, held by the bridge."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from types import SimpleNamespace
from typing import Any

from graphopt.backend.lifetimes import release_with
from graphopt.backend.retiring import free_retired, retire
from graphopt.compat import import_mxnet
from graphopt.forking import lock
from graphopt.kernels import bridge
from graphopt.kernels.waiting import wait_for_all

#: How long memory is waited for that may be given back any moment.
_PATIENCE, _A_MOMENT_S = 20, 1e-3

#: Names of the inputs that get a gradient.
Names = frozenset[str]
#: Binds in a pool what needs the most memory, where these inputs get a gradient.
Reservation = Callable[["Pool", Names], None]


@dataclass
class Pool:
    """Memory that one call at a time may have, from its forward until its tape is gone.

    ``prepared`` are reservations that were made in it, and for gradients of which inputs.
    """

    number: int
    last: Any = None  # the executor bound last, which knows all of the memory
    keeper: int = 0  # the number of that one, where nobody else needs it any more
    bindings: dict[Any, int] = field(default_factory=dict)
    prepared: set[tuple[Reservation, Names]] = field(default_factory=set)


@dataclass
class _Held:
    """Numbers of what the bridge holds, and the thread that called last."""

    pools: list[int] = field(default_factory=list)
    bindings: list[int] = field(default_factory=list)
    user: int = field(default_factory=get_ident)


class Pools:
    """The memory of executors of one net, of whatever shapes; one pool for each call under way."""

    def __init__(self) -> None:
        """No memory is taken before something is bound."""
        self._library = executors()
        self._pools: list[Pool] = []
        self._held = _Held()
        self._reservations: list[Reservation] = []
        self._gradients: Names = frozenset()
        self.lock = lock()
        release_with(self, _release, self._library, self._held)

    def __len__(self) -> int:
        """How many there are: as many as calls were under way at a time."""
        return len(self._pools)

    def free(self, gradients: Names = frozenset()) -> Pool:
        """One that no call has, with the memory of the largest step that was reserved.

        The lock is held until the call has it.

        Args:
            gradients: names of inputs that get a gradient in the call. Memory for these in the
                largest step is reserved from then on, too.
        """
        free_retired()
        self._held.user = get_ident()
        pool = self._unused()
        gradients |= self._gradients
        for reservation in self._reservations:
            if (reservation, gradients) not in pool.prepared:
                reservation(pool, gradients)
                pool.prepared.add((reservation, gradients))
        self._gradients = gradients
        return pool

    def reserve(self, reservation: Reservation) -> None:
        """Have all calls to come run in memory that this takes."""
        self._reservations.append(reservation)
        try:
            self.free()
        except Exception:
            self._reservations.remove(reservation)
            raise

    def _unused(self) -> Pool:
        pool = self._idle()
        if pool is None and self._pools:
            # Operators that are still to run hold tapes that nobody else has, and MXNet lets go of
            # them shortly after they were waited for.
            wait_for_all(import_mxnet())
            for _ in range(_PATIENCE):
                pool = self._idle()
                if pool is not None:
                    break
                time.sleep(_A_MOMENT_S)
        return pool or self._new()

    def _idle(self) -> Pool | None:
        for pool in self._pools:
            if not self._library.graphopt_pool_is_taken(pool.number):
                return pool
        return None

    def _new(self) -> Pool:
        made = Pool(self._library.graphopt_pool_add())
        self._held.pools.append(made.number)
        self._pools.append(made)
        return made

    def drop(self, owner: object) -> None:
        """Forget the executors of one engine; the memory stays for others."""
        for pool in self._pools:
            for key in [key for key in pool.bindings if key[0] is owner]:
                number = pool.bindings.pop(key)
                if number == pool.last.number:
                    pool.keeper = number
                else:
                    self._remove(number)

    def add(self, pool: Pool, key: Any, bound: Bound) -> int:
        """Hand an executor over to the bridge, under ``key``."""
        number = _hand_over(self._library, pool.number, bound)
        self._held.bindings.append(number)
        pool.bindings[key] = number
        pool.last = SimpleNamespace(handle=bound.handle, number=number)
        if pool.keeper:
            self._remove(pool.keeper)
            pool.keeper = 0
        return number

    def _remove(self, number: int) -> None:
        self._held.bindings.remove(number)
        _retire(self._library, number, get_ident())


@dataclass(frozen=True)
class Bound:
    """An executor and the arrays it reads and writes, in the order of its arguments."""

    handle: Any
    arguments: Sequence[Any]
    gradients: Sequence[Any]
    is_users: Sequence[bool]
    outputs: Sequence[Any]
    states: Sequence[Any]
    megabytes: int


def _hand_over(library: Any, pool: int, bound: Bound) -> int:
    """Give an executor to the bridge.

    Returns:
        Its number there.
    """

    def handles(arrays: Sequence[Any]) -> Any:
        values = [None if array is None else array.handle for array in arrays]
        return (ctypes.c_void_p * len(values))(*values)

    return int(
        library.graphopt_binding_add(
            pool,
            bound.handle,
            len(bound.arguments),
            handles(bound.arguments),
            handles(bound.gradients),
            (ctypes.c_int * len(bound.is_users))(*bound.is_users),
            len(bound.outputs),
            handles(bound.outputs),
            len(bound.states),
            handles(bound.states),
        )
    )


def _release(library: Any, held: _Held) -> None:
    for number in held.bindings:
        _retire(library, number, held.user)
    for number in held.pools:
        library.graphopt_pool_remove(number)


def _retire(library: Any, number: int, user: int) -> None:
    retire(
        user,
        lambda: library.graphopt_binding_users(number) <= 1,
        partial(library.graphopt_binding_remove, number),
    )


def executors() -> Any:
    """The bridge, with the types of what is called of executors."""
    library = bridge.load(import_mxnet())
    pointers = ctypes.POINTER(ctypes.c_void_p)
    number = ctypes.c_int64
    library.graphopt_pool_add.restype = number
    library.graphopt_binding_add.restype = number
    library.graphopt_binding_users.restype = number
    library.graphopt_binding_add.argtypes = [
        number,
        ctypes.c_void_p,
        ctypes.c_int,
        pointers,
        pointers,
        ctypes.POINTER(ctypes.c_int),
        ctypes.c_int,
        pointers,
        ctypes.c_int,
        pointers,
    ]
    for function in (
        library.graphopt_pool_remove,
        library.graphopt_pool_is_taken,
        library.graphopt_binding_remove,
        library.graphopt_binding_users,
    ):
        function.argtypes = [number]
    library.graphopt_wants_gradient.argtypes = [ctypes.c_void_p]
    return library
