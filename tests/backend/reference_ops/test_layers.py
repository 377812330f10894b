"""Products, convolutions, pooling and regions against MXNet."""

import numpy as np
import pytest

from graphopt.backend.reference_ops import convolution, detection, matmul, pooling

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


def conv(data, weight, **attrs):
    """A convolution whose kernel and filters follow from the weight, with a bias."""
    kernel, filters = weight[2:], weight[0]
    return case(
        "Convolution", x(*data), x(*weight), x(filters), kernel=kernel, num_filter=filters, **attrs
    )


def deconv(data, weight, groups=1, **attrs):
    """A transposed convolution without a bias."""
    attrs = {"kernel": weight[2:], "num_filter": weight[1] * groups, "num_group": groups, **attrs}
    return case("Deconvolution", x(*data), x(*weight), **attrs)


CASES = [
    case("dot", x(3, 4), x(4, 5)),
    case("dot", x(4, 3), x(5, 4), transpose_a=True, transpose_b=True),
    case("dot", x(2, 3, 4), x(4, 5, 6)),
    case("dot", x(4, 2, 3), x(5, 6, 4), transpose_a=True, transpose_b=True),
    case("dot", x(4), x(4)),
    case("batch_dot", x(2, 3, 4), x(2, 4, 5)),
    case("batch_dot", x(2, 4, 3), x(2, 5, 4), transpose_a=True, transpose_b=True),
    case("FullyConnected", x(3, 2, 4), x(5, 8), x(5), num_hidden=5),
    case("FullyConnected", x(3, 2, 4), x(5, 4), num_hidden=5, flatten=False, no_bias=True),
    case("FullyConnected", x(3, 2, 4), x(5, 4), x(5), num_hidden=5, flatten=False),
    case("_linalg_gemm", x(2, 3, 4), x(2, 4, 5), x(2, 3, 5), alpha=2.0, beta=0.5),
    case("_linalg_gemm2", x(2, 4, 3), x(2, 5, 4), transpose_a=True, transpose_b=True, alpha=0.5),
    case("_linalg_syrk", x(2, 3, 4)),
    case("_linalg_syrk", x(2, 3, 4), transpose=True, alpha=2.0),
    case("_contrib_div_sqrt_dim", x(2, 5)),
    case("_contrib_interleaved_matmul_selfatt_qk", x(5, 2, 24), heads=2),
    case("_contrib_interleaved_matmul_selfatt_valatt", x(5, 2, 24), x(4, 5, 5), heads=2),
    case("_contrib_interleaved_matmul_encdec_qk", x(3, 2, 8), x(5, 2, 16), heads=2),
    case("_contrib_interleaved_matmul_encdec_valatt", x(5, 2, 16), x(4, 3, 5), heads=2),
    conv((2, 3, 9), (4, 3, 3), stride=(2,), pad=(1,)),
    conv((2, 3, 7, 8), (4, 3, 3, 2)),
    conv((2, 4, 7, 8), (6, 2, 3, 3), stride=(2, 1), dilate=(1, 2), pad=(2, 1), num_group=2),
    conv((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), stride=(1, 2, 1), pad=(1, 0, 1)),
    case("Convolution", x(2, 3, 5, 5), x(4, 3, 1, 1), kernel=(1, 1), num_filter=4, no_bias=True),
    deconv((2, 3, 5), (3, 4, 3), stride=(2,), pad=(1,)),
    deconv((2, 3, 4, 5), (3, 2, 3, 4), stride=(2, 3), pad=(1, 0), adj=(1, 2)),
    deconv((2, 4, 4, 5), (4, 3, 4, 4), groups=2, stride=(2, 2), pad=(1, 1)),
    deconv((1, 2, 4, 4), (2, 3, 3, 3), dilate=(2, 2)),
    # In float32 MXNet hands target_shape to oneDNN, which refuses it.
    case(
        "Deconvolution",
        x(1, 2, 4, 4, dtype=F64),
        x(2, 3, 4, 4, dtype=F64),
        kernel=(4, 4),
        stride=(2, 2),
        num_filter=3,
        target_shape=(7, 8),
    ),
    case(
        "Deconvolution",
        x(1, 2, 3, 3),
        x(2, 3, 2, 2),
        x(3),
        kernel=(2, 2),
        num_filter=3,
        no_bias=False,
    ),
    case("im2col", x(2, 3, 5, 6), kernel=(2, 3), stride=(2, 1), pad=(1, 0), dilate=(1, 2)),
    *(
        case("Pooling", x(2, 3, 7, 8), kernel=(3, 2), stride=(2, 2), pool_type=t)
        for t in ("max", "avg", "sum")
    ),
    *(
        case(
            "Pooling", x(2, 3, 7, 8), kernel=(3, 3), stride=(2, 3), pad=(1, 1), pool_type=t, **more
        )
        for t in ("max", "avg", "sum")
        for more in ({}, {"pooling_convention": "full"})
    ),
    *(
        case(
            "Pooling",
            x(2, 3, 6, 8),
            kernel=(3, 3),
            stride=(2, 2),
            pad=(1, 1),
            pool_type="avg",
            **more,
        )
        for more in (
            {"count_include_pad": False},
            {"count_include_pad": False, "pooling_convention": "full"},
        )
    ),
    *(
        case("Pooling", x(2, 3, 5, 4), global_pool=True, pool_type=t, kernel=(1, 1))
        for t in ("max", "avg", "sum")
    ),
    case("Pooling", x(1, 1, 3, 3), kernel=(2, 2), stride=(3, 3), pooling_convention="full"),
    case("Pooling", array([[1, np.nan, 2, 3]])[None], kernel=(1, 2)),
    case("Pooling", x(2, 3, 7), kernel=(3,), pool_type="avg", pad=(1,)),
    case("Pooling", x(1, 2, 4, 5, 6), kernel=(2, 3, 2), pool_type="avg", stride=(2, 1, 2)),
    case("Pooling", x(2, 3, 6, 6, low=0), kernel=(2, 2), pool_type="lp", p_value=2),
    case("Pooling_v1", x(2, 3, 6, 6), kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg"),
    case("Convolution_v1", x(2, 4, 6, 6), x(3, 4, 3, 3), x(3), kernel=(3, 3), num_filter=3),
    case("Pooling", x(2, 6, 6, 3), kernel=(2, 2), pool_type="avg", layout="NHWC"),
    case("_contrib_AdaptiveAvgPooling2D", x(2, 3, 5, 7)),
    case("_contrib_AdaptiveAvgPooling2D", x(2, 3, 5, 7), output_size=3),
    case("_contrib_AdaptiveAvgPooling2D", x(2, 3, 5, 7), output_size=(2, 4)),
    case("UpSampling", x(2, 3, 2, 4), scale=2, sample_type="nearest", num_args=1),
    case("UpSampling", x(2, 3, 4, 4), x(2, 1, 2, 2), scale=2, sample_type="nearest", num_args=2),
    case(
        "UpSampling",
        x(2, 3, 4, 4),
        x(2, 3, 2, 2),
        scale=1,
        sample_type="nearest",
        num_args=2,
        multi_input_mode="sum",
    ),
    case(
        "UpSampling",
        x(2, 3, 4, 4),
        x(3, 1, 4, 4),
        scale=2,
        sample_type="bilinear",
        num_filter=3,
        num_args=2,
    ),
    case(
        "UpSampling",
        x(2, 3, 4, 4),
        x(3, 1, 5, 5),
        scale=3,
        sample_type="bilinear",
        num_filter=3,
        num_args=2,
    ),
    case("_contrib_BilinearResize2D", x(1, 2, 4, 5), height=7, width=3),
    case("_contrib_BilinearResize2D", x(1, 2, 4, 5), height=7, width=9, align_corners=False),
    case("_contrib_BilinearResize2D", x(1, 2, 4, 5), scale_height=2, scale_width=1.5),
    case("_contrib_BilinearResize2D", x(1, 2, 4, 5), x(1, 2, 6, 3), mode="like"),
    case(
        "_contrib_BilinearResize2D", x(1, 2, 4, 5), mode="odd_scale", scale_height=2, scale_width=2
    ),
    *(
        case("_contrib_BilinearResize2D", x(1, 1, 4, 5), mode=f"to_{p}_{w}")
        for p in ("even", "odd")
        for w in ("up", "down")
    ),
    case(
        "ROIPooling",
        x(2, 3, 9, 8),
        array([0, 1, 1, 6, 6], [1, 0, 3, 7, 5]),
        pooled_size=(2, 3),
        spatial_scale=1.0,
    ),
    case(
        "_contrib_ROIAlign",
        x(2, 3, 9, 8),
        array([0, 1, 1, 9, 9], [1, 0, 3, 7, 5]),
        pooled_size=(2, 3),
        spatial_scale=0.7,
        sample_ratio=2,
    ),
    case(
        "_contrib_ROIAlign",
        x(2, 3, 9, 8),
        array([0, 1, 1, 9, 9], [1, 0, 3, 7, 5]),
        pooled_size=(2, 2),
        spatial_scale=0.7,
    ),
    case(
        "_contrib_box_iou", array([0, 0, 2, 2], [1, 1, 3, 4]), array([[1, 1, 2, 3]], [[5, 5, 6, 6]])
    ),
    case(
        "_contrib_box_iou", array([1, 1, 2, 2], [1, 1, 3, 4]), array([1, 1, 2, 3]), format="center"
    ),
]

ALIASES = {
    "linalg_gemm": "_linalg_gemm",
    "linalg_gemm2": "_linalg_gemm2",
    "linalg_syrk": "_linalg_syrk",
}


@pytest.mark.parametrize(("op", "inputs", "attrs"), CASES)
def test_value(agrees, op, inputs, attrs):
    agrees(op, inputs, attrs)


@pytest.mark.parametrize("alias", ALIASES)
def test_alias(agrees, alias):
    _, inputs, attrs = next(one for one in CASES if one[0] == ALIASES[alias])
    agrees(alias, inputs, attrs)


def test_every_name_has_a_case():
    assert set(convolution.TABLE) | set(detection.TABLE) | set(matmul.TABLE) | set(
        pooling.TABLE
    ) == {op for op, _, _ in CASES} | set(ALIASES)
