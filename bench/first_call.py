"""Prints, as JSON, the seconds of the encoder's first calls in this process.

Two of a batch, and the first of a batch that is smaller by one, as an epoch's last may be.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

from bench import workloads


def main() -> None:
    """Arguments: plain or graphopt; inference or training; small or full."""
    who, mode, size = sys.argv[1:]
    start = time.perf_counter()
    import graphopt
    from graphopt.compat import import_mxnet
    from graphopt.demo import models
    from graphopt.demo.checking import train_step

    mx = import_mxnet()
    shape = workloads.SMALL_ENCODER if size == "small" else workloads.ENCODER
    example = models.encoder(**shape)
    imported = time.perf_counter() - start
    if who == "plain":
        net = example.as_plain()
    else:
        net = graphopt.optimize(example.net, mode="auto" if mode == "training" else mode)
    (arguments,) = example.calls
    last = replace(example, calls=[tuple(array[1:].copy() for array in arguments)])
    times = []
    for each in (example, example, last):
        mx.nd.waitall()
        start = time.perf_counter()
        if mode == "training":
            train_step(each, net)
        else:
            each.run(net)
        mx.nd.waitall()
        times.append(time.perf_counter() - start)
    from graphopt.kernels.library import STATISTICS

    first, second, smaller = times
    print(
        json.dumps(
            {
                "import": imported,
                "first": first,
                "second": second,
                "last batch": smaller,
                "compiled": STATISTICS.compiled,
                "loaded": STATISTICS.loaded,
            }
        )
    )


if __name__ == "__main__":
    main()
