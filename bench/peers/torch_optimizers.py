"""Optimizers of PyTorch over weights of given shapes; runs in a peer's own Python."""

from __future__ import annotations

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

    def found(self) -> list:
        """A number of each weight, after a step."""
        self._optimizer.step()
        return [weight.detach().flatten()[:1].numpy() for weight in self._weights]
