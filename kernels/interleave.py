"""Has LLVM compute several vectors of a loop at once.

A function of :mod:`graphopt.kernels.vecmath` is a chain of twenty instructions that wait for each
other, and a processor looks ahead by a few such chains only. LLVM interleaves iterations of short
loops by itself; a kernel says which of its longer ones gain as well, by metadata on their branches.
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
def interleaved(count: int) -> Any:
    """A function that does nothing, but has the loop it is called in interleaved ``count`` times.

    Kernels that call it are compiled by :class:`Interleaving`. The loop's body has no branches.
    """

    def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.basic_block.interleaved = count
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
            count = getattr(block, "interleaved", 0)
            if count:
                block.terminator.set_metadata("llvm.loop", _loop(self.module, count))


def _loop(module: Any, count: int) -> Any:
    """LLVM tells loops apart by nodes that hold themselves first."""
    what = ir.MetaDataString(module, "llvm.loop.interleave.count")
    option = module.add_metadata([what, ir.Constant(ir.IntType(32), count)])
    node = ir.values.MDValue(module, (), name=str(len(module.metadata)))
    node.operands = (node, option)
    return node


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
