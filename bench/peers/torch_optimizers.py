"""Optimizers of PyTorch, alone and in steps of a small net; runs in a peer's own Python."""

from __future__ import annotations

import itertools

import torch

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}


class TorchOptimizer:
    """Steps with the same gradients, over and over; fused where PyTorch has that."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        self._weights = [torch.full(tuple(shape), 0.5) for shape in request["shapes"]]
        for weight in self._weights:
            weight.requires_grad_()
            weight.grad = torch.full_like(weight, 0.01)
        make = OPTIMIZERS[request["optimizer"]]
        options = {"lr": request["rate"], **request["options"]}
        try:
            self._optimizer = make(self._weights, fused=True, **options)
        except (TypeError, RuntimeError):
            self._optimizer = make(self._weights, foreach=True, **options)

    def __call__(self) -> list:
        self._optimizer.step()
        return []


class TorchClip:
    """Gradients clipped by their norm, which is below the bound."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        self._weights = [torch.full(tuple(shape), 0.5) for shape in request["shapes"]]
        for weight in self._weights:
            weight.grad = torch.full_like(weight, 0.01)
        self._most = request["most"]

    def __call__(self) -> list:
        torch.nn.utils.clip_grad_norm_(self._weights, self._most)
        return []


class TorchStep:
    """Steps of dense layers with tanh between them, by Adam and half the mean square of errors."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        widths, rows = request["widths"], request["rows"]
        layers: list[torch.nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
        self._net = torch.nn.Sequential(*layers[:-1])
        self._x, self._y = torch.randn(rows, widths[0]), torch.randn(rows, widths[-1])
        self._optimizer = torch.optim.Adam(self._net.parameters(), lr=1e-6, fused=True)

    def __call__(self) -> list:
        self._optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self._net(self._x), self._y) / 2
        loss.backward()
        self._optimizer.step()
        return []


def made(request: dict) -> TorchClip | TorchOptimizer | TorchStep:
    """What a request wants run."""
    kinds = {"clip": TorchClip, "optimizer": TorchOptimizer, "step": TorchStep}
    return kinds[request["what"]](request)
