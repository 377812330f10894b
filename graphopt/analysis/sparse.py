"""Which operators make sparse arrays of dense ones: where they do, types do not tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from graphopt.ir.ops import canonical

_SPARSE: Final = ("csr", "row_sparse")
#: Attributes that ask for the storage of a result.
_STORAGE: Final = {"cast_storage": "stype", "dot": "forward_stype"}


def makes_sparse(op: str, attrs: Mapping[str, Any]) -> bool:
    """Whether an operator makes a sparse array of those that it reads, which may be dense."""
    asked = _STORAGE.get(canonical(op))
    return asked is not None and attrs.get(asked) in _SPARSE


def has_sparse_gradient(op: str, attrs: Mapping[str, Any]) -> bool:
    """Whether the gradient of an operator's weight is sparse, though all that it reads is dense."""
    name = canonical(op)
    if name == "Embedding":
        return str(attrs.get("sparse_grad")) in ("True", "true", "1")
    return name == "_contrib_SparseEmbedding"
