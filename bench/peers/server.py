"""Runs in a peer's own Python: answers JSON lines on stdin with JSON lines on stdout.

Needs nothing of graphopt. ``--modules`` prints which of the modules named this Python has.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What makes something to run, by the kind that a request names: a module beside this one, which
#: may need libraries that others do not, and a name in it.
KINDS = {
    "graphopt_trees": ("mxnet_nets", "MXNetTrees"),
    "mxnet": ("mxnet_nets", "MXNet"),
    "mxnet_recurrence": ("mxnet_nets", "MXNetRecurrence"),
    "mxnet_trees": ("mxnet_nets", "MXNetTrees"),
    "onnxruntime": ("onnx_runtime", "OnnxRuntime"),
    "torch_encoder": ("torch_encoder", "TorchEncoder"),
    "torch_expression": ("torch_pointwise", "TorchExpression"),
    "torch_lstm": ("torch_recurrences", "TorchLstm"),
    "torch_mlp": ("torch_pointwise", "TorchMlp"),
    "torch_module": ("torch_modules", "TorchModule"),
    "torch_optimizer": ("torch_optimizers", "made"),
    "torch_text": ("torch_recurrences", "TorchText"),
    "torch_tree_package": ("torch_trees", "made"),
    "torch_trees": ("torch_trees", "made"),
}


def _found(module: str, name: str) -> Callable[[dict], Any]:
    return getattr(importlib.import_module(f"bench.peers.{module}"), name)


def _made(request: dict) -> Any:
    """What a request wants run."""
    return _found(*KINDS[request["kind"]])(request)


def _peak_mb() -> float:
    with open("/proc/self/status") as file:  # noqa: PTH123
        lines = [line.split() for line in file]
    return next(int(line[1]) / 1e3 for line in lines if line[0] == "VmHWM:")


class Server:
    """Answers requests; ``load`` makes something to run, ``run`` times it, ``save`` runs it."""

    def load(self, request: dict) -> dict:
        self._model = _made(request)
        self._model()
        return {}

    def memory(self, request: dict) -> dict:
        """MB by which runs of a model exceed what the process has after runs of a small one.

        The small one has everything loaded and compiled. The peak is not that of getrusage, which
        starts with the peak of the process that started this one.
        """
        model = _made(request | {"batches": request["check"]})
        model()
        large = _made(request)
        with open("/proc/self/clear_refs", "w") as file:  # noqa: PTH123 - not a file of bytes
            file.write("5")  # the peak is what there is now
        before = _peak_mb()
        for _ in range(request["count"]):
            large()
        return {"mb": _peak_mb() - before}

    def run(self, request: dict) -> dict:
        times = []
        for _ in range(request["count"]):
            start = time.perf_counter()
            self._model()
            times.append((time.perf_counter() - start) * 1e3)
        return {"ms": times}

    def save(self, request: dict) -> dict:
        import numpy

        found = getattr(self._model, "found", self._model)
        numpy.savez(request["to"], *found())
        return {}

    def export(self, request: dict) -> dict:
        return _found("mxnet_nets", "export")(request)


def main() -> None:
    if sys.argv[1:2] == ["--modules"]:
        print(json.dumps([n for n in sys.argv[2:] if importlib.util.find_spec(n) is not None]))
        return
    sys.path[0] = str(Path(__file__).parents[2])
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    server = Server()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request["do"])(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the bench reports it
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
