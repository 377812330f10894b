"""Normalisation, softmax and sequences against MXNet."""

import itertools

import numpy as np
import pytest

from graphopt.backend.reference_ops import evaluate, normalize, rnn, softmax

RNG = np.random.default_rng(7)
F16, F32, F64, I32, I64, U8 = "float16", "float32", "float64", "int32", "int64", "uint8"


def case(op, *inputs, **attrs):
    return op, inputs, attrs


def x(*shape, dtype=F32, low=-2.0, high=2.0):
    """Random numbers in [low, high]."""
    if np.dtype(dtype).kind == "f":
        return RNG.uniform(low, high, shape).astype(dtype)
    return RNG.integers(int(low), int(high) + 1, shape).astype(dtype)


def array(*values, dtype="float32"):
    return np.array(values, dtype)


POSITIVE = {"low": 0.5, "high": 2}
STATISTICS = (x(3), x(3), x(3), x(3, **POSITIVE))
NORMALIZE = [
    case("BatchNorm", x(2, 3, 4, 5), *STATISTICS),
    case("BatchNorm", x(2, 3), *STATISTICS, fix_gamma=False, eps=1e-5),
    case("BatchNorm", x(2, 4, 3), *STATISTICS, fix_gamma=False, axis=-1),
    case("BatchNorm", x(2, 3, 4, 5), *STATISTICS, fix_gamma=False, use_global_stats=True),
    case("BatchNorm", x(2, 3, 4, 5), *STATISTICS, fix_gamma=False, output_mean_var=True),
    case("BatchNorm_v1", x(2, 3, 4, 5), *STATISTICS, fix_gamma=False),
    case("_contrib_BatchNormWithReLU", x(2, 3, 4, 5), *STATISTICS, fix_gamma=False),
    case("_contrib_SyncBatchNorm", x(2, 3, 4, 5), *STATISTICS, fix_gamma=False, key="one", ndev=1),
    case("LayerNorm", x(2, 3, 4), x(4), x(4)),
    case("LayerNorm", x(2, 3, 4), x(3), x(3), axis=1, eps=1e-3, output_mean_var=True),
    case("InstanceNorm", x(2, 3, 4, 5), x(3), x(3), eps=1e-4),
    case("GroupNorm", x(2, 6, 4, 5), x(2), x(2), num_groups=2),
    case("GroupNorm", x(2, 6, 4), x(3), x(3), num_groups=3, output_mean_var=True),
    *(case("L2Normalization", x(2, 3, 4, 5), mode=m) for m in ("instance", "channel", "spatial")),
    case("LRN", x(2, 7, 3, 3), nsize=5, alpha=0.1, knorm=1.5),
    *(case(op, x(2, 3, 4)) for op in ("softmax", "log_softmax", "softmin")),
    *(
        case(op, x(2, 3, 4), axis=1, temperature=2.5)
        for op in ("softmax", "log_softmax", "softmin")
    ),
    case("softmax", x(2, 4), array(2, 4, dtype=I32), use_length=True),
    case("softmax", x(2, 4, 3), array([1, 2, 4], [3, 0, 2], dtype=I32), use_length=True, axis=1),
    case("softmax", x(2, 3, dtype=F64), dtype=F32),
    case("SoftmaxActivation", x(2, 3, 4)),
    case("SoftmaxActivation", x(2, 3, 4), mode="channel"),
    case("SoftmaxOutput", x(4, 3), array(0, 1, 2, 0), grad_scale=0.5),
    case("SoftmaxOutput", x(2, 3, 4), x(2, 4), multi_output=True, use_ignore=True),
    case("SoftmaxOutput", x(2, 3, 4), x(2, 3), preserve_shape=True),
    case("SoftmaxOutput", x(2, 3, 4), x(2, 3)),
    case("softmax_cross_entropy", x(4, 3), array(0, 1, 2, 0)),
    case("LinearRegressionOutput", x(4, 3), x(4, 3)),
    case("LogisticRegressionOutput", x(4, 3), x(4, 3)),
    case("MAERegressionOutput", x(4, 3), x(4, 3)),
    case("SVMOutput", x(4, 3), array(0, 1, 2, 0)),
    case("SequenceMask", x(4, 3, 2), array(1, 4, 0), use_sequence_length=True, value=-1),
    case("SequenceMask", x(3, 4, 2), array(1, 4, 2), use_sequence_length=True, axis=1),
    case("SequenceMask", x(3, 4, 2)),
    case("SequenceLast", x(4, 3, 2), array(1, 4, 2), use_sequence_length=True),
    case("SequenceLast", x(3, 4, 2), array(1, 4, 2), use_sequence_length=True, axis=1),
    case("SequenceLast", x(4, 3, 2)),
    case("SequenceReverse", x(4, 3, 2), array(1, 4, 2), use_sequence_length=True),
    case("SequenceReverse", x(4, 3, 2)),
]
IN_TRAINING = [
    case("BatchNorm", x(4, 3, 4, 5), *STATISTICS, fix_gamma=False, eps=1e-4),
    case("BatchNorm", x(4, 3, 4, 5), *STATISTICS, fix_gamma=False, output_mean_var=True),
    case("BatchNorm", x(4, 3, 4, 5), *STATISTICS, fix_gamma=False, use_global_stats=True),
    case("BatchNorm", x(4, 2, 3), *STATISTICS, axis=2),
    case("LayerNorm", x(2, 3, 4), x(4), x(4)),
    case("LeakyReLU", x(2, 3, 4), act_type="leaky"),
]


def recurrent(mode, layers=1, directions=1, state_outputs=True, projection=None):
    """The RNN operator on 5 steps of 2 sequences, 3 inputs, 4 units."""
    steps, batch, width, hidden = 5, 2, 3, 4
    state = projection or hidden
    rows = {"lstm": 4, "gru": 3}.get(mode, 1) * hidden
    size = 0
    for layer in range(layers):
        inputs = width if layer == 0 else state * directions
        size += directions * (rows * (inputs + state + 2) + (projection or 0) * hidden)
    states = [x(layers * directions, batch, state)]
    if mode == "lstm":
        states.append(x(layers * directions, batch, hidden))
    attrs = {
        "mode": mode,
        "state_size": hidden,
        "num_layers": layers,
        "state_outputs": state_outputs,
    }
    attrs |= {"bidirectional": directions == 2}
    attrs |= {"projection_size": projection} if projection else {}
    return case("RNN", x(steps, batch, width), x(size, low=-1, high=1), *states, **attrs)


RECURRENT = [
    *(
        recurrent(*v)
        for v in itertools.product(("lstm", "gru", "rnn_tanh", "rnn_relu"), (1, 2), (1, 2))
    ),
    recurrent("lstm", state_outputs=False),
    recurrent("gru", state_outputs=False),
    recurrent("lstm", layers=2, projection=2),
]

CASES = [*NORMALIZE, *RECURRENT]

ALIASES = {
    "Softmax": "SoftmaxOutput",
}


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_value(agrees, op, inputs, attrs):
    agrees(op, inputs, attrs)


@pytest.mark.parametrize(("op", "inputs", "attrs"), IN_TRAINING)
def test_value_in_training(agrees, op, inputs, attrs):
    agrees(op, inputs, attrs, training=True)


@pytest.mark.parametrize("alias", ALIASES)
def test_alias(agrees, alias):
    _, inputs, attrs = next(one for one in CASES if one[0] == ALIASES[alias])
    agrees(alias, inputs, attrs)


def test_every_name_has_a_case():
    assert set(normalize.TABLE) | set(rnn.TABLE) | set(softmax.TABLE) == {
        op for op, _, _ in CASES
    } | set(ALIASES)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_rnn_of_different_lengths_equals_each_sequence_alone(mode):
    # MXNet has sequence lengths on GPUs only, so each sequence is run by itself.
    _, inputs, attrs = recurrent(mode, layers=2, directions=2)
    lengths = array(3, 5, dtype=I32)
    data, parameters, *states = inputs
    together = evaluate("RNN", [*inputs, lengths], {**attrs, "use_sequence_length": True})
    for i, length in enumerate(lengths):
        single = [data[:length, i : i + 1], parameters, *(s[:, i : i + 1] for s in states)]
        alone = evaluate("RNN", single, attrs)
        np.testing.assert_allclose(together[0][:length, i : i + 1], alone[0], rtol=1e-6)
        assert not together[0][length:, i].any()
        for both, own in zip(together[1:], alone[1:], strict=True):
            np.testing.assert_allclose(both[:, i : i + 1], own, rtol=1e-6)
