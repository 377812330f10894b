"""Recurrences: the operator against what the numpy interpreter makes of a spec."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.errors import GraphoptError
from graphopt.kernels.recurrence.spec import parse
from graphopt.passes.recurrence.body import Body
from tests.kernels.recurrence_support import (
    TABLE,
    Call,
    Step,
    cell,
    check,
    check_body,
    check_forward,
    check_gradients,
    expect,
    heads_of,
    in_single,
    inputs_of,
    near,
    operator,
)
from tests.kernels.test_recurrence_text import ELMAN
from tests.tiers import one_of

mx = import_mxnet()


def flags() -> list[Call]:
    """All that go together."""
    found = []
    for reverse, lengths, batch_major, both, zero in itertools.product([False, True], repeat=5):
        if not (reverse and both):
            found.append(Call(3, 4, reverse, lengths, batch_major, both, zero))
    return found


@pytest.mark.parametrize(
    ("call", "mode", "indexed"),
    one_of(
        5,
        [
            (call, mode, indexed)
            for call in flags()
            for mode, indexed in (("lstm", False), ("lstm", True), ("gru", False))
        ],
    ),
    ids=str,
)
def test_all_flags(call: Call, mode: str, indexed: bool) -> None:
    check(cell(3, 4, mode=mode), replace(call, indexed=indexed))


def two_steps_back(step: Step) -> Body:
    """A state that is the old value of another one."""
    x, near_, far = step.sequence(4), step.state(6), step.state(6)
    new = step.act(step.add(*(step.product(value, 6) for value in (x, near_, far))))
    return step.body([new, near_], [new])


def swapped(step: Step) -> Body:
    """States that take turns."""
    x, a, b = step.sequence(3), step.state(5), step.state(5)
    return step.body([b, a], [step.act(step.add(step.product(x, 5), step.product(a, 5)))])


def fixed(step: Step) -> Body:
    """A state that stays as it is."""
    x, a, kept = step.sequence(3), step.state(5), step.state(5)
    mixed = step.op("elemwise_mul", step.product(a, 5), kept)
    return step.body([step.act(step.add(step.product(x, 5), mixed)), kept], [a, kept])


def emitted_slice(step: Step) -> Body:
    x, s = step.sequence(7), step.state(9)
    new = step.act(step.add(step.product(x, 9), step.product(s, 9)))
    return step.body([new], [step.cut(new, 2, 5), step.cut(x, 1, 4)])


def state_slice(step: Step) -> Body:
    """A state that is some columns of a value, another one columns of a product."""
    x, s, r = step.sequence(7), step.state(4), step.state(3)
    both = step.product(step.concat(x, s, r), 9)
    new = step.act(both)
    return step.body([step.cut(new, 5, 9), step.cut(both, 0, 3)], [new])


def one_matrix_twice(step: Step) -> Body:
    x, s = step.sequence(6), step.state(6)
    weight = step.parameter(6, 6)
    read = step.act(step.add(step.dense(x, weight), step.dense(s, weight)))
    back = step.op("dot", read, weight, width=6)
    return step.body([step.act(back)], [read])


def emitted_twice(step: Step) -> Body:
    """One value as both states and two emitted sequences."""
    x, s, r = step.sequence(4), step.state(6), step.state(6)
    new = step.act(step.add(step.product(x, 6), step.product(s, 6), r))
    return step.body([new, new], [new, new])


def emitted_product(step: Step) -> Body:
    """Products leave the step as they are, one of them as a state too."""
    x, s = step.sequence(4), step.state(6)
    new = step.add(step.product(x, 6), step.product(step.act(s), 6))
    logits = step.product(new, 11)
    return step.body([new], [logits, new])


def unread(step: Step) -> Body:
    """Sequences, states and parameters nobody reads."""
    x, _y, s, r = step.sequence(4), step.sequence(3), step.state(5), step.state(2)
    step.parameter(3, 3)
    new = step.act(step.product(x, 5))
    return step.body([new, r], [step.op("elemwise_mul", s, s)])


def only_states(step: Step) -> Body:
    """Nothing is emitted but a sequence as it came."""
    x, s = step.sequence(4), step.state(4)
    return step.body([step.op("elemwise_mul", step.act(x), s)], [x])


def shared_columns(step: Step) -> Body:
    """Gradients of overlapping columns, of a value that is read as a whole too."""
    x, s = step.sequence(4), step.state(6)
    new = step.act(step.add(step.product(x, 10), step.product(s, 10)))
    parts = [step.cut(new, begin, begin + 6) for begin in (0, 2, 4)]
    mixed = step.op("elemwise_mul", step.product(parts[0], 6), step.product(parts[1], 6))
    return step.body([step.act(step.add(mixed, parts[2]))], [new, step.product(new, 2)])


def gate_and_rows(step: Step) -> Body:
    x, s = step.sequence(5), step.state(8)
    gate = step.act(step.product(s, 1), "sigmoid")
    weights = step.op("softmax", step.add(step.product(x, 8), step.product(s, 8)), axis=-1)
    mixed = step.op("broadcast_mul", weights, gate)
    norm = [step.add(mixed, s), step.parameter(8), step.parameter(8)]
    return step.body([step.op("LayerNorm", *norm, width=8, axis=-1, eps=0.125)], [weights, gate])


def bias_of_one_column(step: Step) -> Body:
    """One column everywhere, and a row of a single number."""
    x, s = step.sequence(1), step.state(1)
    new = step.op("broadcast_add", step.add(step.product(x, 1), s), step.parameter(1))
    return step.body([step.act(new)], [new])


def dense_with_bias(step: Step) -> Body:
    x, s = step.sequence(3), step.state(4)
    attrs = {"num_hidden": 4, "no_bias": False, "flatten": False}
    reads = [x, step.parameter(4, 3), step.parameter(4)]
    new = step.op("FullyConnected", *reads, width=4, **attrs)
    return step.body([step.act(step.add(new, s))], [new])


def name_of(value: object) -> str:
    """The name of a function, and all of a call."""
    return getattr(value, "__name__", str(value))


CHOSEN = [
    two_steps_back,
    swapped,
    fixed,
    emitted_slice,
    state_slice,
    one_matrix_twice,
    emitted_twice,
    emitted_product,
    unread,
    only_states,
    shared_columns,
    gate_and_rows,
    bias_of_one_column,
]


@pytest.mark.parametrize("make", CHOSEN, ids=name_of)
def test_specs_of_chosen_steps(make: Callable[[Step], Body]) -> None:
    step = Step()
    body = make(step)
    check_body(step, body)
    assert parse(str(body.spec)) == body.spec


@pytest.mark.parametrize(
    ("make", "call"),
    one_of(
        3,
        itertools.product(
            CHOSEN,
            [
                Call(3, 3),
                Call(1, 1),
                Call(3, 4, lengths=True),
                Call(3, 4, lengths=True, batch_major=True, bidirectional=True, zero_states=True),
                Call(2, 3, reverse=True, zero_states=True),
            ],
        ),
    ),
    ids=name_of,
)
def test_chosen_steps(make: Callable[[Step], Body], call: Call) -> None:
    check(make(Step()).spec, call)


@pytest.mark.parametrize("make", one_of(2, CHOSEN), ids=name_of)
def test_chosen_steps_in_single_precision(make: Callable[[Step], Body]) -> None:
    check_forward(in_single(make(Step()).spec), Call(7, 9))


def test_a_bias_is_computed_or_refused() -> None:
    step = Step()
    try:
        body = dense_with_bias(step)
    except GraphoptError:
        return
    check_body(step, body)


@pytest.mark.parametrize("make", [emitted_slice, emitted_twice, two_steps_back])
@pytest.mark.parametrize("lengths", [False, True])
def test_outputs_nobody_reads(make: Callable[[Step], Body], lengths: bool) -> None:
    spec = make(Step()).spec
    call = Call(3, 3, lengths=lengths)
    for read in range(len(spec.emit) + len(spec.states)):
        for stash in (False, True):
            check_gradients(spec, call, stash=stash, read=[read])


@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("indexed", [False, True])
def test_gradients_that_are_added_or_not_wanted(lengths: bool, indexed: bool) -> None:
    spec, call = cell(), Call(4, 5, lengths=lengths, bidirectional=True, indexed=indexed)
    inputs = inputs_of(spec, call)
    wrt = range(len(inputs) - lengths - indexed)
    _, want = operator(spec, inputs, call, stash=True, wrt=wrt)
    _, twice = operator(spec, inputs, call, stash=True, wrt=wrt, grad_req="add")
    for once, both in zip(want, twice, strict=True):
        near(both, 2 * once, 1e-13)
    for n in wrt:
        for stash in (False, True):
            _, (alone,) = operator(spec, inputs, call, stash=stash, wrt=[n])
            np.testing.assert_array_equal(alone, want[n])


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64"])
def test_dtypes_of_lengths(kind: str) -> None:
    spec, call = cell(), Call(4, 5, lengths=True)
    inputs = inputs_of(spec, call)
    want = expect(spec, inputs, call)
    found, _ = operator(spec, [*inputs[:-1], inputs[-1].astype(kind)], call)
    for got, right in zip(found, want, strict=True):
        near(got, right, 1e-12)


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64"])
def test_numbers_of_rows(kind: str) -> None:
    """Of any dtype; they have a gradient of zeros, and what is between two numbers is the lower."""
    spec, call = cell(), Call(4, 3, indexed=True)
    *others, numbers = inputs_of(spec, call)
    want = expect(spec, [*others, numbers], call)
    given_ = numbers.astype(kind)
    if kind.startswith("float"):
        given_ += 0.75
        given_[numbers < 0] = np.nan
        given_[numbers > TABLE] = np.inf
    found, (gradient,) = operator(spec, [*others, given_], call, wrt=[len(others)])
    for got, right in zip(found, want, strict=True):
        near(got, right, 1e-12)
    assert not gradient.any()


def test_numbers_that_rows_of_large_tables_have_in_single_precision() -> None:
    rows = (1 << 24) + 2  # the last one's number is no float32
    spec = parse("recurrence f32 (1) () (1x1) () ;; 1 = x0 @ m0' ;; next ;; emit t0")
    table = (np.arange(rows) % 1000).astype("float32")[:, None]
    numbers = np.array([[0, 1000, (1 << 24) - 1, 1 << 24, (1 << 24) + 4]], "float32")
    call = Call(1, numbers.size, indexed=True)
    (found,), _ = operator(spec, [table, np.ones((1, 1), "float32"), numbers], call)
    at = [0, 1000, (1 << 24) - 1, 1 << 24, rows - 1]
    np.testing.assert_array_equal(found[0], table[at])


def test_tables_that_do_not_fit() -> None:
    spec, call = cell(), Call(4, 3, indexed=True)
    inputs = inputs_of(spec, call)
    wrong = {0: (TABLE, 6), 1: (2, 6), len(inputs) - 1: (3, 4)}
    for n, shape in wrong.items():
        arrays = [*inputs[:n], np.zeros(shape), *inputs[n + 1 :]]
        with pytest.raises(mx.MXNetError, match=rf"input {n} of|and \d+ sequences"):
            operator(spec, arrays, call)
    with pytest.raises(mx.MXNetError, match=r"input 0 of .* has 3 axes, not 2"):
        operator(spec, [np.zeros((4, 3, 5)), *inputs[1:]], call)
    with pytest.raises(mx.MXNetError, match="numbers of rows are float32, float64, int32 or int64"):
        operator(spec, [*inputs[:-1], inputs[-1].astype("uint8")], call)
    elementwise = parse(ELMAN.replace("x0 @ m0' + ", ""))
    with pytest.raises(mx.MXNetError, match="no matrix is multiplied with the rows"):
        operator(elementwise, inputs_of(elementwise, call), call)
    both = parse(ELMAN.replace("emit t1[1:3], x1", "emit x0"))
    with pytest.raises(mx.MXNetError, match="the step reads the rows themselves too"):
        operator(both, inputs_of(both, call), call)


def test_all_sequences_are_empty() -> None:
    spec, call = cell(), Call(4, 5, lengths=True)
    inputs = [*inputs_of(spec, call)[:-1], np.zeros(5, "int32")]
    outputs, gradients = operator(spec, inputs, call, stash=True, wrt=range(len(inputs) - 1))
    assert not outputs[0].any()
    for state, given_ in zip(outputs[1:], inputs[1:3], strict=True):
        np.testing.assert_array_equal(state, given_)
    heads = heads_of(outputs)
    for n, gradient in enumerate(gradients):
        np.testing.assert_array_equal(gradient, heads[n] if n in (1, 2) else 0 * gradient)


@pytest.mark.parametrize(
    ("length", "told"), [(-1, "-1"), (5, "5"), (1.5, "1.5"), (np.nan, "nan"), (np.inf, "inf")]
)
def test_lengths_that_are_none(length: float, told: str) -> None:
    spec, call = cell(), Call(4, 5, lengths=True)
    ends = np.array([4, 2, 0, length, 1], "float32")
    with pytest.raises(mx.MXNetError, match=f"sequence 3 has length {told}.*to the number of st"):
        operator(spec, [*inputs_of(spec, call)[:-1], ends], call)


def test_shapes_that_do_not_fit() -> None:
    spec, call = cell(5, 6), Call(4, 3)
    inputs = inputs_of(spec, call)
    wrong = {0: (4, 3, 6), 1: (2, 6), 2: (3, 7), 3: (24, 6), 5: (23,)}
    for n, shape in wrong.items():
        arrays = [*inputs[:n], np.zeros(shape), *inputs[n + 1 :]]
        with pytest.raises(mx.MXNetError, match=rf"input {n} of|3 and 2 sequences"):
            operator(spec, arrays, call)
    with pytest.raises(mx.MXNetError, match="has 2 axes, not 3"):
        operator(spec, [inputs[0][0], *inputs[1:]], call)
    with pytest.raises(mx.MXNetError, match=r"input 1 of .* type code"):
        operator(spec, [inputs[0], inputs[1].astype("float32"), *inputs[2:]], call)
