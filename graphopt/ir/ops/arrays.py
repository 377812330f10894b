"""Shape, indexing, ordering and reduction operators of ``mx.nd``."""

from __future__ import annotations

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo, family

_MOVE = OpInfo("", Kind.INJECTIVE, pure=True, gradient=Gradient.NEITHER, arguments=("data",))
_REDUCE = OpInfo("", Kind.REDUCTION, pure=True, arguments=("data",))
_SEARCH = OpInfo("", Kind.OPAQUE, pure=True, arguments=("data",))

SHAPE = (
    *family("Reshape Flatten expand_dims", _MOVE, view=True, inplace=((0, 0),)),
    *family("squeeze", _MOVE, view=True),
    *family("reshape_like", _MOVE, view=True, inplace=((0, 0),), arguments=("lhs", "rhs")),
    *family(
        """Pad SliceChannel SwapAxis _split_v2 depth_to_space diag im2col repeat reverse slice
        slice_axis space_to_depth tile transpose""",
        _MOVE,
    ),
    *family("slice_like", _MOVE, arguments=("data", "shape_like")),
    *family("stack Crop", _MOVE, arguments=()),
    *family("Concat _rnn_param_concat", _MOVE, arguments=(), gradient=Gradient.INPUTS),
    *family("amp_multicast", _MOVE, arguments=()),
    *family(
        "_slice_assign", _MOVE, arguments=("lhs", "rhs"), inplace=((0, 0),), gradient=Gradient.NONE
    ),
    *family("_slice_assign_scalar", _MOVE, inplace=((0, 0),), gradient=Gradient.NONE),
    *family(
        "shape_array size_array _contrib_arange_like _contrib_index_array _ravel_multi_index "
        "_unravel_index",
        _MOVE,
        gradient=Gradient.NONE,
    ),
    # Several columns are added into one place of the image, which no index arithmetic describes.
    *family("col2im", _MOVE, kind=Kind.ANCHOR),
)

INDEXING = (
    *family("take", _MOVE, gradient=Gradient.INPUTS, arguments=("a", "indices")),
    *family("batch_take", _MOVE, gradient=Gradient.NONE, arguments=("a", "indices")),
    *family("gather_nd", _MOVE, gradient=Gradient.INPUTS, arguments=("data", "indices")),
    *family("pick", _MOVE, gradient=Gradient.INPUTS, arguments=("data", "index")),
    *family("one_hot", _MOVE, gradient=Gradient.NONE, arguments=("indices",)),
    # Not BROADCAST: a condition of one dimension chooses rows, which numpy's rule would not do.
    *family("where", _MOVE, gradient=Gradient.INPUTS, arguments=("condition", "x", "y")),
    *family(
        "SequenceMask",
        _MOVE,
        gradient=Gradient.INPUTS,
        inplace=((0, 0),),
        arguments=("data", "sequence_length"),
    ),
    *family(
        "SequenceLast SequenceReverse",
        _MOVE,
        gradient=Gradient.INPUTS,
        arguments=("data", "sequence_length"),
    ),
    *family(
        "_contrib_boolean_mask",
        _SEARCH,
        gradient=Gradient.INPUTS,
        arguments=("data", "index"),
    ),
)

REDUCTIONS = (
    *family("sum mean", _REDUCE, gradient=Gradient.NEITHER),
    *family("max min prod nansum nanprod norm moments", _REDUCE, gradient=Gradient.BOTH),
    *family("argmax argmin argmax_channel", _REDUCE, gradient=Gradient.NONE),
    *family("_contrib_allclose", _REDUCE, gradient=Gradient.NONE, arguments=("a", "b")),
    *family(
        "softmax_cross_entropy",
        _REDUCE,
        gradient=Gradient.INPUTS,
        arguments=("data", "label"),
    ),
)

ORDERING = (
    *family("sort topk", _SEARCH, gradient=Gradient.OUTPUTS),
    *family("argsort", _SEARCH, gradient=Gradient.NONE),
    *family("_histogram", _SEARCH, gradient=Gradient.NONE, arguments=("data", "bins")),
)

SPARSE = (
    *family("cast_storage", _SEARCH, gradient=Gradient.NEITHER),
    *family("_square_sum", _SEARCH, gradient=Gradient.INPUTS),
    *family("_sparse_retain", _SEARCH, gradient=Gradient.INPUTS, arguments=("data", "indices")),
)

OPERATORS = (*SHAPE, *INDEXING, *REDUCTIONS, *ORDERING, *SPARSE)
