"""Random training programs, in lockstep on plain nets and on optimized twins of them.

A program is a list of statements, such as a user's script has them: forward passes of several nets
under one ``record()``, backward passes, trainers' steps, other ``grad_req``, written parameters,
saved and loaded states, copies, casts, wrong arguments. After every statement results, parameters,
running statistics, gradients and whether they are fresh are compared, and in the end the states of
trainers. A failure names the statement and prints those before it.

Left out is what plain MXNet gets wrong, or leaves open: ``backward`` in another mode than forward,
biases whose weight is frozen (garbage from oneDNN's FullyConnected in float32), fused GRUs (now and
then NaN), the order in which BatchNorms that run several times under one ``record()`` update their
statistics (so each net with a BatchNorm is called once there). Parameters that are written between
forward and backward are left out as graphopt's gradients read them anew.
"""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from tests.tiers import one_of

mx = import_mxnet()
autograd, gluon, nn = mx.autograd, mx.gluon, mx.gluon.nn

WIDTH = 6
STATEMENTS = 20
TOLERANCE = {"float32": 3e-4, "float64": 1e-7}
NOT_TRAINED = ("running_mean", "running_var")
OPTIMIZERS = {
    "sgd": {"learning_rate": 0.05, "wd": 0.01},
    "nag": {"learning_rate": 0.02, "momentum": 0.9},
    "adam": {"learning_rate": 0.01, "epsilon": 0.05},
    "lamb": {"learning_rate": 0.01, "epsilon": 0.05},
    "ftrl": {"learning_rate": 0.05, "lamda1": 0.001},
}


def dense(**options: Any) -> nn.Dense:
    return nn.Dense(WIDTH, in_units=WIDTH, flatten=False, **options)


class Convolved(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1D(WIDTH, 3, padding=1, in_channels=WIDTH, use_bias=False)
        self.norm = nn.BatchNorm(in_channels=WIDTH, momentum=0.6)

    def hybrid_forward(self, F, x):
        return F.softsign(self.norm(self.convolution(x.swapaxes(1, 2)))).swapaxes(1, 2)


class Embedded(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, WIDTH)

    def hybrid_forward(self, F, x):
        tokens = F.clip(F.round(F.slice_axis(x, axis=2, begin=0, end=1) * 3) + 4, 0, 8)
        return x + self.table(tokens.reshape((0, 0)))


class Looped(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.read, self.keep = dense(), dense(use_bias=False)

    def hybrid_forward(self, F, x):
        def step(row, states):
            state = F.tanh(self.read(row) + self.keep(states[0]))
            return state, [state]

        steps = x.swapaxes(0, 1)
        start = F.zeros_like(F.slice_axis(steps, axis=0, begin=0, end=1)).reshape((-3, 0))
        return F.contrib.foreach(step, steps, [start])[0].swapaxes(0, 1)


class CalledTwice(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.dense = dense()

    def hybrid_forward(self, F, x):
        return self.dense(F.tanh(self.dense(x))) + x


class Branching(gluon.Block):
    def __init__(self):
        super().__init__()
        self.left, self.right = dense(), dense()

    def forward(self, x):
        return self.left(x) if x[0, 0, 0].asscalar() > 0 else self.right(x).tanh() + x


class Stepping(gluon.Block):
    def __init__(self):
        super().__init__()
        self.cell = gluon.rnn.LSTMCell(WIDTH, input_size=WIDTH)
        self.norm = nn.LayerNorm(in_channels=WIDTH)

    def forward(self, x):
        states, outputs = self.cell.begin_state(x.shape[0], dtype=x.dtype), []
        for step in range(x.shape[1]):
            output, states = self.cell(x[:, step], states)
            outputs.append(self.norm(output).expand_dims(1))
        return mx.nd.concat(*outputs, dim=1)


class Cubed(autograd.Function):
    def forward(self, x):
        self.save_for_backward(x)
        return x * 0.7 + x * x * x * 0.1

    def backward(self, slopes):
        (x,) = self.saved_tensors
        return slopes * (0.7 + 0.3 * x * x)


class WithFunction(gluon.Block):
    def __init__(self):
        super().__init__()
        self.dense = dense()

    def forward(self, x):
        return Cubed()(self.dense(x)) + x


LAYERS = {
    "tanh": lambda: dense(activation="tanh"),
    "layer norm": lambda: nn.LayerNorm(in_channels=WIDTH),
    "lstm": lambda: gluon.rnn.LSTM(WIDTH, input_size=WIDTH, layout="NTC"),
    "convolved": Convolved,
    "embedded": Embedded,
    "looped": Looped,
    "twice": CalledTwice,
    "branching": Branching,
    "stepping": Stepping,
    "function": WithFunction,
}


class Statement(NamedTuple):
    name: str
    seed: int  # of all that the statement draws


class Program(NamedTuple):
    layers: list[list[str]]  # of each net
    options: list[dict[str, Any]]  # of graphopt.optimize for each net
    optimizer: str
    fast_trainer: bool
    dtype: str
    statements: list[Statement]


def program(seed: int) -> Program:
    draw = random.Random(seed)
    layers = [[draw.choice(list(LAYERS)) for _ in range(draw.choice([1, 2, 2]))] for _ in range(2)]
    options = [
        draw.choice([{}, {"record": True}, {"record": False}])
        if {"branching", "stepping", "function"} & set(names)
        else draw.choice([{}, {"precise": True}, {"memory": "64MB"}])
        for names in layers
    ]
    weights = {"train": 8, "train_step": 3, "infer": 3, "gradients": 2, "copy": 1, "cast": 1}
    weights |= dict.fromkeys(("freeze", "add", "write", "wrong", "states", "hybridize", "load"), 1)
    names = draw.choices(list(weights), list(weights.values()), k=STATEMENTS)
    return Program(
        layers,
        options,
        draw.choice(list(OPTIMIZERS)),
        draw.random() < 0.7,
        draw.choice(list(TOLERANCE)),
        [Statement(name, draw.randrange(10**6)) for name in names],
    )


class Side:
    """Nets, losses and a trainer, plain or optimized, and what statements do to them."""

    def __init__(self, made: Program, folder: Path, *, optimized: bool):
        self.made, self.optimized, self.dtype = made, optimized, made.dtype
        self.file = str(folder / f"{optimized}.states")
        self.blocks, shared = [], dense()  # the head of both nets
        for names in made.layers:
            layers = [*(LAYERS[name]() for name in names), shared]
            hybrid = all(isinstance(layer, nn.HybridBlock) for layer in layers)
            self.blocks.append(nn.HybridSequential() if hybrid else nn.Sequential())
            self.blocks[-1].add(*layers)
        for parameter in self.parameters():
            parameter.initialize(mx.init.Uniform(0.5))
        for block in self.blocks:
            block.cast(self.dtype)
        self.nets, self.loss = self.blocks, gluon.loss.L2Loss()
        if optimized:
            pairs = zip(self.blocks, made.options, strict=True)
            self.nets = [graphopt.optimize(block, **options) for block, options in pairs]
            self.loss = graphopt.optimize(self.loss)
        self.new_trainer()

    def new_trainer(self):
        options = dict(OPTIMIZERS[self.made.optimizer])
        self.trainer = gluon.Trainer(self.parameters(), self.made.optimizer, options)
        if self.optimized and self.made.fast_trainer:
            self.trainer = graphopt.optimize(self.trainer)

    def parameters(self) -> list[Any]:
        found = [p for block in self.blocks for p in block.collect_params().values()]
        return list({id(p): p for p in found}.values())

    def trained(self, block: int) -> list[Any]:
        own = self.blocks[block].collect_params().values()
        return [p for p in own if not p.name.endswith(NOT_TRAINED)]

    def array(self, draw: random.Random, steps: int = 3, width: int = WIDTH) -> Any:
        values = np.random.RandomState(draw.randrange(10**6)).uniform(-1, 1, (3, steps, width))
        return mx.nd.array(values, dtype=self.dtype)

    def recorded(self, draw: random.Random) -> tuple[list[Any], Any]:
        """Losses of one to three chains of nets, and the input that they share."""
        x, losses, called = self.array(draw, draw.choice([3, 3, 4])), [], set()
        x.attach_grad()
        with autograd.record():
            for _ in range(draw.choice([1, 2, 3])):
                value = x
                for _ in range(draw.choice([1, 1, 2])):
                    net = draw.randrange(2)
                    if net in called and "convolved" in self.made.layers[net]:
                        net = 1 - net
                    if net in called and "convolved" in self.made.layers[net]:
                        continue
                    called.add(net)
                    value = self.nets[net](value.detach() if draw.random() < 0.2 else value)
                target = self.array(draw, x.shape[1])
                losses.append(draw.choice([lambda a, b: (a * b).sum(), self.loss])(value, target))
        return losses, x

    def train(self, draw):
        losses, x = self.recorded(draw)
        heads = draw.choice([None, [loss * 0.5 + 1 for loss in losses]])
        if heads is None and draw.random() < 0.5:
            with autograd.record():
                losses = [sum(loss.sum() for loss in losses)]
        autograd.backward(losses, heads)
        gradients = [p.grad() for p in self.parameters() if p.grad_req != "null"]
        if self.dtype == "float32" and gradients and draw.random() < 0.3:
            (graphopt if self.optimized else gluon.utils).clip_global_norm(gradients, 0.5)
        self.trainer.step(3, ignore_stale_grad=draw.random() < 0.8)
        return [*losses, x.grad]

    def train_step(self, draw):
        place, x, y = draw.randrange(2), self.array(draw), self.array(draw)
        net, options = self.nets[place], {"learning_rate": 0.05, "momentum": 0.9}
        # A list: names, by which MXNet sorts others, are "dense9" here and "dense10" there.
        own = list(self.blocks[place].collect_params().values())
        trainer = gluon.Trainer(own, "sgd", options)
        if self.optimized:
            step = graphopt.train_step(net, self.loss, trainer)
            return [step(x, y), step(y, x)]
        losses = []
        for data, label in ((x, y), (y, x)):
            with autograd.record():
                losses.append(self.loss(net(data), label))
            losses[-1].backward()
            trainer.step(3)
        return losses

    def gradients(self, draw):
        losses, x = self.recorded(draw)
        return autograd.grad(losses, [x])

    def infer(self, draw):
        x, net = self.array(draw), self.nets[draw.randrange(2)]
        with draw.choice([autograd.pause, autograd.predict_mode])():
            return [net(x), self.nets[0](net(x))]

    def _require(self, draw, request):
        for parameter in self.trained(draw.randrange(2)):
            parameter.grad_req = request
            if request != "null":
                parameter.zero_grad()

    def freeze(self, draw):
        self._require(draw, draw.choice(["null", "write", "write"]))

    def add(self, draw):
        self._require(draw, draw.choice(["add", "write"]))

    def write(self, draw):
        parameter = draw.choice(self.trained(draw.randrange(2)))
        value = parameter.data() * 0.8 + 0.02
        if draw.random() < 0.5:
            parameter.set_data(value)
        else:
            parameter.data()[:] = value

    def wrong(self, draw):
        self.nets[draw.randrange(2)](self.array(draw, width=WIDTH - 1)).wait_to_read()

    def states(self, draw):
        self.trainer.save_states(self.file)
        if draw.random() < 0.7:
            self.train(draw)
            self.trainer.load_states(self.file)

    def load(self, draw):
        net, file = self.nets[draw.randrange(2)], self.file + ".params"
        net.save_parameters(file)
        self.train(draw)
        net.load_parameters(file)

    def hybridize(self, draw):
        active = draw.random() < 0.7
        if self.optimized:
            self.nets[draw.randrange(2)].hybridize(active)

    def copy(self, draw):
        copied = draw.choice([copy.deepcopy, lambda nets: pickle.loads(pickle.dumps(nets))])
        self.nets, self.blocks = copied((self.nets, self.blocks))
        for parameter in self.parameters():  # MXNet's copies are not attached to their gradients
            request, parameter.grad_req = parameter.grad_req, "null"
            parameter.grad_req = request
        self.new_trainer()

    def cast(self, draw):
        self.dtype = draw.choice(list(TOLERANCE))
        for net in self.nets:
            net.cast(self.dtype)
        self.new_trainer()

    def run(self, statement: Statement) -> tuple[list[np.ndarray], bool]:
        """What a statement returns, and whether it raises."""
        try:
            made = getattr(self, statement.name)(random.Random(statement.seed)) or []
            return [array.asnumpy() for array in made], False
        except (mx.base.MXNetError, UserWarning, ValueError):
            return [], True

    def kept(self) -> dict[str, np.ndarray]:
        """Parameters, gradients and whether they are fresh, by the places of parameters."""
        found = {}
        for place, parameter in enumerate(self.parameters()):
            found[f"{place} {parameter.name}"] = parameter.data().asnumpy()
            if parameter.grad_req != "null":
                found[f"{place} gradient"] = parameter.grad().asnumpy()
                found[f"{place} is fresh"] = np.array(parameter.data()._fresh_grad)
        return found

    def follow(self, other: Side):
        """Takes over the values of the other side, so that rounding does not grow."""
        for mine, theirs in zip(self.parameters(), other.parameters(), strict=True):
            mine.data()[:] = theirs.data()
            if mine.grad_req != "null":
                mine.grad()[:] = theirs.grad()


def assert_close(name: str, ours: np.ndarray, theirs: np.ndarray, tolerance: float):
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
    bound = tolerance * max(0.1, float(np.abs(theirs).max(initial=0)))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound, err_msg=name)


def trainer_states(side: Side) -> list[np.ndarray]:
    """What the optimizer keeps, without states that are zero: those are made when first needed."""
    side.trainer.save_states(side.file)
    found = pickle.loads(Path(side.file).read_bytes())
    found = found[0] if isinstance(found, tuple) else found
    arrays = []
    for _, state in sorted(found.items()):
        parts = state if isinstance(state, (list, tuple)) else [state]
        arrays += [part.asnumpy() for part in parts if isinstance(part, mx.nd.NDArray)]
    return [array for array in arrays if array.any()]


@pytest.mark.parametrize("seed", one_of(3, range(8)))
def test_training_programs_do_what_they_do_in_mxnet(seed: int, tmp_path: Path):
    made = program(seed)
    plain = Side(made, tmp_path, optimized=False)
    fast = Side(made, tmp_path, optimized=True)
    fast.follow(plain)
    for number, statement in enumerate(made.statements):
        told = f"{made._replace(statements=[])}, statements {made.statements[: number + 1]}"
        expected, raised = plain.run(statement)
        results, also_raised = fast.run(statement)
        assert raised == also_raised, told
        tolerance = TOLERANCE["float32" if statement.name == "cast" else plain.dtype]
        if statement.name == "wrong":  # layers before the one that fails may have run in MXNet
            fast.follow(plain)
        assert len(results) == len(expected), told
        for ours, theirs in zip(results, expected, strict=True):
            assert_close(told, ours, theirs, tolerance)
        ours, theirs = fast.kept(), plain.kept()
        for (name, mine), other in zip(ours.items(), theirs.values(), strict=True):
            assert_close(f"{name} after {told}", mine, other, tolerance)
        if number % 8 == 7 or statement.name == "cast":
            fast.follow(plain)
    for mine, other in zip(trainer_states(fast), trainer_states(plain), strict=True):
        assert_close(f"states of the trainer of {told}", mine, other, 10 * tolerance)
