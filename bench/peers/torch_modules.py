"""PyTorch's forms of bench/module_nets.py; runs in a peer's own Python."""

from __future__ import annotations

import torch

nn = torch.nn


class Words(nn.Module):
    """Two layers of LSTMs over words, and each word's scores at each step."""

    def __init__(self, words: int, units: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, units)
        self.lstm = nn.LSTM(units, units, 2, batch_first=True)
        self.scores = nn.Linear(units, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, steps)`` to ``(batch * steps, words)``."""
        return self.scores(self.lstm(self.embed(x))[0]).flatten(0, 1)


def lenet() -> nn.Module:
    """Of one channel of 28 x 28 pixels."""
    layers: list[nn.Module] = []
    for inputs, filters in ((1, 20), (20, 50)):
        layers += [nn.Conv2d(inputs, filters, 5), nn.Tanh(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10))


def perceptron() -> nn.Module:
    """Of rows of 17 numbers."""
    layers = [nn.Linear(17, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6)]
    return nn.Sequential(*layers)


def digits() -> nn.Module:
    """Of rows of 784 numbers."""
    layers = [nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)]
    return nn.Sequential(*layers)


class Sentences(nn.Module):
    """Filters over 3, 4 and 5 words at a time, and the largest of each filter."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 300)
        self.filters = nn.ModuleList(nn.Conv2d(1, 100, (size, 300)) for size in (3, 4, 5))
        self.scores = nn.Linear(300, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(batch, steps)`` to ``(batch, 2)``."""
        seen = self.embed(x)[:, None]
        return self.scores(torch.cat([f(seen).relu().amax(2).flatten(1) for f in self.filters], 1))


class TorchModule:
    """Forward, or a step of cross entropy and SGD with momentum."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        name, shape = request["net"], tuple(request["shape"])
        made = {"lenet": lenet, "perceptron": perceptron, "digits": digits}
        if name == "words":
            words = request["classes"]
            self._net = Words(words, request["units"])
            self._x = torch.randint(words, shape)
            self._y = torch.randint(words, (shape[0] * shape[1],))
        elif name == "sentences":
            self._net = Sentences(request["words"])
            self._x = torch.randint(request["words"], shape)
            self._y = torch.randint(request["classes"], shape[:1])
        else:
            self._net, self._x = made[name](), torch.randn(shape)
            self._y = torch.randint(request["classes"], shape[:1])
        self._trains = request["trains"]
        parameters = self._net.parameters()
        self._optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=True)

    def __call__(self) -> list:
        if not self._trains:
            with torch.inference_mode():
                return [torch.softmax(self._net(self._x), -1)]
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._net(self._x), self._y, reduction="sum").backward()
        self._optimizer.step()
        return []
