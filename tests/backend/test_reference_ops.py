"""What the numpy reference covers and what it refuses; reference_ops/ tests its values."""

import numpy as np
import pytest

from graphopt.backend.reference_ops import UnsupportedOp, evaluate, supported_ops, supports
from graphopt.compat import import_mxnet

mx = import_mxnet()


def case(op, *inputs, **attrs):
    return op, inputs, attrs


def array(*values, dtype="float32"):
    return np.array(values, dtype)


def x(*shape, dtype="float32"):
    return np.ones(shape, dtype)


# The operators of the 35 published symbol files that the project tests with, less box_nms.
PUBLISHED = """
Activation BatchNorm BlockGrad Cast Concat Convolution Crop Deconvolution Dropout Flatten
FullyConnected L2Normalization LeakyReLU LinearRegressionOutput Pooling Reshape SliceChannel
SoftmaxActivation SoftmaxOutput _Plus _arange _contrib_AdaptiveAvgPooling2D _contrib_ROIAlign
_div_scalar _greater_scalar _lesser_scalar _maximum_scalar _minimum_scalar _minus_scalar
_mul_scalar _plus_scalar argsort broadcast_add broadcast_minimum broadcast_mul clip elemwise_add
elemwise_sub exp expand_dims gather_nd ones_like relu repeat reverse shape_array sigmoid
slice_axis slice_like softmax squeeze stack tile transpose where zeros_like
"""


@pytest.mark.parametrize("op", PUBLISHED.split())
def test_published_graphs_are_covered(op):
    assert supports(op)


def test_unknown_operator_is_named():
    assert not supports("_random_uniform")
    with pytest.raises(UnsupportedOp, match="no operator '_random_uniform'"):
        evaluate("_random_uniform", [], {})


@pytest.mark.parametrize(
    ("one", "training", "message"),
    [
        (case("Dropout", x(3), p=0.5), True, "no Dropout in training"),
        (case("Dropout", x(3), mode="always"), False, "no Dropout in training"),
        (case("LeakyReLU", x(3), act_type="rrelu"), True, "act_type='rrelu' in training"),
        (
            case("Convolution", x(1, 4, 4, 3), x(2, 1, 1, 3), kernel=(1, 1), layout="NHWC"),
            False,
            "NHWC",
        ),
        (case("take", x(3), array(1), mode="raise"), False, "mode='raise'"),
        (case("norm", x(3), ord=3), False, "order 3"),
    ],
)
def test_refused_use(one, training, message):
    with pytest.raises(UnsupportedOp, match=message):
        evaluate(*one, training=training)


@pytest.mark.parametrize(
    ("one", "error", "message"),
    [
        (
            case("Reshape", x(2, 3), shape=(-3, -3)),
            ValueError,
            r"reshape of \(2, 3\) to \(-3, -3\)",
        ),
        (case("Reshape", x(2, 3), shape=(4, 2)), ValueError, "has no shape"),
        (case("elemwise_add", x(2, 3), x(3)), ValueError, r"\(2, 3\) and \(3,\)"),
        (case("broadcast_add", x(3), x(3, dtype="int32")), TypeError, "float32, int32"),
        (case("softmax", x(3), axis=1), ValueError, "axis 1, but its input has 1"),
    ],
)
def test_wrong_use(one, error, message):
    with pytest.raises(error, match=message):
        evaluate(*one)


def test_rrelu_outside_training_has_the_middle_slope_and_an_empty_mask():
    data = array(-1.0, 2.0)
    out, mask = evaluate(
        "LeakyReLU", [data], {"act_type": "rrelu", "lower_bound": 0.1, "upper_bound": 0.3}
    )
    np.testing.assert_allclose(out, [-0.2, 2.0], rtol=1e-6)
    assert not mask.any()


def test_names_are_mxnets():
    assert set(supported_ops()) <= set(mx.operator.get_all_registered_operators())
