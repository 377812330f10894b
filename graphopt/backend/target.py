"""MXNet as the target of a pipeline: inference of types, and running graphs to compare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphopt.backend.engines import quiet_binding
from graphopt.backend.infer import Types, infer_types
from graphopt.backend.symbol import constants, first_line, to_symbol
from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError, InputError
from graphopt.ir.graph import Graph

_GRADIENT_DTYPES = ("float16", "float32", "float64")


class MXNetTarget:
    """MXNet on the CPU."""

    def infer_types(self, graph: Graph) -> Types:
        """See :func:`graphopt.backend.infer.infer_types`."""
        return infer_types(graph)

    def evaluate(
        self,
        graph: Graph,
        feeds: Mapping[str, np.ndarray],
        *,
        training: bool = False,
        gradients: bool = False,
    ) -> dict[str, np.ndarray]:
        """Run the graph once in MXNet's executor.

        Args:
            graph: what to run.
            feeds: array per input name; unread inputs may be left out.
            training: MXNet's ``is_train``; the generator is seeded alike for every call.
            gradients: also backward, with fixed pseudo-random head gradients.

        Returns:
            ``output0`` ..., and with gradients ``grad:<input>`` for every float input (and, in
            training, ``aux:<input>`` for the auxiliary states afterwards).

        Raises:
            GraphoptError: MXNet raised; the message is its first line.
        """
        mx = import_mxnet()
        try:
            return _run(mx, graph, feeds, training=training or gradients, gradients=gradients)
        except mx.MXNetError as error:
            raise GraphoptError(
                f"MXNet cannot run graph {graph.name!r}: {first_line(error)}"
            ) from None


def _run(
    mx: Any, graph: Graph, feeds: Mapping[str, np.ndarray], *, training: bool, gradients: bool
) -> dict[str, np.ndarray]:
    symbol = to_symbol(graph)
    arrays = {name: mx.nd.array(a, dtype=a.dtype) for name, a in constants(graph).items()}
    fixed = set(arrays)
    for name in symbol.list_inputs():
        if name not in arrays:
            if name not in feeds:
                raise InputError(f"input {name!r} of graph {graph.name!r} has no value")
            arrays[name] = mx.nd.array(feeds[name], dtype=feeds[name].dtype)
    args = {name: arrays[name] for name in symbol.list_arguments()}
    aux = {name: arrays[name] for name in symbol.list_auxiliary_states()}
    wanted = {
        name: gradients and name not in fixed and a.dtype.__name__ in _GRADIENT_DTYPES
        for name, a in args.items()
    }
    with quiet_binding():
        executor = symbol.bind(
            mx.cpu(),
            args,
            args_grad={name: mx.nd.zeros_like(args[name]) for name, use in wanted.items() if use},
            grad_req={name: "write" if use else "null" for name, use in wanted.items()},
            aux_states=aux,
        )
    mx.random.seed(0)
    outputs = executor.forward(is_train=training)
    found = {f"output{i}": output.asnumpy() for i, output in enumerate(outputs)}
    if gradients:
        executor.backward([_head_gradient(mx, output, i) for i, output in enumerate(outputs)])
        found |= {
            f"grad:{name}": executor.grad_dict[name].asnumpy() for name, use in wanted.items() if use
        }
        found |= {f"aux:{name}": a.asnumpy() for name, a in aux.items()}
    return found


def _head_gradient(mx: Any, output: Any, number: int) -> Any:
    rng = np.random.default_rng(number)
    return mx.nd.array(rng.standard_normal(output.shape), dtype=output.dtype)
