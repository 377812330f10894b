"""The processor that kernels are compiled for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

_TOLD: Final = Path("/proc/cpuinfo")
#: What the kernel tells of a processor that does not change from moment to moment: on x86, on ARM.
_LASTING: Final = frozenset(
    {
        *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
        *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features"),
    }
)


@cache
def target_machine() -> Any:
    """LLVM's code generator for this processor; it needs nothing of numba."""
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = processor()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="default"
    )


def optimized(text: str) -> str:
    """LLVM IR as LLVM makes it fast for this processor.

    Level 3 has copies of loops for each condition of a row, in half as much time again; what it
    gains on one kernel it loses on another.
    """
    import llvmlite.binding as llvm

    machine = target_machine()
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(module)


def processor() -> tuple[str, str]:
    """Its name, and its features, as LLVM has them."""
    import llvmlite.binding as llvm

    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@cache
def identity() -> tuple[str, ...]:
    """What tells one kind of processor from another, as Linux has it: LLVM is a lot to load."""
    try:
        first = _TOLD.read_text().split("\n\n")[0]
    except OSError:
        return processor()
    lines = (line.partition(":") for line in first.splitlines())
    told = tuple(value.strip() for name, _, value in lines if name.strip() in _LASTING)
    return told or processor()
