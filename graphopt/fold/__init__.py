"""mxnet-fold's API on graphopt's dynamic batching: code written for mxnet-fold runs unchanged.

Calls are recorded by hand, ``fold.record(0, layer, x)``, and made when ``fold([[node, ...]])`` asks
for results. A node is what its operator returns for its own arguments; how calls are joined is up
to ``graphopt.batching``, which never joins what would change a result.

Source: Looks et al., Deep Learning with Dynamic Computation Graphs (TensorFlow Fold), ICLR 2017;
the API is that of mxnet-fold (github.com/szha/mxnet-fold, 2017). None of its code is used.
"""

from graphopt.fold.folding import Fold
from graphopt.fold.nodes import Node
from graphopt.fold.unrolling import fold_unroll

__all__ = ["Fold", "Node", "fold_unroll"]
