"""Operators whose slope may be infinite, or no number, at the edge of what they are defined for.

There a head gradient of zero gives NaN, where no head gradient gives nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphopt.ir.ops import canonical

#: Products too: MXNet divides by what is multiplied.
_NAMES: Final = """
    sqrt rsqrt cbrt rcbrt reciprocal log log2 log10 log1p arccos arcsin arccosh arctanh erfinv
    gamma gammaln norm prod nanprod elemwise_div broadcast_div _scatter_elemwise_div
    _rdiv_scalar _power broadcast_power _mod broadcast_mod _rmod_scalar _hypot broadcast_hypot
    _hypot_scalar _linalg_det _linalg_gelqf _linalg_inverse _linalg_potrf _linalg_potri
    _linalg_slogdet _linalg_sumlogdiag _linalg_syevd _linalg_trsm _npi_sqrt _npi_cbrt
    _npi_reciprocal _npi_log _npi_log2 _npi_log10 _npi_log1p _npi_arccos _npi_arcsin
    _npi_arccosh _npi_arctanh _npi_norm _np_prod _npi_average _npi_true_divide
    _npi_rtrue_divide_scalar _npi_power _npi_mod _npi_rmod_scalar _npi_hypot _npi_arctan2
    _npi_cholesky _npi_eigh _npi_eigvalsh _npi_pinv _npi_pinv_scalar_rcond _npi_solve _npi_svd
    _npi_tensorinv _npi_tensorsolve
"""
_STEEP: Final = frozenset(_NAMES.split())
_POWERS: Final = ("_power_scalar", "_npi_power_scalar")


def may_be_steep(op: str, attrs: Mapping[str, object]) -> bool:
    """Whether it is one; of powers those below the first, whose slopes are infinite at zero."""
    name = canonical(op)
    if name in _POWERS:
        return float(str(attrs.get("scalar", 1))) < 1
    return name in _STEEP
