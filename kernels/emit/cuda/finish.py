"""What happens to parts of sums before and after a kernel writes them."""

from __future__ import annotations


def emit_finish() -> str:
    """Source of ``finish``, which adds up parts, and ``fill``, which zeroes them."""
    return _FINISH


_FINISH = """\
def finish(parts, out, count, size):
    kept = shared_by_threads()
    column = cuda.threadIdx.x
    y = cuda.threadIdx.y
    i = wide(cuda.blockIdx.x) * 32 + column
    total = number(0.0)
    if i < size:
        k = wide(y)
        while k < count:
            total = total + load0(parts, k * size + i)
            k += cuda.blockDim.y
    kept[y * 32 + column] = total
    cuda.syncthreads()
    if y == 0 and i < size:
        for k in range(1, cuda.blockDim.y):
            total = total + kept[k * 32 + column]
        store1(out, i, total)


def fill(parts, size):
    i = thread_number()
    while i < size:
        store0(parts, i, number(0.0))
        i += thread_count()
"""
