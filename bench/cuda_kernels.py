"""Kernels on an NVIDIA GPU: how exact, how fast, and beside torch.compile where torch is there.

Needs a GPU and the extra [cuda], but not MXNet: ``python bench/cuda_kernels.py --json OUT``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numba import cuda

from graphopt.kernels.cuda import run
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.spec import KernelSpec, parse

SPECS = {
    "chain": "f32[a,b] (f32[a,b], f32[b]) { %2 = mul %0 %1; %3 = add %2 1.5; %4 = tanh %3;"
    " %5 = sigmoid %0; %6 = mul %4 %5; %7 = square %0; %8 = neg %7; %9 = exp %8;"
    " %10 = mul %9 0.5; %11 = add %6 %10; return %11:f32[a,b] }",
    "LayerNorm": "f32[a|b] (f32[a,b], f32[b], f32[b]) { %3 = normalize %0 1e-05; %4 = mul %3 %1;"
    " %5 = add %4 %2; return %5:f32[a,b] }",
    "softmax": "f32[a|b] (f32[a,b]) { %1 = softmax %0; return %1:f32[a,b] }",
    "log_softmax": "f32[a|b] (f32[a,b]) { %1 = log_softmax %0; return %1:f32[a,b] }",
    "GELU": "f32[a,b] (f32[a,b]) { %1 = mul %0 0.7071067811865476; %2 = erf %1; %3 = add %2 1.0;"
    " %4 = mul %0 0.5; %5 = mul %4 %3; return %5:f32[a,b] }",
    "masked softmax": "f32[a|b] (f32[a,b], b1[a,b]) { %2 = where %1 %0 -10000.0;"
    " %3 = softmax %2; return %3:f32[a,b] }",
}
SHAPES = [(4096, 768), (16384, 4096)]
#: Rows that are compared with float64, at most: numpy on the CPU takes long.
CHECKED_ELEMENTS = 4_000_000
REPEATS = 30


def data(spec: KernelSpec, shape: tuple[int, int]) -> list[Any]:
    """Inputs of a spec."""
    found = []
    for seed, operand in enumerate(spec.inputs):
        extents = tuple(1 if axis is None else shape[axis] for axis in operand.axes)
        values = np.random.default_rng(seed).standard_normal(extents, dtype="float32")
        found.append(values > -0.5 if operand.dtype == "bool" else values)
    return found


def microseconds(work: Callable[[], Any]) -> float:
    """The median time of ``work`` on the device, launches included, caches as they fall."""
    for _ in range(5):
        work()
    cuda.synchronize()
    times = []
    for _ in range(REPEATS):
        start, end = cuda.event(), cuda.event()
        start.record()
        for _ in range(5):
            work()
        end.record()
        end.synchronize()
        times.append(cuda.event_elapsed_time(start, end) * 1e3 / 5)
    return float(np.median(times))


def copy_speed(size: int) -> float:
    """Bytes a microsecond that a copy of ``size`` bytes on the device reads and writes."""
    source, target = (cuda.device_array(size, np.uint8) for _ in range(2))
    return 2 * size / microseconds(lambda: target.copy_to_device(source))


def size_of(arrays: Sequence[Any]) -> int:
    """Bytes of arrays on the device."""
    return sum(int(array.nbytes) for array in arrays)


def error(spec: KernelSpec, arrays: Sequence[Any], got: Sequence[Any]) -> float:
    """The largest difference from float64, in units of the largest result of each output."""
    want = evaluate(spec, arrays, dtype="float64")
    worst = 0.0
    for g, w in zip(got, want, strict=True):
        difference = np.abs(np.asarray(g, "float64") - w).max(initial=0)
        worst = max(worst, float(difference / max(np.abs(w).max(initial=0), 1e-30)))
    return worst


def operands(spec: KernelSpec, arrays: list[Any], outs: list[Any], head: Any) -> list[Any]:
    """What the backward kernel reads."""
    found = differentiate(spec)
    return [
        *(head for _ in found.heads),
        *(arrays[i] for i in found.inputs),
        *(outs[i] for i in found.outputs),
    ]


def measure(name: str, shape: tuple[int, int]) -> list[dict[str, Any]]:
    """Rows of the table: forward and backward of one spec."""
    spec = parse(SPECS[name])
    # Exactness on fewer rows: each is independent, except in sums over rows.
    few = (min(shape[0], max(1, CHECKED_ELEMENTS // shape[1])), shape[1])
    errors = check(spec, few)
    arrays = [cuda.to_device(array) for array in data(spec, shape)]
    head = cuda.to_device(np.random.default_rng(9).standard_normal(shape, dtype="float32"))
    speed = copy_speed(size_of([head]))
    outs = run(spec, arrays)
    rows = []
    for direction in ("forward", "backward"):
        back = direction == "backward"
        given = operands(spec, arrays, outs, head) if back else arrays
        written = run(spec, given, backward=back)

        def work(given: Any = given, written: Any = written, back: bool = back) -> None:
            run(spec, given, outputs=written, backward=back)

        took = microseconds(work)
        moved = size_of(given) + size_of(written)
        rows.append(
            {
                "kernel": name,
                "shape": list(shape),
                "direction": direction,
                "error": errors[direction],
                "microseconds": took,
                "gigabytes_per_second": moved / took / 1e3,
                "share_of_copy": moved / took / speed,
            }
        )
    del arrays, head, outs
    for row, took in zip(rows, torch_times(name, shape), strict=True):
        row["torch_compile_microseconds"] = took
    return rows


def check(spec: KernelSpec, shape: tuple[int, int]) -> dict[str, float]:
    """Errors of both kernels."""
    arrays = data(spec, shape)
    on_device = [cuda.to_device(array) for array in arrays]
    outs = run(spec, on_device)
    back = [out.copy_to_host() for out in outs]
    head = np.random.default_rng(9).standard_normal(shape, dtype="float32")
    slopes = run(spec, operands(spec, on_device, outs, cuda.to_device(head)), backward=True)
    gradient = differentiate(spec).spec
    assert gradient is not None
    given = operands(spec, arrays, back, head)
    return {
        "forward": error(spec, arrays, back),
        "backward": error(gradient, given, [slope.copy_to_host() for slope in slopes]),
    }


def torch_times(name: str, shape: tuple[int, int]) -> list[float | None]:
    """Microseconds of torch.compile forward and backward; ``None`` without torch."""
    try:
        import torch
    except ImportError:
        return [None, None]
    functional = torch.nn.functional
    expressions: dict[str, Callable[..., Any]] = {
        "chain": lambda x, w: torch.tanh(x * w + 1.5) * torch.sigmoid(x) + torch.exp(-x * x) * 0.5,
        "LayerNorm": lambda x, w, b: functional.layer_norm(x, (x.shape[1],), w, b),
        "softmax": lambda x: torch.softmax(x, 1),
        "log_softmax": lambda x: torch.log_softmax(x, 1),
        "GELU": functional.gelu,
        "masked softmax": lambda x, m: torch.softmax(torch.where(m, x, -10000.0), 1),
    }
    inputs = [torch.from_numpy(array).cuda() for array in data(parse(SPECS[name]), shape)]
    try:
        torch._dynamo.reset()
        compiled = torch.compile(expressions[name])
        with torch.no_grad():
            forward = torch_microseconds(lambda: compiled(*inputs))
        wrt = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        out = compiled(*inputs)
        head = torch.randn_like(out)
        backward = torch_microseconds(
            lambda: torch.autograd.grad(out, wrt, head, retain_graph=True)
        )
    except RuntimeError as failure:  # no compiler for its generated code, or no memory
        print(f"torch.compile on {name}: {str(failure).splitlines()[0]}", file=sys.stderr)
        return [None, None]
    return [forward, backward]


def torch_microseconds(work: Callable[[], Any]) -> float:
    """As :func:`microseconds`, on torch's stream."""
    import torch

    for _ in range(5):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / 5)
    return float(np.median(times))


def main() -> None:
    """Measure, print the table, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the table")
    parser.add_argument("--only", choices=SPECS, action="append", help="kernels to run")
    options = parser.parse_args()
    rows = []
    print(
        f"{'kernel':15} {'shape':>12} {'':8} {'error':>8} {'us':>8} {'GB/s':>6} {'of copy':>7}"
        f" {'torch us':>8}"
    )
    for shape in SHAPES:
        for name in options.only or SPECS:
            for row in measure(name, shape):
                rows.append(row)
                took = row["torch_compile_microseconds"]
                print(
                    f"{name:15} {'x'.join(map(str, shape)):>12} {row['direction']:8}"
                    f" {row['error']:8.1e} {row['microseconds']:8.1f}"
                    f" {row['gigabytes_per_second']:6.0f} {row['share_of_copy']:7.0%}"
                    f" {'-' if took is None else format(took, '.1f'):>8}",
                    flush=True,
                )
    if options.json:
        device = cuda.get_current_device().name
        name = device.decode() if isinstance(device, bytes) else str(device)
        options.json.write_text(json.dumps({"device": name, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
