"""The fused RNN operator, and operators on sequences of different lengths, time first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphopt.backend.reference_ops.call import Array, Call, Outputs, Table, narrow, wide
from graphopt.backend.reference_ops.elementwise import sigmoid

_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


@dataclass(frozen=True)
class _Cell:
    """The parameters of one layer in one direction: G gates of H units, I inputs, a state of P.

    Gates lie one after the other: input, forget, candidate, output (lstm); reset, update, candidate
    (gru).
    """

    input_weight: Array  # (G * H, I)
    state_weight: Array  # (G * H, P)
    input_bias: Array  # (G * H,)
    state_bias: Array  # (G * H,)
    projection: Array | None  # (P, H), where P differs from H


def unpack(call: Call, input_size: int) -> list[_Cell]:
    """The cells in the packed parameter vector: layer by layer, both directions together.

    All weights come first, then all biases, in the same order.

    Raises:
        ValueError: the vector has another length than the attributes say.
    """
    flat, hidden = wide(call.inputs[1]), call.integer("state_size")
    layers, directions = call.integer("num_layers"), 1 + call.flag("bidirectional")
    rows = _GATES[call.text("mode")] * hidden
    projected = call.integer("projection_size") if call.has("projection_size") else 0
    state = projected or hidden
    weights: list[tuple[Array, Array, Array | None]] = []
    at = 0

    def take(*shape: int) -> Array:
        nonlocal at
        size = int(np.prod(shape))
        if at + size > len(flat):
            raise ValueError(f"{call.op} needs more parameters than the {len(flat)} given.")
        at += size
        return flat[at - size : at].reshape(shape)

    for layer in range(layers):
        width = input_size if layer == 0 else state * directions
        for _ in range(directions):
            both = take(rows, width), take(rows, state)
            weights.append((*both, take(projected, hidden) if projected else None))
    cells = [_Cell(w, r, take(rows), take(rows), p) for w, r, p in weights]
    if at != len(flat):
        raise ValueError(f"{call.op} needs {at} parameters, but was given {len(flat)}.")
    return cells


def _step(mode: str, cell: _Cell, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """The next state (N, P) and memory (N, H) from the input (N, I); only an lstm has a memory."""
    from_input = x @ cell.input_weight.T + cell.input_bias
    from_state = h @ cell.state_weight.T + cell.state_bias
    if mode == "rnn_relu":
        return np.maximum(from_input + from_state, 0), c
    if mode == "rnn_tanh":
        return np.tanh(from_input + from_state), c
    if mode == "gru":
        (r, z, n), (hr, hz, hn) = np.split(from_input, 3, 1), np.split(from_state, 3, 1)
        update = sigmoid(z + hz)
        # The reset gate scales the state's share of the candidate after its product and bias.
        return (1 - update) * np.tanh(n + sigmoid(r + hr) * hn) + update * h, c
    enter, forget, candidate, leave = np.split(from_input + from_state, 4, 1)
    c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(candidate)
    h = sigmoid(leave) * np.tanh(c)
    return (h if cell.projection is None else h @ cell.projection.T), c


def _walk(
    mode: str, cell: _Cell, x: Array, h: Array, c: Array, lengths: Array, backward: bool
) -> tuple[Array, Array, Array]:
    """All steps of one direction: outputs (T, N, P), and the last state and memory.

    A sequence that has ended keeps its state and gives zeros; backward, it starts at its own last
    step.
    """
    steps = range(len(x))
    out = np.zeros((*x.shape[:2], h.shape[1]))
    for t in reversed(steps) if backward else steps:
        alive = (t < lengths)[:, None]
        next_h, next_c = _step(mode, cell, x[t], h, c)
        h, c = np.where(alive, next_h, h), np.where(alive, next_c, c)
        out[t] = np.where(alive, h, 0)
    return out, h, c


def _rnn(call: Call) -> Outputs:
    """RNN of data (T, N, I): outputs (T, N, P * directions), then with state_outputs the states.

    States are (layers * directions, N, P), the memories of an lstm (..., N, H). Sequence lengths
    (N,) are the last input with use_sequence_length, which MXNet itself has on GPUs only.

    Raises:
        UnsupportedOp: dropout between layers in training, or clipping of the memory, which CPUs do
        not have either.
    """
    mode, data, h0 = call.text("mode"), wide(call.x), wide(call.inputs[2])
    directions = 1 + call.flag("bidirectional")
    if call.training and call.number("p", 0.0) > 0:
        raise call.unsupported("with dropout in training, where its result is random")
    if call.has("lstm_state_clip_min") or call.has("lstm_state_clip_max"):
        raise call.unsupported("with clipping of the memory")
    c0 = wide(call.inputs[3]) if mode == "lstm" else np.zeros((len(h0), data.shape[1], 1))
    lengths = np.full(data.shape[1], len(data))
    if call.flag("use_sequence_length"):
        lengths = narrow(call.inputs[-1], np.int64)
    last: list[tuple[Array, Array]] = []
    cells = unpack(call, data.shape[2])
    for layer in range(call.integer("num_layers")):
        outs = []
        for side in range(directions):
            i = layer * directions + side
            out, h, c = _walk(mode, cells[i], data, h0[i], c0[i], lengths, backward=side == 1)
            outs.append(out)
            last.append((h, c))
        data = np.concatenate(outs, 2)
    results = [data]
    if call.flag("state_outputs"):
        results.append(np.stack([h for h, _ in last]))
        results += [np.stack([c for _, c in last])] if mode == "lstm" else []
    return [narrow(v, call.x.dtype) for v in results]


def _lengths(call: Call, default: int) -> list[int]:
    """The length of each sequence: the second input with use_sequence_length, else all of time."""
    if not call.flag("use_sequence_length"):
        return [default] * call.x.shape[1 - call.integer("axis", 0)]
    return [int(v) for v in call.inputs[1]]


def _sequences(call: Call, x: Array) -> Iterator[tuple[Array, int]]:
    """A view (T, ...) of each sequence in the batch with its length; `axis`, 0 or 1, is time."""
    axis = call.integer("axis", 0)
    batch = np.moveaxis(x, 1 - axis, 0)
    return zip(batch, _lengths(call, x.shape[axis]), strict=True)


def _sequence_mask(call: Call) -> Outputs:
    """SequenceMask: what follows the end of a sequence becomes `value`."""
    out = call.x.copy()
    for sequence, length in _sequences(call, out):
        sequence[length:] = call.number("value", 0.0)
    return [out]


def _sequence_last(call: Call) -> Outputs:
    """SequenceLast: the last step of each sequence, (N, ...)."""
    return [np.stack([sequence[length - 1] for sequence, length in _sequences(call, call.x)])]


def _sequence_reverse(call: Call) -> Outputs:
    """SequenceReverse: each sequence backwards, what follows its end stays."""
    out = call.x.copy()
    for sequence, length in _sequences(call, out):
        sequence[:length] = sequence[:length][::-1].copy()
    return [out]


TABLE: Table = {
    "RNN": _rnn,
    "SequenceLast": _sequence_last,
    "SequenceMask": _sequence_mask,
    "SequenceReverse": _sequence_reverse,
}
