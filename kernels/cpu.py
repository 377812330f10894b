"""Compiles specs for CPUs: emitted source to LLVM IR, LLVM IR to an object file.

The object file needs nothing of LLVM: it is kept on disk (:mod:`graphopt.kernels.library`).
"""

from __future__ import annotations

from collections.abc import Sequence

import llvmlite.binding as llvm  # type: ignore[import-untyped]

from graphopt.kernels.cpu_instructions import instruction, reducer
from graphopt.kernels.cpu_memory import forget, loader, prefetch, room, row_of, storer
from graphopt.kernels.emit.columns import emit_columns
from graphopt.kernels.emit.cpu import ITEM_SIZE, TOGETHER, emit_cpu, emit_piece, storage
from graphopt.kernels.emit.schedule import schedule
from graphopt.kernels.library import SYMBOL
from graphopt.kernels.lowering import Emit, LoopHint, lower
from graphopt.kernels.machine import optimized, processor, target_machine
from graphopt.kernels.prefetch import with_prefetches
from graphopt.kernels.rounding import rounds_alike
from graphopt.kernels.spec import KernelSpec

#: Of 4 vectors with more operands some would have to be kept in memory; an LSTM's cell has 11.
_FEW_OPERANDS = 12


def compile_object(
    spec: KernelSpec, *, index: bool = False, piece: bool = False
) -> tuple[bytes, int]:
    """The object file of an expanded, collapsed spec for this CPU, and its scratch rows.

    Args:
        spec: what is compiled.
        index: whether operands may have numbers of rows (:mod:`graphopt.kernels.emit.cpu`).
        piece: whether it is called for a vector at a time.
    """
    if spec.columns:
        source, waiting = emit_columns(spec)
        text = _to_ir(source, spec, waiting=waiting, groups=(), at_once=1)
        return _compiled(text), len(schedule(spec).scratch)
    # Rows with numbers are those of recurrences, a few vectors long: their ends matter.
    groups = _groups(spec) if index and _vector_bytes() else ()
    if piece:
        source, scratch = emit_piece(spec), 0
    else:
        source, scratch = emit_cpu(spec, index=index, groups=groups, masks=_masks_are_cheap())
    text = _to_ir(source, spec, groups=groups, at_once=1 if piece else _vectors_at_once(spec))
    if not (index or piece):  # else rows lie in the cache, or anywhere
        text = with_prefetches(text, _streams(spec))
    return _compiled(text), scratch


def _compiled(text: str) -> bytes:
    """The object file of LLVM IR."""
    return bytes(target_machine().emit_object(llvm.parse_assembly(text)))


def _streams(spec: KernelSpec) -> set[int]:
    """Numbers of the operands with an element for each of the space, inputs first."""
    every = set(range(spec.rank))
    operands = [*spec.inputs, *(result.operand for result in spec.outputs)]
    return {number for number, operand in enumerate(operands) if set(operand.covers) == every}


def _to_ir(
    source: str,
    spec: KernelSpec,
    *,
    groups: tuple[int, ...],
    at_once: int,
    waiting: Sequence[str] = (),
) -> str:
    """Optimised LLVM IR of the emitted function, under the name `SYMBOL`."""
    functions = _functions(spec, waiting)
    functions["interleaved"] = LoopHint(at_once)
    for count in groups:
        functions[f"interleaved{count}"] = LoopHint(count // _lanes(spec))
    functions["one_by_one"] = LoopHint(1, vectors=_masks_are_cheap())
    functions["by_masks"] = LoopHint(1, masks=True)
    # Products may be fused into sums; nothing may be assumed about NaN, infinities and zeros.
    module = lower(source, SYMBOL, spec.dtype, functions, contract=not rounds_alike(spec))
    return optimized(str(module))


def _functions(spec: KernelSpec, waiting: Sequence[str]) -> dict[str, Emit | LoopHint]:
    """What the source calls; values that wait in memory overlap with nothing."""
    dtype, precise = spec.dtype, spec.precise
    scope: dict[str, Emit | LoopHint] = {}
    last = len(spec.inputs) + len(spec.outputs)
    count = last + 2 + len(waiting)
    for number, stored in enumerate(storage(spec)):
        scope[f"load{number}"] = loader(stored, dtype, number, count)
        scope[f"store{number}"] = storer(stored, dtype, number, count)
        scope[f"load_rest{number}"] = loader(dtype, dtype, last + 1, count)
        scope[f"store_rest{number}"] = storer(dtype, dtype, last + 1, count)
    for place, name in enumerate(waiting, last + 2):
        scope[f"load_{name}"] = loader(dtype, dtype, place, count)
        scope[f"store_{name}"] = storer(dtype, dtype, place, count)
    scope["room"] = room(dtype, TOGETHER * last)
    scope["prefetch"] = prefetch
    scope["forget"] = forget
    scope["row_of"] = row_of
    scope["load_kept"] = loader(dtype, dtype, last, count)
    scope["store_kept"] = storer(dtype, dtype, last, count)
    for op in {"pow", *(step.op for step in spec.body)}:
        if (emit := instruction(op, dtype, precise)) is not None:
            scope[f"{op}_"] = emit
        if op.startswith("reduce_"):
            scope[op] = reducer(op)
    scope["reduce_sum"] = reducer("reduce_sum")
    return scope


def _masks_are_cheap() -> bool:
    """Whether a vector of some elements is stored about as fast as a whole one."""
    return "+avx512f" in processor()[1]


def _vectors_at_once(spec: KernelSpec) -> int:
    """How many vectors of a plain loop are computed together, which have to share the registers."""
    _, features = processor()
    has_many = "+avx512f" in features or "+neon" in features  # 32 registers and not 16
    return 4 if has_many and len(spec.inputs) + len(spec.outputs) <= _FEW_OPERANDS else 2


def _groups(spec: KernelSpec) -> tuple[int, ...]:
    """How many elements of a row are computed together: several vectors, then fewer."""
    counts = (count for count in (4, 2) if count <= _vectors_at_once(spec))
    return tuple(count * _lanes(spec) for count in counts)


def _lanes(spec: KernelSpec) -> int:
    """Elements of a vector."""
    return _vector_bytes() // ITEM_SIZE[spec.dtype]


def _vector_bytes() -> int:
    """Of a vector that can leave elements out; 0 where there are none."""
    _, features = processor()
    return 64 if "+avx512f" in features else 32 if "+avx2" in features else 0
