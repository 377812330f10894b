"""What passes may assume about MXNet's operators.

`info` answers with an `OpInfo`. The facts are MXNet 1.9.1's; tests/ir/test_ops.py compares them
with MXNet itself: names, arguments, auxiliary states, gradients, and results on random data.
"""

from graphopt.ir.ops.facts import Gradient, Kind, OpInfo
from graphopt.ir.ops.table import canonical, info, is_known, names

__all__ = ["Gradient", "Kind", "OpInfo", "canonical", "info", "is_known", "names"]
