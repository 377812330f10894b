"""What an operator's attributes say beyond the table: fewer inputs, no randomness, a simpler kind.

Every function here only ever narrows: it removes possibilities that the attributes exclude.
Attribute values may be the strings of Symbol JSON or the parsed Python values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo

Attributes = Mapping[str, object]


def _flag(attrs: Attributes, key: str, default: bool = False) -> bool:
    return str(attrs.get(key, default)).lower() in ("true", "1")


def _zero(attrs: Attributes, key: str, default: float) -> bool:
    return float(str(attrs.get(key, default))) == 0.0


def _without(info: OpInfo, *names: str) -> OpInfo:
    return replace(info, arguments=tuple(name for name in info.arguments if name not in names))


def _activation(info: OpInfo, attrs: Attributes) -> OpInfo:
    return replace(info, gradient=Gradient.OUTPUTS) if attrs.get("act_type") == "relu" else info


def _batch_norm(info: OpInfo, attrs: Attributes) -> OpInfo:
    if not _flag(attrs, "fix_gamma", default=True):
        info = replace(info, hidden_writes=(), pure_at_inference=True)
    if _flag(attrs, "use_global_stats") and info.name != "_contrib_SyncBatchNorm":
        info = replace(info, mode_dependent=False)
    return info


def _fused_norm(info: OpInfo, attrs: Attributes) -> OpInfo:
    found = _batch_norm(info, attrs)
    return found if _flag(attrs, "residual") else _without(found, "residual")


def _bias(info: OpInfo, attrs: Attributes) -> OpInfo:
    default = info.name == "Deconvolution"
    return _without(info, "bias") if _flag(attrs, "no_bias", default) else info


def _ctc_loss(info: OpInfo, attrs: Attributes) -> OpInfo:
    unused = [name for name in info.arguments[2:] if not _flag(attrs, f"use_{name}")]
    return _without(info, *unused)


def _dropout(info: OpInfo, attrs: Attributes) -> OpInfo:
    if attrs.get("mode") == "always":
        return replace(info, mode_dependent=False)
    return replace(info, pure_at_inference=True)


def _leaky_relu(info: OpInfo, attrs: Attributes) -> OpInfo:
    act_type = attrs.get("act_type", "leaky")
    if act_type == "prelu":
        return replace(info, pure=True, random=False, mode_dependent=False)
    info = _without(info, "gamma")
    if act_type == "rrelu":
        return info
    return replace(info, kind=Kind.ELEMENTWISE, pure=True, random=False, mode_dependent=False)


def _rnn(info: OpInfo, attrs: Attributes) -> OpInfo:
    if attrs.get("mode") != "lstm":
        info = _without(info, "state_cell")
    if not _flag(attrs, "use_sequence_length"):
        info = _without(info, "sequence_length")
    if _zero(attrs, "p", 0.0):
        info = replace(info, pure=True, random=False, mode_dependent=False)
    return info


def _sequence(info: OpInfo, attrs: Attributes) -> OpInfo:
    return info if _flag(attrs, "use_sequence_length") else _without(info, "sequence_length")


def _softmax(info: OpInfo, attrs: Attributes) -> OpInfo:
    if _flag(attrs, "use_length"):
        return info
    return replace(_without(info, "length"), gradient=Gradient.OUTPUTS)


def _up_sampling(info: OpInfo, attrs: Attributes) -> OpInfo:
    nearest = attrs.get("sample_type") == "nearest" and str(attrs.get("num_args", 1)) == "1"
    return replace(info, kind=Kind.INJECTIVE) if nearest else info


def _deformable_pooling(info: OpInfo, attrs: Attributes) -> OpInfo:
    return _without(info, "trans") if _flag(attrs, "no_trans") else info


def _resize(info: OpInfo, attrs: Attributes) -> OpInfo:
    return info if attrs.get("mode") == "like" else _without(info, "like")


def _average(info: OpInfo, attrs: Attributes) -> OpInfo:
    return info if _flag(attrs, "weighted", default=True) else _without(info, "weights")


def _percentile(info: OpInfo, attrs: Attributes) -> OpInfo:
    return info if attrs.get("q_scalar") in (None, "None") else _without(info, "q")


RULES: dict[str, Callable[[OpInfo, Attributes], OpInfo]] = {
    "Activation": _activation,
    "BatchNorm": _batch_norm,
    "BatchNorm_v1": _batch_norm,
    "CTCLoss": _ctc_loss,
    "Convolution": _bias,
    "Convolution_v1": _bias,
    "CuDNNBatchNorm": _batch_norm,
    "Deconvolution": _bias,
    "Dropout": _dropout,
    "FullyConnected": _bias,
    "LeakyReLU": _leaky_relu,
    "RNN": _rnn,
    "SequenceLast": _sequence,
    "SequenceMask": _sequence,
    "SequenceReverse": _sequence,
    "UpSampling": _up_sampling,
    "_contrib_BatchNormWithReLU": _batch_norm,
    "_contrib_BilinearResize2D": _resize,
    "_contrib_DeformableConvolution": _bias,
    "_contrib_DeformablePSROIPooling": _deformable_pooling,
    "_contrib_ModulatedDeformableConvolution": _bias,
    "_contrib_SyncBatchNorm": _batch_norm,
    "_npi_average": _average,
    "_npi_percentile": _percentile,
    "graphopt_batch_norm": _fused_norm,
    "softmax": _softmax,
}
