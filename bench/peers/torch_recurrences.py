"""LSTMs in PyTorch, and nets with one that learn from texts."""

from __future__ import annotations

import numpy as np
import torch


class TorchLstm:
    """PyTorch's LSTM, on padded sequences or packed ones, perhaps with backward."""

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        weights = [torch.from_numpy(array) for array in np.load(request["weights"]).values()]
        units, columns = weights[1].shape[1], weights[0].shape[1]
        self._lstm = torch.nn.LSTM(columns, units, len(weights) // 4)
        with torch.no_grad():
            for parameter, value in zip(self._lstm.parameters(), weights, strict=True):
                parameter.copy_(value)
        self._x = torch.from_numpy(np.load(request["inputs"][0]))
        self._lengths = None
        if request.get("lengths"):
            self._lengths = torch.from_numpy(np.load(request["lengths"]))
        self._backward = request["backward"]
        if self._backward:
            self._x.requires_grad_()
            self._head = torch.ones(*self._x.shape[:2], units)

    def __call__(self) -> list:
        if not self._backward:
            with torch.inference_mode():
                return [self._forward().numpy()]
        for parameter in (self._x, *self._lstm.parameters()):
            parameter.grad = None
        y = self._forward()
        y.backward(self._head)
        return [y.detach().numpy()]

    def _forward(self):
        if self._lengths is None:
            return self._lstm(self._x)[0]
        rnn = torch.nn.utils.rnn
        packed = rnn.pack_padded_sequence(self._x, self._lengths, enforce_sorted=False)
        return rnn.pad_packed_sequence(self._lstm(packed)[0], total_length=len(self._x))[0]


class TorchText:
    """Steps of training a net of examples/ in PyTorch: same weights, same optimizer.

    An embedding if there are weights for one, else one-hot numbers; LSTM, dense; cross entropy, for
    a single score the binary one.
    """

    def __init__(self, request: dict) -> None:
        torch.set_num_threads(request["threads"])
        weights = np.load(request["weights"])
        self._w = {
            name: torch.nn.Parameter(torch.from_numpy(weights[name]))
            for name in sorted(weights.files)
        }
        data, labels = (torch.from_numpy(np.load(path)) for path in request["inputs"])
        self._numbers = data.t().long()
        self._binary = len(self._w["score_bias"]) == 1
        self._labels = labels if self._binary else labels.long()
        self._sparse, self._unrolled = request["sparse"], request["unrolled"]
        self._lstm = self._made_lstm()
        self._optimizers = self._made_optimizers(request["optimizer"], request["learning_rate"])
        self._first = self._found()

    def __call__(self) -> list:
        """One step; the result is that of the first weights, which alone can be compared."""
        for weight in self._w.values():
            weight.grad = None
        self._losses().mean().backward()
        for optimizer in self._optimizers:
            optimizer.step()
        return self._first

    def _found(self) -> list:
        """Losses, and gradients of their sum as in MXNet, in the order of names."""
        losses = self._losses()
        losses.sum().backward()
        # Copies, as a later step may use the same memory.
        gradients = [weight.grad.to_dense().numpy().copy() for weight in self._w.values()]
        return [losses.detach().numpy(), *gradients]

    def _made_lstm(self):
        """PyTorch has the gates in the same order, and other names for the weights."""
        nn = torch.nn
        units, columns = self._w["lstm_h2h_weight"].shape[1], self._w["lstm_i2h_weight"].shape[1]
        lstm = nn.LSTMCell(columns, units) if self._unrolled else nn.LSTM(columns, units)
        end = "" if self._unrolled else "_l0"
        for kind in ("weight", "bias"):
            for ours, theirs in (("i2h", "ih"), ("h2h", "hh")):
                setattr(lstm, f"{kind}_{theirs}{end}", self._w[f"lstm_{ours}_{kind}"])
        return lstm

    def _made_optimizers(self, name: str, rate: float) -> list:
        """Usually one; row-sparse gradients, which take Adam, have one of their own."""
        optim = torch.optim
        dense = dict(self._w)
        if name == "rmsprop":
            return [optim.RMSprop(dense.values(), lr=rate, alpha=0.9)]  # MXNet's default
        found = [optim.SparseAdam([dense.pop("embed_weight")], lr=rate)] if self._sparse else []
        return [optim.Adam(dense.values(), lr=rate), *found]

    def _losses(self):
        nn = torch.nn.functional
        scores = nn.linear(self._last(), self._w["score_weight"], self._w["score_bias"])
        if self._binary:
            return nn.binary_cross_entropy_with_logits(scores[:, 0], self._labels, reduction="none")
        return nn.cross_entropy(scores, self._labels, reduction="none")

    def _last(self):
        """The state after the last step."""
        steps = self._steps()
        if not self._unrolled:
            return self._lstm(steps)[0][-1]
        states = None
        for step in steps:
            states = self._lstm(step, states)
        return states[0]

    def _steps(self):
        nn = torch.nn.functional
        if "embed_weight" in self._w:
            return nn.embedding(self._numbers, self._w["embed_weight"], sparse=self._sparse)
        return nn.one_hot(self._numbers, len(self._w["score_bias"])).float()
