"""Kernels on an NVIDIA GPU: how exact, how fast, and beside torch.compile where torch is there.

Needs a GPU and the extra [cuda], but not MXNet: ``python bench/cuda_kernels.py --json OUT``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from numba import cuda

from graphopt.kernels.cuda import run
from graphopt.kernels.cuda.rows import gather_rows, inverse, segment_sum
from graphopt.kernels.gradient import differentiate
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.spec import KernelSpec
from graphopt.kernels.spec_parser import parse

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
    # Losses of gluon: positions, labels, scores; predictions and labels.
    "cross entropy": "f32[a|b] (f32[1,b], f32[a,1], f32[a,b]) { %3 = eq %0 %1;"
    " %4 = log_softmax %2; %5 = where %3 %4 0.0; %6 = reduce_sum %5; %7 = neg %6;"
    " return %7:f32[a,1] }",
    "Huber loss": "f32[a|b] (f32[a,b], f32[a,b]) { %2 = sub %0 %1; %3 = abs %2; %4 = gt %3 1.0;"
    " %5 = sub %3 0.5; %6 = square %3; %7 = mul %6 0.5; %8 = where %4 %5 %7;"
    " %9 = reduce_sum %8; %10 = extent; %11 = div %9 %10; return %11:f32[a] }",
    # What graphopt.nn.ChildSumTreeLSTM computes along edges and at nodes, products aside.
    "tree message": "f32[a,b] (f32[a,b], f32[b], f32[a,b], f32[a,b]) { %4 = add %2 %1;"
    " %5 = add %3 %4; %6 = sigmoid %5; %7 = mul %6 %0; return %7:f32[a,b] }",
    "tree update": "f32[a,b] (f32[a,b], f32[b], f32[a,b], f32[a,b], f32[b], f32[a,b], f32[a,b],"
    " f32[b], f32[a,b], f32[a,b]) { %10 = add %2 %1; %11 = add %3 %10; %12 = tanh %11;"
    " %13 = add %5 %4; %14 = add %6 %13; %15 = sigmoid %14; %16 = mul %15 %12; %17 = add %16 %0;"
    " %18 = tanh %17; %19 = add %8 %7; %20 = add %9 %19; %21 = sigmoid %20; %22 = mul %21 %18;"
    " return %17:f32[a,b], %22:f32[a,b] }",
}
#: Kernels of kernels/cuda/rows.py; the backward of one is the other.
ROWS = ("gather rows", "segment sum")
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
    if spec == parse(SPECS["cross entropy"]):
        rows, columns = shape
        found[0][:] = np.arange(columns)
        found[1][:, 0] = np.random.default_rng(1).integers(0, columns, rows)
    return found


def drawn_heads(outs: Sequence[Any]) -> list[Any]:
    """Gradients of outputs, on the device."""
    rng = np.random.default_rng(9)
    return [cuda.to_device(rng.standard_normal(out.shape, dtype="float32")) for out in outs]


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


def replayed(work: Callable[[Any], Any]) -> float | None:
    """The median time of ``work(stream)`` on the device alone: launches replayed from a graph.

    Needs torch, which records the graph; ``None`` without.
    """
    try:
        import torch
    except ImportError:
        return None
    stream, graph, calls = torch.cuda.Stream(), torch.cuda.CUDAGraph(), 10
    for _ in range(3):
        with torch.cuda.stream(stream):
            work(stream)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            work(stream)
    return torch_microseconds(graph.replay) / calls


def on_stream(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``work`` on numba's idea of a stream of torch."""
    return lambda stream: work(cuda.external_stream(stream.cuda_stream))


def host_microseconds(work: Callable[[], Any]) -> float:
    """What a call costs its caller, who does not wait for the device."""
    calls, times = 100, []
    for _ in range(5):
        cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - start) / calls * 1e6)
    cuda.synchronize()
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


def operands(spec: KernelSpec, arrays: list[Any], outs: list[Any], heads: list[Any]) -> list[Any]:
    """What the backward kernel reads."""
    found = differentiate(spec)
    return [
        *(heads[i] for i in found.heads),
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
    speed = copy_speed(4 * shape[0] * shape[1])
    outs = run(spec, arrays)
    heads = drawn_heads(outs)
    rows = []
    for direction in ("forward", "backward"):
        back = direction == "backward"
        given = operands(spec, arrays, outs, heads) if back else arrays
        written = run(spec, given, backward=back)

        def work(
            stream: Any = 0, given: Any = given, written: Any = written, back: bool = back
        ) -> None:
            run(spec, given, outputs=written, backward=back, stream=stream)

        took = microseconds(work)
        moved = size_of(given) + size_of(written)
        rows.append(
            {
                "kernel": name,
                "shape": list(shape),
                "direction": direction,
                "error": errors[direction],
                "microseconds": took,
                "host_microseconds": host_microseconds(work),
                "replayed_microseconds": replayed(on_stream(work)),
                "gigabytes_per_second": moved / took / 1e3,
                "share_of_copy": moved / took / speed,
            }
        )
    del arrays, heads, outs
    for row, (took, alone) in zip(rows, torch_times(name, shape), strict=True):
        row["torch_compile_microseconds"] = took
        row["torch_compile_replayed_microseconds"] = alone
    return rows


def check(spec: KernelSpec, shape: tuple[int, int]) -> dict[str, float]:
    """Errors of both kernels."""
    arrays = data(spec, shape)
    on_device = [cuda.to_device(array) for array in arrays]
    outs = run(spec, on_device)
    back = [out.copy_to_host() for out in outs]
    heads = drawn_heads(outs)
    slopes = run(spec, operands(spec, on_device, outs, heads), backward=True)
    gradient = differentiate(spec).spec
    assert gradient is not None
    given = operands(spec, arrays, back, [head.copy_to_host() for head in heads])
    return {
        "forward": error(spec, arrays, back),
        "backward": error(gradient, given, [slope.copy_to_host() for slope in slopes]),
    }


def measure_rows(name: str, shape: tuple[int, int]) -> list[dict[str, Any]]:
    """Rows of the table: a word's row for each node, or the sum of nodes of each word.

    Half as many words as nodes, in any order.
    """
    nodes, words = shape[0], max(1, shape[0] // 2)
    index = np.random.default_rng(1).integers(0, words, nodes).astype(np.int32)
    places = [cuda.to_device(array) for array in inverse(index, words)]
    of_words, of_nodes = (
        np.random.default_rng(2).standard_normal((count, shape[1]), dtype="float32")
        for count in (words, nodes)
    )
    sums = np.zeros(of_words.shape)
    for word, row in zip(index, of_nodes, strict=True):
        sums[word] += row
    on_device = [cuda.to_device(array) for array in (of_words, of_nodes, index)]
    speed = copy_speed(size_of(on_device[1:2]))
    rows = []
    for direction in ("forward", "backward"):
        gathers = (name == "gather rows") == (direction == "forward")
        given = [on_device[0], on_device[2]] if gathers else [on_device[1], *places]
        function = gather_rows if gathers else segment_sum
        out = function(*given)
        want = of_words[index] if gathers else sums

        def work(
            stream: Any = 0, function: Any = function, given: Any = given, out: Any = out
        ) -> None:
            function(*given, out=out, stream=stream)

        took = microseconds(work)
        # Rows that are gathered more than once are counted as often.
        moved = size_of(given[1:]) + size_of([out]) + on_device[1].nbytes
        rows.append(
            {
                "kernel": name,
                "shape": list(shape),
                "direction": direction,
                "error": float(np.abs(out.copy_to_host() - want).max() / np.abs(want).max()),
                "microseconds": took,
                "host_microseconds": host_microseconds(work),
                "replayed_microseconds": replayed(on_stream(work)),
                "gigabytes_per_second": moved / took / 1e3,
                "share_of_copy": moved / took / speed,
                "torch_compile_microseconds": None,
                "torch_compile_replayed_microseconds": None,
            }
        )
    return rows


def torch_times(name: str, shape: tuple[int, int]) -> list[tuple[float | None, float | None]]:
    """Microseconds of torch.compile, and of the device alone, forward and backward.

    ``None`` without torch.
    """
    nothing = [(None, None), (None, None)]
    try:
        import torch
    except ImportError:
        return nothing
    functional = torch.nn.functional
    expressions: dict[str, Callable[..., Any]] = {
        "chain": lambda x, w: torch.tanh(x * w + 1.5) * torch.sigmoid(x) + torch.exp(-x * x) * 0.5,
        "LayerNorm": lambda x, w, b: functional.layer_norm(x, (x.shape[1],), w, b),
        "softmax": lambda x: torch.softmax(x, 1),
        "log_softmax": lambda x: torch.log_softmax(x, 1),
        "GELU": functional.gelu,
        "masked softmax": lambda x, m: torch.softmax(torch.where(m, x, -10000.0), 1),
        "cross entropy": lambda _, label, x: functional.cross_entropy(
            x, label[:, 0], reduction="none"
        ),
        "Huber loss": lambda x, y: functional.huber_loss(x, y, reduction="none").mean(1),
        "tree message": lambda c, b, p, x: torch.sigmoid(x + (p + b)) * c,
        "tree update": torch_update,
    }
    inputs = [torch.from_numpy(array).cuda() for array in data(parse(SPECS[name]), shape)]
    learns = [x.is_floating_point() for x in inputs]
    if name == "cross entropy":
        learns = [False, False, True]
        inputs[1] = inputs[1].long()
    try:
        torch._dynamo.reset()
        compiled = torch.compile(expressions[name])
        with torch.no_grad():
            forward = torch_microseconds(lambda: compiled(*inputs))
            forward_alone = replayed(lambda _: compiled(*inputs))
        wrt = [x.requires_grad_() for x, is_learnt in zip(inputs, learns, strict=True) if is_learnt]
        out = compiled(*inputs)
        outs = out if isinstance(out, tuple) else (out,)
        heads = [torch.randn_like(out) for out in outs]

        def gradients(_: Any = None) -> Any:
            return torch.autograd.grad(outs, wrt, heads, retain_graph=True)

        backward = torch_microseconds(gradients)
        backward_alone = replayed(gradients)
    except RuntimeError as failure:  # no compiler for its generated code, or no memory
        print(f"torch.compile on {name}: {str(failure).splitlines()[0]}", file=sys.stderr)
        return nothing
    return [(forward, forward_alone), (backward, backward_alone)]


def torch_update(cell: Any, *parts: Any) -> Any:
    """The spec "tree update"; ``parts``: bias, product and input of each gate."""
    import torch

    update, enter, leave = (x + (p + b) for b, p, x in zip(*[iter(parts)] * 3, strict=True))
    cell = torch.sigmoid(enter) * torch.tanh(update) + cell
    return cell, torch.sigmoid(leave) * torch.tanh(cell)


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


def described(row: dict[str, Any]) -> str:
    """A line of the table."""
    times = [
        row["microseconds"],
        row["host_microseconds"],
        row["replayed_microseconds"],
        row["gigabytes_per_second"],
        100 * row["share_of_copy"],
        row["torch_compile_microseconds"],
        row["torch_compile_replayed_microseconds"],
    ]
    cells = ["       -" if value is None else f"{value:8.1f}" for value in times]
    shape = "x".join(map(str, row["shape"]))
    return " ".join(
        [f"{row['kernel']:15} {shape:>12} {row['direction']:8} {row['error']:8.1e}", *cells]
    )


def main() -> None:
    """Measure, print the table, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the table")
    parser.add_argument("--only", choices=[*SPECS, *ROWS], action="append", help="kernels to run")
    options = parser.parse_args()
    rows = []
    columns = ["us", "host", "device", "GB/s", "of copy", "torch us", "device"]
    print(f"{'kernel':15} {'shape':>12} {'':8} {'error':>8}", *(f"{c:>8}" for c in columns))
    for shape in SHAPES:
        for name in options.only or [*SPECS, *ROWS]:
            for row in (measure_rows if name in ROWS else measure)(name, shape):
                rows.append(row)
                print(described(row), flush=True)
    if options.json:
        device = cuda.get_current_device().name
        name = device.decode() if isinstance(device, bytes) else str(device)
        options.json.write_text(json.dumps({"device": name, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
