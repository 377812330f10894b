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
from numba.core.codegen import AOTCodeLibrary
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering, NoPythonBackend, NopythonTypeInference
from numba.core.untyped_passes import FixupArgs, IRProcessing, TranslateByteCode
from numba.extending import intrinsic


@cache
def interleaved(count: int, *, masks: bool = False) -> Any:
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


class _Library(AOTCodeLibrary):
    """Optimised IR that is read and not run: numba would make machine code of it and keep both."""

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):
    _name = "graphopt_lowering"

    @property
    def lowering_class(self) -> type:
        return _Lower

    def run_pass(self, state: Any) -> bool:
        state.library = _Library(state.targetctx.codegen(), state.func_id.func_qualname)
        done: bool = super().run_pass(state)
        return done


class Interleaving(compiler.CompilerBase):
    """numba's compiler for kernels, which may call :func:`interleaved`.

    Kernels are loops over arithmetic on variables of one type each: they have no closures, no
    constants to propagate, no branches that types decide. What numba does about these takes longer
    than all the rest.
    """

    def define_pipelines(self) -> list[Any]:
        """From bytecode to typed IR to LLVM's, and nothing between."""
        passes = compiler.PassManager("kernel")
        passes.add_pass(TranslateByteCode, "analyzing bytecode")
        passes.add_pass(FixupArgs, "fix up args")
        passes.add_pass(IRProcessing, "processing IR")
        passes.add_pass(NopythonTypeInference, "nopython frontend")
        passes.add_pass(_Lowering, "native lowering")
        passes.add_pass(NoPythonBackend, "nopython mode backend")
        passes.finalize()
        return [passes]
