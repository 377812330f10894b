"""Which engine was picked, by the names that receipts show."""

from __future__ import annotations

from dataclasses import dataclass, field

CACHED_OP = "CachedOp"
CACHED_OP_ONEDNN = "CachedOp + oneDNN subgraphs"
EXECUTOR_ONEDNN = "executor + oneDNN subgraphs"
#: What engines are called that run graphopt's fused kernels.
KERNELS = " + kernels"
#: What runs convolutions in blocked layout of our own, and the rest on oneDNN.
CONVOLUTION_KERNELS = "executor + convolution kernels"
#: The same with what rounds no more than direct convolutions do.
EXACT_CONVOLUTIONS = CONVOLUTION_KERNELS + ", small tiles"
#: What runs dense layers over packed weights.
PRODUCT_KERNELS = "executor + packed products"
#: What the calling thread runs by itself, where all is small.
CALLER = "calling thread"
#: What is one operation of MXNet's engine, and its gradients another.
AT_ONCE = "one operation"
STEP = "executor for training"
#: Those that run products of ours where there is a form of the graph with some.
RUN_PRODUCTS = frozenset({CONVOLUTION_KERNELS, EXACT_CONVOLUTIONS, PRODUCT_KERNELS, CALLER})


@dataclass
class Choice:
    """Which engine was picked, and what each candidate took (milliseconds a call, best of few).

    ``failed`` tells why candidates were not taken, ``tuning`` what measuring changed in the graph,
    ``is_remembered`` whether an earlier process measured it, ``like`` for which sizes something was
    measured that was not for these, ``memory`` what a training step takes
    where that was asked for, ``weights`` which of them are packed once and kept.
    """

    engine: str = ""
    measured_ms: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    tuning: list[str] = field(default_factory=list)
    is_remembered: bool = False
    like: str = ""
    memory: str = ""
    weights: str = ""
