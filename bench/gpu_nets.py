"""Nets fused whole, in a GPU context of MXNet: microseconds of a call and of a step.

Needs a GPU, mxnet-cu112 and the extra [cuda]: ``python bench/gpu_nets.py``. The nets are those of
tests/backend/gpu_cases.py, which run on GPUs that MXNet has no code for, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import graphopt
from graphopt.compat import import_mxnet
from tests.backend.gpu_cases import NETS, Net, drawn

SHAPES = [(32, 32), (4096, 768), (16384, 4096)]
CALLS, ROUNDS = 20, 7

mx = import_mxnet()


def microseconds(work: Callable[[], Any]) -> float:
    """Of a call, the best of some rounds of calls that nobody waits for one by one."""
    work()
    best = float("inf")
    for _ in range(ROUNDS):
        mx.nd.waitall()
        start = time.perf_counter()
        for _ in range(CALLS):
            work()
        mx.nd.waitall()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def main() -> None:
    """Measure, and print a line for each net and shape."""
    print(f"{'net':15} {'shape':>12} {'forward':>9} {'step':>9}")
    for name, (function, rows) in NETS.items():
        fast = graphopt.optimize(Net(function))
        for shape in SHAPES:
            values = drawn(shape, rows, "float32")
            arrays, slopes = ([mx.nd.array(v, ctx=mx.gpu()) for v in values] for _ in range(2))
            head = mx.nd.array(values[0], ctx=mx.gpu())
            mx.autograd.mark_variables(arrays, slopes)

            def forward(fast: Any = fast, arrays: Any = arrays) -> Any:
                with mx.autograd.record():
                    return fast(*arrays)

            def step(forward: Any = forward, head: Any = head) -> None:
                forward().backward(head)

            times = [f"{microseconds(work):9.1f}" for work in (forward, step)]
            print(f"{name:15} {'x'.join(map(str, shape)):>12}", *times, flush=True)


if __name__ == "__main__":
    main()
