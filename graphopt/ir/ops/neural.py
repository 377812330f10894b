"""Layers, normalisations, losses and matrix products."""

from __future__ import annotations

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo, family

_ANCHOR = OpInfo("", Kind.ANCHOR, pure=True, gradient=Gradient.BOTH, arguments=("data",))
_LOSS = OpInfo(
    "",
    Kind.ELEMENTWISE,
    pure=True,
    gradient=Gradient.BOTH,
    loss=True,
    inplace=((0, 0),),
    arguments=("data", "label"),
)
_NORM = OpInfo("", Kind.ANCHOR, pure=True, arguments=("data", "gamma", "beta"))
_BATCH_NORM = OpInfo(
    "",
    Kind.ANCHOR,
    pure=False,
    mutates=(3, 4),
    hidden_writes=(1,),
    mode_dependent=True,
    arguments=("data", "gamma", "beta", "moving_mean", "moving_var"),
)

LAYERS = (
    *family(
        "Convolution Convolution_v1 Deconvolution FullyConnected",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        arguments=("data", "weight", "bias"),
    ),
    *family(
        "_contrib_DeformableConvolution",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        arguments=("data", "offset", "weight", "bias"),
    ),
    *family(
        "_contrib_ModulatedDeformableConvolution",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        arguments=("data", "offset", "mask", "weight", "bias"),
    ),
    *family("Pooling Pooling_v1", _ANCHOR),
    *family(
        "_contrib_AdaptiveAvgPooling2D",
        _ANCHOR,
        gradient=Gradient.NEITHER,
    ),
    *family(
        "_contrib_BilinearResize2D",
        _ANCHOR,
        gradient=Gradient.NEITHER,
        arguments=("data", "like"),
    ),
    *family("UpSampling", _ANCHOR, gradient=Gradient.INPUTS, arguments=()),
    *family("softmax", _ANCHOR, inplace=((0, 0),), arguments=("data", "length")),
    *family(
        "log_softmax softmin SoftmaxActivation",
        _ANCHOR,
        gradient=Gradient.OUTPUTS,
        inplace=((0, 0),),
    ),
    *family(
        "Embedding _contrib_SparseEmbedding",
        _ANCHOR,
        kind=Kind.INJECTIVE,
        gradient=Gradient.INPUTS,
        arguments=("data", "weight"),
    ),
    # In training `rrelu` draws slopes; every other act_type is pure.
    *family(
        "LeakyReLU",
        _ANCHOR,
        pure=False,
        random=True,
        mode_dependent=True,
        pure_at_inference=True,
        inplace=((0, 0),),
        arguments=("data", "gamma"),
    ),
    *family(
        "Dropout",
        _ANCHOR,
        kind=Kind.ELEMENTWISE,
        pure=False,
        random=True,
        mode_dependent=True,
        gradient=Gradient.OUTPUTS,
        inplace=((0, 0),),
    ),
    *family(
        "RNN",
        _ANCHOR,
        pure=False,
        random=True,
        mode_dependent=True,
        pure_at_inference=True,
        arguments=("data", "parameters", "state", "state_cell", "sequence_length"),
    ),
)

NORMALISATIONS = (
    *family(
        "BatchNorm BatchNorm_v1 CuDNNBatchNorm _contrib_BatchNormWithReLU _contrib_SyncBatchNorm",
        _BATCH_NORM,
    ),
    *family("LayerNorm GroupNorm", _NORM, inplace=((0, 0),)),
    *family("InstanceNorm", _NORM),
    *family("L2Normalization LRN", _NORM, arguments=("data",)),
)

LOSSES = (
    *family(
        "LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput SVMOutput",
        _LOSS,
        # The label may have one dimension less than the data.
        kind=Kind.OPAQUE,
    ),
    # Its attribute out_grad promises to use the head gradient; MXNet 1.9.1 does not pass it on.
    *family("SoftmaxOutput", _LOSS, kind=Kind.ANCHOR),
    *family(
        "MakeLoss",
        _LOSS,
        gradient=Gradient.INPUTS,
        view=True,
        arguments=("data",),
    ),
    *family(
        "CTCLoss",
        _ANCHOR,
        gradient=Gradient.OUTPUTS,
        arguments=("data", "label", "data_lengths", "label_lengths"),
    ),
    # Computes the identity, but backward adds a penalty and moves the running mean.
    *family(
        "IdentityAttachKLSparseReg",
        mutates=(1,),
        pure_at_inference=True,
        arguments=("data", "moving_avg"),
    ),
)

PRODUCTS = (
    *family("dot batch_dot", _ANCHOR, gradient=Gradient.INPUTS, arguments=("lhs", "rhs")),
    *family("khatri_rao", _ANCHOR, gradient=Gradient.NONE, arguments=()),
    *family(
        "_linalg_gemm",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        inplace=((2, 0),),
        arguments=("A", "B", "C"),
    ),
    *family("_linalg_gemm2", _ANCHOR, gradient=Gradient.INPUTS, arguments=("A", "B")),
    *family("_linalg_syrk", _ANCHOR, gradient=Gradient.INPUTS, arguments=("A",)),
    *family(
        "_linalg_trmm", _ANCHOR, gradient=Gradient.INPUTS, inplace=((1, 0),), arguments=("A", "B")
    ),
    *family("_linalg_trsm", _ANCHOR, inplace=((1, 0),), arguments=("A", "B")),
    *family(
        "_linalg_potrf _linalg_inverse",
        _ANCHOR,
        gradient=Gradient.OUTPUTS,
        inplace=((0, 0),),
        arguments=("A",),
    ),
    *family("_linalg_potri", _ANCHOR, inplace=((0, 0),), arguments=("A",)),
    *family(
        "_linalg_gelqf _linalg_syevd _linalg_det _linalg_slogdet",
        _ANCHOR,
        gradient=Gradient.OUTPUTS,
        arguments=("A",),
    ),
    *family(
        "_linalg_sumlogdiag",
        _ANCHOR,
        kind=Kind.REDUCTION,
        gradient=Gradient.INPUTS,
        arguments=("A",),
    ),
    *family(
        "_linalg_extractdiag _linalg_extracttrian _linalg_makediag _linalg_maketrian",
        _ANCHOR,
        kind=Kind.INJECTIVE,
        gradient=Gradient.NEITHER,
        arguments=("A",),
    ),
    *family(
        "_contrib_interleaved_matmul_selfatt_qk",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        arguments=("queries_keys_values",),
    ),
    *family(
        "_contrib_interleaved_matmul_selfatt_valatt",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        arguments=("queries_keys_values", "attention"),
    ),
    *family(
        "_contrib_interleaved_matmul_encdec_qk",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        arguments=("queries", "keys_values"),
    ),
    *family(
        "_contrib_interleaved_matmul_encdec_valatt",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        arguments=("keys_values", "attention"),
    ),
)

OPERATORS = (*LAYERS, *NORMALISATIONS, *LOSSES, *PRODUCTS)
