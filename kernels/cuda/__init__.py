"""Kernels for NVIDIA GPUs, from the specs that kernels for CPUs are made of."""

from graphopt.kernels.cuda.run import compile_ptx, run
from graphopt.kernels.emit.cuda import Form

__all__ = ["Form", "compile_ptx", "run"]
