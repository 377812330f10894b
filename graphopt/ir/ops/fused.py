"""graphopt's own operators, which :mod:`graphopt.kernels` registers with MXNet."""

from __future__ import annotations

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo

OPERATORS = (
    OpInfo("graphopt_fused", Kind.OPAQUE, pure=True),
    OpInfo("graphopt_recurrence", Kind.OPAQUE, pure=True),
    OpInfo("graphopt_tree", Kind.OPAQUE, pure=True),
    OpInfo("graphopt_convolutions", Kind.OPAQUE, pure=True),
    OpInfo("graphopt_product", Kind.OPAQUE, pure=True),
    OpInfo("graphopt_dense", Kind.ANCHOR, pure=True, gradient=Gradient.INPUTS),
    OpInfo(
        "graphopt_dropout",
        Kind.ANCHOR,
        pure=True,  # of its seed
        inplace=((0, 0),),
        arguments=("data", "seed"),
    ),
    OpInfo(
        "graphopt_batch_norm",
        Kind.ANCHOR,
        pure=False,
        mutates=(3, 4),
        hidden_writes=(1,),
        inplace=((0, 0), (5, 0)),
        mode_dependent=True,
        arguments=("data", "gamma", "beta", "moving_mean", "moving_var", "residual"),
    ),
    OpInfo("graphopt_attention", Kind.OPAQUE, pure=True, gradient=Gradient.INPUTS),
    OpInfo("graphopt_interleaved_dot", Kind.ANCHOR, pure=True, gradient=Gradient.INPUTS),
    OpInfo("graphopt_batch_dot", Kind.ANCHOR, pure=True, gradient=Gradient.INPUTS),
)
