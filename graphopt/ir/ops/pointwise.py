"""Pointwise arithmetic and logic of ``mx.nd``, and what creates an array element by element."""

from __future__ import annotations

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo, family

_UNARY = OpInfo("", Kind.ELEMENTWISE, pure=True, inplace=((0, 0),), arguments=("data",))
_BINARY = OpInfo(
    "", Kind.ELEMENTWISE, pure=True, inplace=((0, 0), (1, 0)), arguments=("lhs", "rhs")
)
_BROADCAST = OpInfo(
    "", Kind.BROADCAST, pure=True, inplace=((0, 0), (1, 0)), arguments=("lhs", "rhs")
)

UNARY = (
    *family(
        """abs arccos arccosh arcsin arcsinh arctan arctanh cos cosh degrees erf expm1 gamma gammaln
        hard_sigmoid log log10 log1p log2 radians rcbrt reciprocal rsqrt sign sin sinh softsign
        square smooth_l1 _contrib_quadratic""",
        _UNARY,
        gradient=Gradient.INPUTS,
    ),
    *family("clip", _UNARY, gradient=Gradient.INPUTS, inplace=()),
    *family(
        "cbrt erfinv exp relu sigmoid sqrt tan tanh",
        _UNARY,
        gradient=Gradient.OUTPUTS,
    ),
    *family("Activation", _UNARY, gradient=Gradient.BOTH),
    *family("ceil fix floor logical_not rint round trunc", _UNARY, gradient=Gradient.NONE),
    *family("ones_like zeros_like", _UNARY, gradient=Gradient.NONE, inplace=()),
    *family(
        """negative Cast amp_cast _contrib_div_sqrt_dim _contrib_gradientmultiplier
        _contrib_round_ste _contrib_sign_ste""",
        _UNARY,
        gradient=Gradient.NEITHER,
    ),
    *family("_copy", _UNARY, gradient=Gradient.NEITHER, view=True),
    *family("BlockGrad", _UNARY, gradient=Gradient.NONE, view=True, stops_gradient=True),
    *family("make_loss", _UNARY, gradient=Gradient.NEITHER, view=True, loss=True),
)

SCALAR = (
    *family(
        """_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _scatter_plus_scalar
        _scatter_minus_scalar""",
        _UNARY,
        gradient=Gradient.NEITHER,
    ),
    *family(
        """_rdiv_scalar _mod_scalar _rmod_scalar _power_scalar _hypot_scalar _maximum_scalar
        _minimum_scalar""",
        _UNARY,
        gradient=Gradient.INPUTS,
    ),
    *family("_rpower_scalar", _UNARY, gradient=Gradient.OUTPUTS),
    *family(
        """_equal_scalar _not_equal_scalar _greater_scalar _greater_equal_scalar _lesser_scalar
        _lesser_equal_scalar _logical_and_scalar _logical_or_scalar _logical_xor_scalar""",
        _UNARY,
        gradient=Gradient.NONE,
    ),
)

BINARY = (
    *family("elemwise_add", _BINARY, gradient=Gradient.NEITHER, commutative=True),
    *family("elemwise_sub", _BINARY, gradient=Gradient.NEITHER),
    *family(
        "elemwise_mul _maximum _minimum _hypot", _BINARY, gradient=Gradient.INPUTS, commutative=True
    ),
    *family("elemwise_div _mod _power _scatter_elemwise_div", _BINARY, gradient=Gradient.INPUTS),
    *family(
        "_grad_add _equal _not_equal _logical_and _logical_or _logical_xor",
        _BINARY,
        gradient=Gradient.NONE,
        commutative=True,
    ),
    *family("_greater _greater_equal _lesser _lesser_equal", _BINARY, gradient=Gradient.NONE),
    *family(
        "_identity_with_attr_like_rhs",
        _BINARY,
        gradient=Gradient.NEITHER,
        inplace=((0, 0),),
        view=True,
    ),
    # Not commutative: with three inputs and more the order of the sum shows in the last bits.
    *family("add_n", _UNARY, gradient=Gradient.NEITHER, arguments=()),
)

BROADCAST = (
    *family("broadcast_add", _BROADCAST, gradient=Gradient.NEITHER, commutative=True),
    *family("broadcast_sub", _BROADCAST, gradient=Gradient.NEITHER),
    *family(
        "broadcast_mul broadcast_maximum broadcast_minimum broadcast_hypot",
        _BROADCAST,
        gradient=Gradient.INPUTS,
        commutative=True,
    ),
    *family("broadcast_div broadcast_mod broadcast_power", _BROADCAST, gradient=Gradient.INPUTS),
    *family(
        """broadcast_equal broadcast_not_equal broadcast_logical_and broadcast_logical_or
        broadcast_logical_xor""",
        _BROADCAST,
        gradient=Gradient.NONE,
        commutative=True,
    ),
    *family(
        "broadcast_greater broadcast_greater_equal broadcast_lesser broadcast_lesser_equal",
        _BROADCAST,
        gradient=Gradient.NONE,
    ),
    *family(
        "broadcast_to broadcast_axis",
        _BROADCAST,
        gradient=Gradient.NEITHER,
        inplace=(),
        arguments=("data",),
    ),
    *family("broadcast_like", _BROADCAST, gradient=Gradient.NEITHER, inplace=()),
)

CREATION = family(
    "_arange _eye _full _linspace _ones _zeros _zeros_without_dtype",
    kind=Kind.INJECTIVE,
    pure=True,
    gradient=Gradient.NONE,
)

OPERATORS = (*UNARY, *SCALAR, *BINARY, *BROADCAST, *CREATION)
