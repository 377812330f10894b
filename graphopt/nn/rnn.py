"""Gluon's recurrent layers, for sequences of any length, on the CPU too.

They have the parameters of ``gluon.rnn``'s layers, under the same names: ``load_parameters`` and
``save_parameters`` exchange weights in both directions.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from graphopt.backend.invoke import compose, invoke
from graphopt.compat import import_mxnet
from graphopt.errors import InputError, UnsupportedError
from graphopt.ir.node import RECURRENCE
from graphopt.ir.types import dtype_name
from graphopt.kernels import bridge
from graphopt.nn.legacy import with_legacy
from graphopt.passes.recurrence.body import Body, translate
from graphopt.passes.recurrence.cells import Cell, body_of

mx = import_mxnet()

#: What the layer that this thread is calling was asked for.
_call = threading.local()

_LENGTH_DTYPES = ("float32", "float64", "int32", "int64")


class _AnyLength:
    """What is common to the layers; stands before Gluon's layer in the order of classes."""

    def __call__(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        """Run the layer; see Gluon's layer for inputs and states.

        Args:
            inputs: (steps, batch, columns), or (batch, steps, columns) with ``layout="NTC"``.
            states: one (layers * directions, batch, columns) array a state; default: zeros.
            sequence_length: (batch,) whole numbers from 0 to steps; outputs behind the end of a
                sequence are zero, and final states are those at its end.

        Returns:
            The outputs, and with ``states`` the final states.

        Raises:
            InputError: inputs, states or lengths have another shape or dtype than they need.
            MXNetError: a length is not between 0 and the number of steps (when results are read).
        """
        skips = states is None
        if isinstance(inputs, mx.nd.NDArray):
            batch = inputs.shape[self._layout.find("N")]  # type: ignore[attr-defined]
            if skips:
                # Kernels read no zeros, so none are made, but a CachedOp has states as inputs.
                states = self._zero_states(inputs) if self._active else []  # type: ignore[attr-defined]
            if sequence_length is not None:
                _check_lengths(sequence_length, batch)
        elif skips:
            states = self.begin_state(0, func=mx.sym.zeros)  # type: ignore[attr-defined]
        states = list(states) if isinstance(states, (list, tuple)) else [states]
        more = () if sequence_length is None else (sequence_length,)
        # Not kept on the layer, as Gluon does: threads may want different things of it.
        before, _call.starts_from_zero = getattr(_call, "starts_from_zero", False), skips
        try:
            outputs, finals = mx.gluon.HybridBlock.__call__(self, inputs, states, *more)
        finally:
            _call.starts_from_zero = before
        return outputs if skips else (outputs, finals)

    def hybrid_forward(
        self,
        F: Any,
        inputs: Any,
        states: Any,
        sequence_length: Any = None,
        **params: Any,
    ) -> tuple[Any, list[Any]]:
        """The outputs and the final states."""
        if F is mx.nd:
            _check_inputs(inputs, params["l0_i2h_weight"])
        if F is mx.nd and (states or not _call.starts_from_zero):
            batch = inputs.shape[self._layout.find("N")]  # type: ignore[attr-defined]
            _check_states(states, self.state_info(batch))  # type: ignore[attr-defined]
        found: tuple[Any, list[Any]] = self._forward_kernel(
            F, inputs, states, sequence_length, **params
        )
        return found

    def infer_shape(self, inputs: Any, *_others: Any) -> None:
        """Learn the number of input columns from an array."""
        for name in ("l0_i2h_weight", "r0_i2h_weight")[: self._dir]:  # type: ignore[attr-defined]
            parameter = getattr(self, name)
            parameter.shape = (parameter.shape[0], inputs.shape[2])

    def _forward_kernel(
        self,
        F: Any,
        inputs: Any,
        states: Any,
        sequence_length: Any,
        **params: Any,
    ) -> Any:
        if self._stays_with_mxnet(sequence_length):
            self._use_sequence_length = sequence_length is not None
            states = states or self._zero_states(inputs)
            return super()._forward_kernel(F, inputs, states, sequence_length, **params)  # type: ignore[misc]
        return with_legacy(_forward, self, F, inputs, states, sequence_length, params)

    def _zero_states(self, inputs: Any) -> Any:
        batch = inputs.shape[self._layout.find("N")]  # type: ignore[attr-defined]
        return self.begin_state(batch, ctx=inputs.context, dtype=inputs.dtype)  # type: ignore[attr-defined]

    def _stays_with_mxnet(self, sequence_length: Any) -> bool:
        """Whether MXNet's operator has to do: on GPUs, for other dtypes, clipped states."""
        context = next(iter(self.collect_params().values())).list_ctx()[0]  # type: ignore[attr-defined]
        clipped = self._lstm_state_clip_min is not None  # type: ignore[attr-defined]
        why = None
        if context.device_type != "cpu":
            return True  # cuDNN knows lengths
        if clipped or dtype_name(self._dtype) not in ("float32", "float64"):  # type: ignore[attr-defined]
            why = "they need float32 or float64 arrays and states that are not clipped"
        else:
            why = bridge.why_not(mx)
        if why is not None and sequence_length is not None:
            raise UnsupportedError(f"{self.name}: no lengths of sequences here: {why}")  # type: ignore[attr-defined]
        return why is not None


def _forward(
    layer: Any, F: Any, x: Any, states: Any, lengths: Any, params: dict[str, Any]
) -> tuple[Any, list[Any]]:
    return _Forward(layer, F, params, lengths).run(x, states)


class _Forward:
    """One run of a layer, on arrays or on symbols; there are no ``states`` where they are zeros."""

    def __init__(self, layer: Any, F: Any, params: dict[str, Any], lengths: Any) -> None:
        self.layer, self.F, self.params, self.lengths = layer, F, params, lengths
        self.is_symbolic = F is not mx.nd
        self.n_states = len(layer.state_info())

    def run(self, x: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        layer, F = self.layer, self.F
        finals: list[list[Any]] = []
        for level in range(layer._num_layers):
            if level and layer._dropout:
                x = F.Dropout(x, p=layer._dropout)
            x, *final = self._layer(x, states, level)
            count = self.n_states
            finals += [final[d * count : (d + 1) * count] for d in range(layer._dir)]
        if not states:
            return x, []  # nobody asks for the final ones either
        stacked = [
            [F.expand_dims(final[n], axis=0) for final in finals] for n in range(len(states))
        ]
        return x, [s[0] if len(s) == 1 else F.concat(*s, dim=0) for s in stacked]

    def _layer(self, x: Any, states: Sequence[Any], level: int) -> list[Any]:
        """The output of a layer, and the final states of all its directions."""
        layer = self.layer
        inputs = getattr(layer, f"l{level}_i2h_weight").shape[1]
        if inputs <= 0:  # -1 under npx.set_np()
            raise UnsupportedError(
                f"{layer.name}: give input_size=, or call the net once before hybridize()"
            )
        cell = Cell(layer._mode, inputs, layer._hidden_size, layer._projection_size or 0)
        body, spec = _translated(cell, dtype_name(layer._dtype))
        directions = range(layer._dir)
        zero = self._starts_from_zero(states)
        reads = [x]
        for direction in () if zero else directions:
            reads += self._own(states, level * layer._dir + direction)
        learned = [
            [self.params[f"{'lr'[d]}{level}_{name}"] for name in cell.parameters]
            for d in directions
        ]
        first = 1 + self.n_states
        reads += [own[n - first] for own in learned for n in body.matrices]
        reads += [self._sum([own[n - first] for n in g]) for own in learned for g in body.vectors]
        if self.lengths is not None:
            reads.append(self.lengths)
        attrs = {
            "spec": spec,
            "lengths": self.lengths is not None,
            "batch_major": layer._layout == "NTC",
            "bidirectional": layer._dir == 2,
            "zero_states": zero,
            "stash": mx.autograd.is_recording(),
        }
        run = compose if self.is_symbolic else invoke
        return list(run(RECURRENCE, reads, attrs))[: 1 + self.n_states * layer._dir]

    def _starts_from_zero(self, states: Sequence[Any]) -> bool:
        # A hybridized layer is given zeros as inputs, which MXNet wants to see used.
        is_given = self.is_symbolic and any(state.list_arguments() for state in states)
        return _call.starts_from_zero and not is_given

    def _sum(self, values: Sequence[Any]) -> Any:
        # Not elemwise_add: with grad_req="add" for both, MXNet adds the second gradient twice.
        return values[0] if len(values) == 1 else self.F.add_n(*values)

    def _own(self, states: Sequence[Any], number: int) -> list[Any]:
        """The states of one layer and direction."""
        count = self.layer._num_layers * self.layer._dir
        # A split, unlike a slice, insists on the number of layers.
        split = [self.F.split(s, num_outputs=count, axis=0, squeeze_axis=True) for s in states]
        return split if count == 1 else [parts[number] for parts in split]


@lru_cache(maxsize=64)
def _translated(cell: Cell, dtype: str) -> tuple[Body, str]:
    """What a step computes, and the same printed."""
    # The batch is not part of it.
    body = translate(body_of(cell, 2, dtype), 1, len(cell.states))
    return body, str(body.spec)


def _check_inputs(inputs: Any, weight: Any) -> None:
    columns = weight.shape[1]
    if inputs.ndim != 3 or inputs.shape[2] != columns:
        raise InputError(
            f"inputs have shape {inputs.shape}, the layer needs three axes, the last of {columns}"
        )
    if inputs.dtype != weight.dtype:
        raise InputError(
            f"inputs are {dtype_name(inputs.dtype)}, the layer's weights"
            f" {dtype_name(weight.dtype)}:"
            " cast one of them"
        )


def _check_states(states: Sequence[Any], wanted: Sequence[Mapping[str, Any]]) -> None:
    for number, (state, info) in enumerate(zip(states, wanted, strict=False)):
        if state.shape != info["shape"]:
            raise InputError(
                f"state {number} has shape {state.shape}, the layer needs {info['shape']}"
            )
    if len(states) != len(wanted):
        raise InputError(f"the layer has {len(wanted)} states, {len(states)} were given")


def _check_lengths(lengths: Any, batch: int) -> None:
    if not isinstance(lengths, mx.nd.NDArray):
        raise InputError(f"sequence_length is a {type(lengths).__name__}, not an NDArray")
    if lengths.shape != (batch,):
        raise InputError(f"sequence_length has shape {lengths.shape}, the batch needs ({batch},)")
    name = dtype_name(lengths.dtype)
    if name not in _LENGTH_DTYPES:
        raise InputError(f"sequence_length is {name}, not one of {', '.join(_LENGTH_DTYPES)}")


class LSTM(_AnyLength, mx.gluon.rnn.LSTM):  # type: ignore[name-defined]
    """``gluon.rnn.LSTM`` with ``layer(inputs, states=None, sequence_length=None)``.

    Hochreiter and Schmidhuber, Long Short-Term Memory (1997), with forget gates; arguments are
    those of Gluon's layer.
    """


class GRU(_AnyLength, mx.gluon.rnn.GRU):  # type: ignore[name-defined]
    """``gluon.rnn.GRU`` with ``layer(inputs, states=None, sequence_length=None)``.

    Cho et al., Learning Phrase Representations using RNN Encoder-Decoder (2014), with the reset
    gate behind the product, as in cuDNN; arguments are those of Gluon's layer.
    """


class RNN(_AnyLength, mx.gluon.rnn.RNN):  # type: ignore[name-defined]
    """``gluon.rnn.RNN`` with ``layer(inputs, states=None, sequence_length=None)``.

    Elman, Finding Structure in Time (1990), with tanh or relu; arguments are those of Gluon's
    layer.
    """
