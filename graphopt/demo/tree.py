"""A child-sum Tree-LSTM that walks one tree at a time, in Python."""

from __future__ import annotations

from typing import Any

from graphopt.compat import import_mxnet
from graphopt.demo.data import Tree

mx = import_mxnet()
nn = mx.gluon.nn
Block: Any = mx.gluon.Block


class TreeLSTM(Block):
    """Scores ``(1, outputs)`` of one sentence: words ``(1, n)`` and their dependency tree."""

    def __init__(self, words: int, width: int, hidden: int, outputs: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(words, width, prefix="embed_")
            self.gates_x = nn.Dense(3 * hidden, in_units=width, prefix="gates_x_")
            self.gates_h = nn.Dense(3 * hidden, in_units=hidden, use_bias=False, prefix="gates_h_")
            self.forget_x = nn.Dense(hidden, in_units=width, prefix="forget_x_")
            self.forget_h = nn.Dense(hidden, in_units=hidden, use_bias=False, prefix="forget_h_")
            self.score = nn.Dense(outputs, in_units=hidden, prefix="score_")

    def forward(self, words: Any, tree: Tree) -> Any:
        """Score what the root's hidden state says."""
        hidden, _ = self._visit(self.embed(words), tree.children, tree.root)
        return self.score(hidden)

    def _visit(self, x: Any, children: tuple[tuple[int, ...], ...], word: int) -> tuple[Any, Any]:
        """Hidden and cell state of a word, those of the words below it first."""
        below = [self._visit(x, children, child) for child in children[word]]
        row = mx.nd.slice_axis(x, axis=1, begin=word, end=word + 1).reshape((0, -1))
        gates = self.gates_x(row)
        if below:
            gates = gates + self.gates_h(mx.nd.add_n(*(hidden for hidden, _ in below)))
        enter, leave, update = mx.nd.split(gates, num_outputs=3, axis=1)
        cell = mx.nd.sigmoid(enter) * mx.nd.tanh(update)
        forget_x = self.forget_x(row) if below else None
        for hidden, old in below:
            cell = cell + mx.nd.sigmoid(forget_x + self.forget_h(hidden)) * old
        return mx.nd.sigmoid(leave) * mx.nd.tanh(cell), cell
