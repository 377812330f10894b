"""Has LLVM compute several vectors of a loop at once, and the last ones by masks.

A function of :mod:`graphopt.kernels.vecmath` is a chain of twenty instructions that wait for each
other, and a processor looks ahead by a few such chains only. LLVM interleaves iterations of short
loops by itself; a kernel says which of its longer ones gain as well, by metadata on their branches.
What is left at the end of a row, less than a vector, LLVM computes one by one if nothing is said.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import compiler
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering
from numba.extending import intrinsic


@cache
def interleaved(count: int, *, masks: bool) -> Any:
    """A function that does nothing, but has the loop it is called in interleaved ``count`` times.

    Kernels that call it are compiled by :class:`Interleaving`. The loop's body has no branches.

    Args:
        count: vectors at once.
        masks: whether the end of the loop is computed by vectors that leave elements out.
    """

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.basic_block.interleaved = (count, masks)
        return context.get_dummy_value()

    @intrinsic
    def mark(_context):  # type: ignore[no-untyped-def]
        return types.void(), generate

    return mark


class _Lower(Lower):
    """Puts metadata on the branches that end marked blocks, once these are complete."""

    def post_lower(self) -> None:
        super().post_lower()
        for block in self.function.blocks:
            how = getattr(block, "interleaved", None)
            if how is not None:
                block.terminator.set_metadata("llvm.loop", _loop(self.module, *how))


def _loop(module: Any, count: int, masks: bool) -> Any:
    """LLVM tells loops apart by nodes that hold themselves first."""
    options = [_option(module, "interleave.count", ir.IntType(32)(count))]
    if masks:
        options.append(_option(module, "vectorize.predicate.enable", ir.IntType(1)(1)))
    node = ir.values.MDValue(module, (), name=str(len(module.metadata)))
    node.operands = (node, *options)
    return node


def _option(module: Any, name: str, value: Any) -> Any:
    return module.add_metadata([ir.MetaDataString(module, f"llvm.loop.{name}"), value])


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "graphopt_lowering"

    @property
    def lowering_class(self) -> type:
        return _Lower


class Interleaving(compiler.CompilerBase):
    """numba's compiler, for kernels that call :func:`interleaved`."""

    def define_pipelines(self) -> list[Any]:
        """Numba's passes, with its last one replaced."""
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.passes = [
            (_Lowering if which is NativeLowering else which, text) for which, text in passes.passes
        ]
        passes.finalize()
        return [passes]
