"""What passes may assume about MXNet's operators.

`info` answers with an `OpInfo`. The facts are MXNet 1.9.1's; tests compare them with MXNet itself:
tests/ir/test_ops_registry.py names, arguments, auxiliary states and gradients, and
tests/ir/test_ops_behaviour.py results on random data.
"""

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo
from graphopt.ir.ops.table import canonical, info, is_known, names

__all__ = ["Gradient", "Kind", "OpInfo", "canonical", "info", "is_known", "names"]
