"""What is computed number by number or by rows, and dense layers, in PyTorch."""

from __future__ import annotations

import numpy as np
import torch


class TorchExpression:
    """An expression of bench/kernels.py in PyTorch, eager or compiled, perhaps with backward."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        nn = torch.nn.functional
        functions = {
            "chain": lambda x, w: (
                torch.tanh(x * w + 1.5) * torch.sigmoid(x) + torch.exp(-x * x) * 0.5
            ),
            "layer_norm": lambda x, g, b: nn.layer_norm(x, g.shape, g, b, 1e-5),
            "softmax": lambda x: torch.softmax(x, -1),
            "log_softmax": lambda x: torch.log_softmax(x, -1),
            "gelu": nn.gelu,
            "masked_softmax": lambda x, m: torch.softmax(torch.where(m != 0, x, -1e9), -1),
            "instance_norm": lambda x, g, b: nn.instance_norm(x, weight=g, bias=b, eps=1e-3),
            # one weight for each group, as MXNet has them
            "group_norm": lambda x, g, b: nn.group_norm(
                x, 8, *(w.repeat_interleave(x.shape[1] // 8) for w in (g, b)), eps=1e-5
            ),
            "prelu": nn.prelu,
            "clip": lambda x: torch.clamp(x, -0.5, 0.75),
            "gate": lambda x, gate: x * gate,
            "channel_softmax": lambda x: torch.softmax(x, 1),
            "channel_norm": lambda x, g, b: nn.layer_norm(
                x.transpose(1, -1), g.shape, g, b, 1e-5
            ).transpose(1, -1),
            "centred": lambda x: x - x.mean(1, keepdim=True),
        }
        function = functions[request["name"]]
        self._function = torch.compile(function, dynamic=False) if request["compiled"] else function
        self._arrays = [torch.from_numpy(np.load(path)) for path in request["arrays"]]
        self._head = torch.from_numpy(np.load(request["head"]))
        self._learned = self._arrays[: request["learned"]] if request["backward"] else []
        for array in self._learned:
            array.requires_grad_()

    def __call__(self) -> list:
        if not self._learned:
            with torch.inference_mode():
                return [self._function(*self._arrays).numpy()]
        for array in self._learned:
            array.grad = None
        y = self._function(*self._arrays)
        y.backward(self._head)
        return [y.detach().numpy(), *(array.grad.numpy() for array in self._learned)]


class TorchMlp:
    """Dense layers with ReLU between them in PyTorch, eager or compiled."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        arrays = np.load(request["weights"])
        self._w = [torch.from_numpy(arrays[name]) for name in arrays.files]
        self._x = torch.from_numpy(np.load(request["inputs"][0]))
        self._run = torch.compile(self._net) if request["compiled"] else self._net

    def __call__(self) -> list:
        with torch.no_grad():
            return [self._run(self._x).numpy()]

    def _net(self, x):
        nn = torch.nn.functional
        for at in range(0, len(self._w), 2):
            x = nn.linear(x if at == 0 else nn.relu(x), self._w[at], self._w[at + 1])
        return x
