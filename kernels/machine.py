"""The processor that kernels are compiled for."""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]


@cache
def target_machine() -> Any:
    """LLVM's code generator for this processor; it needs nothing of numba."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    name, features = processor()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="default"
    )


def processor() -> tuple[str, str]:
    """Its name, and its features, as LLVM has them."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
