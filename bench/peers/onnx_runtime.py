"""Models in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime


class OnnxRuntime:
    """A model in ONNX Runtime."""

    def __init__(self, request: dict) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = request["threads"]
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            request["model"], options, providers=["CPUExecutionProvider"]
        )
        names = [value.name for value in self._session.get_inputs()]
        self._feeds = dict(zip(names, map(np.load, request["inputs"]), strict=True))

    def __call__(self) -> list:
        return self._session.run(None, self._feeds)
