"""The encoder in PyTorch."""

from __future__ import annotations

import numpy as np
import torch


class TorchEncoder:
    """The encoder of graphopt.demo in PyTorch, with the same parameters.

    With a second input, lengths, it is the language model of bench/attention_nets.py.
    """

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        self._heads, self._layers = request["heads"], request["layers"]
        self._relu = request["activation"] == "relu"
        weights = np.load(request["weights"])
        self._w = {name: torch.from_numpy(weights[name]) for name in sorted(weights.files)}
        self._x = torch.from_numpy(np.load(request["inputs"][0]))
        self._mask, self._rate = None, request.get("dropout", 0.0)
        if len(request["inputs"]) > 1:
            lengths = torch.from_numpy(np.load(request["inputs"][1]))
            self._mask = torch.arange(self._x.shape[1]) < lengths[:, None]
        self._head = None
        if request.get("head"):
            self._head = torch.from_numpy(np.load(request["head"]))
            for weight in self._w.values():
                weight.requires_grad_()
        self._run = torch.compile(self._net) if request.get("compiled") else self._net

    def __call__(self) -> list:
        if self._head is None:
            with torch.inference_mode():
                return [self._run(self._x).numpy()]
        for weight in self._w.values():
            weight.grad = None
        y = self._run(self._x)
        y.backward(self._head)
        return [y.detach().numpy(), *(weight.grad.numpy() for weight in self._w.values())]

    def found(self) -> list:
        """Without Dropout, which cannot be compared."""
        rate, self._rate = self._rate, 0.0
        try:
            return self()
        finally:
            self._rate = rate

    def _net(self, x):
        for number in range(self._layers):
            x = self._layer(x, f"encoder_layer{number}_")
        return x if self._mask is None else x * self._mask[:, :, None]

    def _layer(self, x, at: str):
        nn = torch.nn.functional
        x = self._norm(x + self._drop(self._attention(x, at + "attention_")), at + "norm1_")
        wide = self._dense(x, at + "widen_")
        wide = nn.relu(wide) if self._relu else nn.gelu(wide)
        return self._norm(x + self._drop(self._dense(wide, at + "narrow_")), at + "norm2_")

    def _drop(self, x):
        return torch.nn.functional.dropout(x, self._rate) if self._rate else x

    def _attention(self, x, at: str):
        mask = None if self._mask is None else self._mask[:, None, None]
        attend = torch.nn.functional.scaled_dot_product_attention
        mixed = attend(*self._heads_of(x, at), attn_mask=mask, dropout_p=self._rate)
        return self._dense(mixed.transpose(1, 2).flatten(2), at + "mix_")

    def _heads_of(self, x, at: str):
        """Queries, keys and values: of layers of their own, or interleaved by heads."""
        if at + "all_weight" in self._w:
            found = self._dense(x, at + "all_").unflatten(2, (self._heads, 3, -1))
            return [part.transpose(1, 2) for part in found.unbind(3)]
        return [self._split(self._dense(x, at + name)) for name in ("query_", "key_", "value_")]

    def _split(self, x):
        return x.unflatten(2, (self._heads, -1)).transpose(1, 2)

    def _dense(self, x, at: str):
        return torch.nn.functional.linear(x, self._w[at + "weight"], self._w[at + "bias"])

    def _norm(self, x, at: str):
        gamma, beta = self._w[at + "gamma"], self._w[at + "beta"]
        return torch.nn.functional.layer_norm(x, gamma.shape, gamma, beta, 1e-5)
