"""The ``_np_``, ``_npi_`` and ``_npx_`` operators behind ``mx.np`` and ``mx.npx``."""

from __future__ import annotations

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo, family

_UNARY = OpInfo("", Kind.ELEMENTWISE, pure=True, inplace=((0, 0),), arguments=("x",))
_SCALAR = OpInfo("", Kind.ELEMENTWISE, pure=True, arguments=("data",))
_BINARY = OpInfo("", Kind.BROADCAST, pure=True, inplace=((0, 0), (1, 0)), arguments=("lhs", "rhs"))
_REDUCE = OpInfo("", Kind.REDUCTION, pure=True, arguments=("a",))
_MOVE = OpInfo("", Kind.INJECTIVE, pure=True, gradient=Gradient.NEITHER, arguments=("data",))
_ANCHOR = OpInfo("", Kind.ANCHOR, pure=True, arguments=("A",))
_SEARCH = OpInfo("", Kind.OPAQUE, pure=True, gradient=Gradient.NONE)

UNARY = (
    *family(
        """_npi_absolute _npi_arccos _npi_arccosh _npi_arcsin _npi_arcsinh _npi_arctan _npi_arctanh
        _npi_cos _npi_cosh _npi_degrees _npi_expm1 _npi_log _npi_log10 _npi_log1p _npi_log2
        _npi_radians _npi_reciprocal _npi_sign _npi_sin _npi_sinh _npi_square""",
        _UNARY,
        gradient=Gradient.INPUTS,
    ),
    *family("_npi_nan_to_num", _UNARY, gradient=Gradient.INPUTS, arguments=("data",)),
    *family("_npi_cbrt _npi_exp _npi_sqrt _npi_tan _npi_tanh", _UNARY, gradient=Gradient.OUTPUTS),
    *family("_npx_relu _npx_sigmoid", _UNARY, gradient=Gradient.OUTPUTS, arguments=("data",)),
    *family("_npi_negative", _UNARY, gradient=Gradient.NEITHER),
    *family("_np_copy", _UNARY, gradient=Gradient.NEITHER, view=True, arguments=("a",)),
    *family(
        """_npi_around _npi_ceil _npi_fix _npi_floor _npi_isfinite _npi_isinf _npi_isnan
        _npi_isneginf _npi_isposinf _npi_logical_not _npi_rint _npi_trunc""",
        _UNARY,
        gradient=Gradient.NONE,
    ),
    *family("_npi_bitwise_not", _UNARY, gradient=Gradient.NONE, inplace=()),
    *family("_npi_full_like", _UNARY, gradient=Gradient.NONE, inplace=(), arguments=("a",)),
)

SCALAR = (
    *family(
        "_npi_add_scalar _npi_subtract_scalar _npi_rsubtract_scalar _npi_multiply_scalar",
        _SCALAR,
        gradient=Gradient.NEITHER,
    ),
    *family("_npi_true_divide_scalar", _SCALAR, gradient=Gradient.NEITHER, inplace=((0, 0),)),
    *family("_npi_rtrue_divide_scalar", _SCALAR, gradient=Gradient.INPUTS, inplace=((0, 0),)),
    *family("_npi_rpower_scalar", _SCALAR, gradient=Gradient.OUTPUTS),
    *family(
        """_npi_mod_scalar _npi_rmod_scalar _npi_power_scalar _npi_arctan2_scalar
        _npi_rarctan2_scalar _npi_copysign_scalar _npi_rcopysign_scalar _npi_ldexp_scalar
        _npi_rldexp_scalar""",
        _SCALAR,
        gradient=Gradient.INPUTS,
    ),
    *family(
        """_npi_equal_scalar _npi_not_equal_scalar _npi_greater_scalar _npi_greater_equal_scalar
        _npi_less_scalar _npi_less_equal_scalar _npi_bitwise_and_scalar _npi_bitwise_or_scalar
        _npi_bitwise_xor_scalar _npi_lcm_scalar""",
        _SCALAR,
        gradient=Gradient.NONE,
        inplace=((0, 0),),
    ),
)

BINARY = (
    *family("_npi_add _npi_multiply", _BINARY, gradient=Gradient.INPUTS, commutative=True),
    *family(
        """_npi_subtract _npi_true_divide _npi_mod _npi_power _npi_copysign _npi_ldexp""",
        _BINARY,
        gradient=Gradient.INPUTS,
    ),
    *family(
        "_npi_hypot", _BINARY, gradient=Gradient.INPUTS, commutative=True, arguments=("x1", "x2")
    ),
    *family(
        "_npi_arctan2",
        _BINARY,
        gradient=Gradient.INPUTS,
        inplace=((0, 0),),
        arguments=("x1", "x2"),
    ),
    *family(
        "_npi_equal _npi_not_equal _npi_bitwise_and _npi_bitwise_or _npi_bitwise_xor _npi_lcm",
        _BINARY,
        gradient=Gradient.NONE,
        commutative=True,
    ),
    *family(
        "_npi_greater _npi_greater_equal _npi_less _npi_less_equal",
        _BINARY,
        gradient=Gradient.NONE,
    ),
    *family(
        "_npi_where",
        _BINARY,
        gradient=Gradient.INPUTS,
        inplace=((1, 0), (2, 0)),
        arguments=("condition", "x", "y"),
    ),
    *family(
        "_npi_where_lscalar",
        _BINARY,
        gradient=Gradient.INPUTS,
        inplace=((1, 0),),
        arguments=("condition", "x"),
    ),
    *family(
        "_npi_where_rscalar",
        _BINARY,
        gradient=Gradient.INPUTS,
        inplace=((1, 0),),
        arguments=("condition", "y"),
    ),
    *family("_npi_where_scalar2", _SCALAR, gradient=Gradient.NONE, arguments=("condition",)),
    *family(
        "_npi_broadcast_to", _BINARY, gradient=Gradient.NEITHER, inplace=(), arguments=("array",)
    ),
)

REDUCTIONS = (
    *family("_np_sum _npi_mean", _REDUCE, gradient=Gradient.NEITHER),
    *family("_np_max _np_min _np_prod", _REDUCE, gradient=Gradient.BOTH),
    *family("_npi_std _npi_var", _REDUCE, gradient=Gradient.NONE),
    *family("_npi_average", _REDUCE, arguments=("a", "weights")),
    *family("_npi_norm", _REDUCE, arguments=("data",)),
    *family("_np_trace", _REDUCE, gradient=Gradient.NEITHER, arguments=("data",)),
    *family(
        "_np_all _np_any _npi_argmax _npi_argmin",
        _REDUCE,
        gradient=Gradient.NONE,
        arguments=("data",),
    ),
    *family("_npi_percentile", _REDUCE, gradient=Gradient.NONE, arguments=("a", "q")),
)

SHAPE = (
    *family("_np_reshape _npx_reshape", _MOVE, view=True, inplace=((0, 0),), arguments=("a",)),
    *family("_np_squeeze", _MOVE, view=True, arguments=("a",)),
    *family("_np_moveaxis _np_transpose _npi_diff", _MOVE, arguments=("a",)),
    *family(
        """_np_diag _np_diagflat _np_diagonal _np_roll _npi_dsplit _npi_hsplit _npi_flip _npi_rot90
        _npi_tril""",
        _MOVE,
    ),
    *family(
        "_npi_column_stack _npi_concatenate _npi_dstack _npi_hstack _npi_stack _npi_vstack",
        _MOVE,
        arguments=(),
    ),
    *family(
        "_np_atleast_1d _np_atleast_2d _np_atleast_3d", _MOVE, gradient=Gradient.NONE, arguments=()
    ),
    *family("_npi_diag_indices_from", _MOVE, gradient=Gradient.NONE),
    *family(
        "_npi_ediff1d", _MOVE, gradient=Gradient.INPUTS, arguments=("input1", "input2", "input3")
    ),
    # Some of its modes fill with a maximum or a minimum, which is no index arithmetic.
    *family("_npi_pad", _MOVE, kind=Kind.OPAQUE),
    *family("_np_cumsum", _MOVE, kind=Kind.OPAQUE, inplace=((0, 0),), arguments=("a",)),
    *family(
        """_npi_arange _npi_blackman _npi_eye _npi_hamming _npi_hanning _npi_identity _npi_indices
        _npi_logspace _npi_ones _npi_zeros""",
        _MOVE,
        gradient=Gradient.NONE,
        arguments=(),
    ),
)

PRODUCTS = (
    *family(
        "_np_dot _npi_matmul _npi_tensordot _npi_tensordot_int_axes",
        _ANCHOR,
        gradient=Gradient.INPUTS,
        arguments=("a", "b"),
    ),
    *family("_npi_einsum", _ANCHOR, gradient=Gradient.INPUTS, arguments=()),
    *family("_npi_polyval", _ANCHOR, gradient=Gradient.INPUTS, arguments=("p", "x")),
    *family("_npi_solve", _ANCHOR, arguments=("A", "B")),
    *family("_npi_tensorsolve", _ANCHOR, arguments=("a", "b")),
    *family("_npi_tensorinv", _ANCHOR, gradient=Gradient.OUTPUTS, arguments=("a",)),
    *family("_npi_cholesky", _ANCHOR, gradient=Gradient.OUTPUTS, inplace=((0, 0),)),
    *family("_npi_svd", _ANCHOR, gradient=Gradient.OUTPUTS),
    *family(
        "_npi_eig _npi_eigh _npi_eigvals _npi_eigvalsh _npi_pinv_scalar_rcond",
        _ANCHOR,
        gradient=Gradient.NONE,
    ),
    *family("_npi_pinv", _ANCHOR, gradient=Gradient.NONE, arguments=("A", "rcond")),
)

# The shape of these outputs depends on the values of the inputs.
SEARCHES = (
    *family("_npi_unique", _SEARCH, arguments=("data",)),
    *family("_npx_nonzero", _SEARCH, arguments=("x",)),
    *family("_npi_bincount", _SEARCH, arguments=("data", "weights")),
    *family("_npi_delete", _SEARCH, arguments=("arr", "obj")),
)

OPERATORS = (*UNARY, *SCALAR, *BINARY, *REDUCTIONS, *SHAPE, *PRODUCTS, *SEARCHES)
