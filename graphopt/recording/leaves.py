"""What the arrays are that programs of a Block read: parameters, constants, or written by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from graphopt.compat import import_mxnet
from graphopt.frontend.blocks import all_parameters
from graphopt.kernels.bridge.memory import memory_of
from graphopt.nn.parameters import Watched, is_replaced, watched, with_new_arrays
from graphopt.recording.active import Unrecorded
from graphopt.recording.types import recordable

if TYPE_CHECKING:
    from graphopt.recording.types import Type

#: There is no end of arrays that are made and written in every call.
_MAX_WRITTEN: Final = 256


class Leaves:
    """Arrays that a Block has, as they are now.

    Attributes:
        parameters: of the Block, by name.
        constants: names of those that never learn.
    """

    def __init__(self, block: Any) -> None:
        """No array is known before :meth:`follow`."""
        mx = import_mxnet()
        # memory_of() first tries on arrays of its own, which no tape may see.
        with Unrecorded(), mx.autograd.pause():
            memory_of(mx, mx.nd.zeros(1))
        self._block = block
        self._names: dict[int, str] = {}  # of parameters, by the id of their arrays
        self._known: dict[int, tuple[Any, Type]] = {}
        self.parameters: dict[str, Any] = {}
        self.constants: set[str] = set()
        self._computed: set[str] = set()  # names of parameters that the Block's Python writes
        self._ids: dict[int, int] = {}  # of parameters' arrays, by their memory
        self._written: set[int] = set()  # memory that it writes; others may get it later
        self._watched: list[Watched] = []
        self._ctx: Any = None

    def name_of(self, array: Any) -> str | None:
        """The name of the parameter whose array it is; ``None`` for data."""
        return self._names.get(id(array))

    def type_of(self, array: Any) -> Type | None:
        """The type of an array that is a parameter's, which takes long to ask for."""
        found = self._known.get(id(array))
        return None if found is None else found[1]

    def may_be_written(self, array: Any) -> bool:
        """Whether the Block's Python wrote into it, or into an array that lay there."""
        if not self._written or array.stype != "default":
            return False
        return memory_of(import_mxnet(), array) in self._written

    def note_written(self, array: Any, ctx: Any) -> None:
        """Know an array that the Block's Python writes, which is data even if a parameter's."""
        self.follow(ctx)
        memory = memory_of(import_mxnet(), array)
        name = self._names.pop(self._ids.pop(memory, 0), None)
        if name is not None:
            self._computed.add(name)
        if len(self._written) >= _MAX_WRITTEN:
            self._written.clear()
        self._written.add(memory)

    def follow(self, ctx: Any) -> None:
        """Know parameters by the arrays that they have now."""
        if ctx == self._ctx and not with_new_arrays(self._watched):
            return
        parameters = all_parameters(self._block)  # where it refuses, all stays as it is
        self._ctx, self._watched = ctx, []
        self._names, self._known, self.parameters, self.constants = {}, {}, {}, set()
        self._ids = {}
        for name, parameter in parameters.items():
            found = watched(parameter, ctx)
            self._watched.append(found)
            array = found[3]
            if array is None or is_replaced(parameter, ctx):
                continue
            if name not in self._computed:
                self._names[id(array)] = name
                self._ids[memory_of(import_mxnet(), array)] = id(array)
            self.parameters[name] = parameter
            if isinstance(parameter, import_mxnet().gluon.Constant):
                self.constants.add(name)
            if array.stype == "default":
                # The array is kept, or another one might come to have its id.
                type_ = recordable(array.shape, array.dtype)
                if type_ is not None:
                    self._known[id(array)] = array, type_
