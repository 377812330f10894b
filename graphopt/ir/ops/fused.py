"""graphopt's own operators, which :mod:`graphopt.kernels` registers with MXNet."""

from __future__ import annotations

from graphopt.ir.ops.facts import Kind, OpInfo

OPERATORS = (OpInfo("graphopt_fused", Kind.OPAQUE, pure=True),)
