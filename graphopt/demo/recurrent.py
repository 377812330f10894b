"""Plain Blocks around ``gluon.rnn.LSTM``."""

from __future__ import annotations

from typing import Any

from graphopt.compat import import_mxnet

mx = import_mxnet()
nn = mx.gluon.nn
Block: Any = mx.gluon.Block


class LSTMNet(Block):
    """Dense, LSTM, Dense over ``(length, batch, features)``.

    A plain Block: its own code is Python, its children can be hybridized.
    """

    def __init__(
        self, features: int, hidden: int, outputs: int, layers: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.before = nn.Dense(
                hidden, flatten=False, activation="tanh", in_units=features, prefix="before_"
            )
            self.lstm = mx.gluon.rnn.LSTM(hidden, layers, input_size=hidden, prefix="lstm_")
            self.after = nn.Dense(outputs, flatten=False, in_units=hidden, prefix="after_")

    def forward(self, x: Any) -> Any:
        """Outputs of every step."""
        return self.after(self.lstm(self.before(x)))


class WordLSTM(Block):
    """Embedding, LSTM, and a Dense layer on the last step, over tokens ``(length, batch)``."""

    def __init__(
        self, words: int, width: int, hidden: int, outputs: int, layers: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(words, width, prefix="embed_")
            self.lstm = mx.gluon.rnn.LSTM(hidden, layers, input_size=width, prefix="lstm_")
            self.after = nn.Dense(outputs, in_units=hidden, prefix="after_")

    def forward(self, tokens: Any) -> Any:
        """Scores ``(batch, outputs)``."""
        states = self.lstm(self.embed(tokens))
        return self.after(states[-1])
