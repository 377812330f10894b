"""The operator table against MXNet's behaviour, on random data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from graphopt.ir.ops import Kind, OpInfo, info
from tests.ir.ops_support import ATTRS, ENTRIES, Registry

INTEGER = ("bitwise", "lcm")
SHAPES = {"broadcast_like": ((2, 1, 4), (2, 3, 4))}
POINTWISE = [
    entry.name
    for entry in ENTRIES
    if entry.pure
    and entry.kind in (Kind.ELEMENTWISE, Kind.BROADCAST)
    and 1 <= len(entry.arguments) <= 2
]


def sample(
    registry: Registry, op: str, shapes: tuple[tuple[int, ...], ...], seed: int = 0
) -> list[Any]:
    rng = np.random.default_rng(seed)
    if any(word in op for word in INTEGER):
        arrays = [rng.integers(1, 20, shape).astype("int32") for shape in shapes]
    else:
        arrays = [rng.uniform(-2, 2, shape).astype("float32") for shape in shapes]
    return [registry.mx.nd.array(array, dtype=array.dtype) for array in arrays]


def pointwise_shapes(entry: OpInfo) -> tuple[tuple[int, ...], ...]:
    if entry.name in SHAPES:
        return SHAPES[entry.name]
    if entry.kind is Kind.ELEMENTWISE:
        return ((2, 3, 4),) * len(entry.arguments)
    return ((2, 1, 4), (1, 3, 4))[: len(entry.arguments)]


@pytest.mark.parametrize("op", POINTWISE)
def test_pointwise_operators_do_what_is_said(registry: Registry, op: str) -> None:
    entry, attrs = info(op), ATTRS.get(op, {})
    inputs = sample(registry, op, pointwise_shapes(entry))
    before = [array.asnumpy() for array in inputs]
    first = registry.call(op, inputs, attrs).asnumpy()
    second = registry.call(op, inputs, attrs).asnumpy()
    np.testing.assert_array_equal(first, second)
    for array, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array.asnumpy(), old)
    assert first.shape == (2, 3, 4)
    if entry.view:
        np.testing.assert_array_equal(first, before[0])
    if entry.commutative:
        special = [0.0, -1.0, 2.5, np.inf, -np.inf, np.nan]
        if inputs[0].dtype != np.int32:
            left, right = np.meshgrid(special, special)
            inputs = [registry.mx.nd.array(side, dtype="float32") for side in (left, right)]
        np.testing.assert_array_equal(
            registry.call(op, inputs, attrs).asnumpy(),
            registry.call(op, inputs[::-1], attrs).asnumpy(),
        )
    check_inplace(registry, entry, lambda: sample(registry, op, ((2, 3, 4),) * len(inputs)), attrs)


def check_inplace(
    registry: Registry, entry: OpInfo, make: Callable[[], list[Any]], attrs: dict[str, str]
) -> int:
    """Compares each in-place pair of the first output with a run that shares nothing."""
    done = 0
    for source, target in entry.inplace:
        inputs = make()
        expected = registry.call(entry.name, inputs, attrs)
        same = inputs[source].dtype == expected.dtype and inputs[source].size == expected.size
        if target == 0 and same and inputs[source].shape == expected.shape:
            registry.call(entry.name, inputs, attrs, out=inputs[source])
            np.testing.assert_array_equal(inputs[source].asnumpy(), expected.asnumpy())
            done += 1
    return done


POSITIVE = "positive definite"
LOWER = "lower triangular"
INPLACE: dict[str, tuple[list[Any], dict[str, str]]] = {
    "Activation": ([(2, 3)], {"act_type": "tanh"}),
    "LeakyReLU": ([(2, 3)], {"act_type": "elu"}),
    "SequenceMask": ([(4, 2, 3)], {}),
    "SoftmaxActivation": ([(2, 3)], {}),
    "SoftmaxOutput": ([(2, 3), (2,)], {}),
    "LinearRegressionOutput": ([(2, 3), (2, 3)], {}),
    "SVMOutput": ([(2, 3), (2,)], {}),
    "_slice_assign": ([(2, 3), (1, 1)], {"begin": "(0,1)", "end": "(1,2)"}),
    "_slice_assign_scalar": ([(2, 3)], {"begin": "(0,1)", "end": "(1,2)", "scalar": "7"}),
    "_np_cumsum": ([(3, 4)], {"axis": "0"}),
    "_npi_where": ([(2, 3), (2, 3), (2, 3)], {}),
    "_linalg_gemm": ([(3, 3), (3, 3), (3, 3)], {}),
    "_linalg_potrf": ([POSITIVE], {}),
    "_linalg_inverse": ([POSITIVE], {}),
    "_linalg_potri": ([LOWER], {}),
    "_linalg_trmm": ([LOWER, (3, 3)], {}),
    "_linalg_trsm": ([LOWER, (3, 3)], {}),
    "_npi_cholesky": ([POSITIVE], {}),
    "add_n": ([(2, 3), (2, 3), (2, 3)], {"num_args": "3"}),
    "log_softmax": ([(2, 3)], {}),
    "softmax": ([(2, 3)], {}),
    "softmin": ([(2, 3)], {}),
    "LayerNorm": ([(2, 3), (3,), (3,)], {}),
    "GroupNorm": ([(2, 4, 3), (2,), (2,)], {"num_groups": "2"}),
}


@pytest.mark.parametrize("op", INPLACE)
def test_inplace_pairs_of_other_operators(registry: Registry, op: str) -> None:
    shapes, attrs = INPLACE[op]

    def make() -> list[Any]:
        found = []
        for shape in shapes:
            if isinstance(shape, str):
                lower = np.tril(np.random.default_rng(1).uniform(0.5, 1, (3, 3))) + np.eye(3)
                array = lower if shape == LOWER else lower @ lower.T
                found.append(registry.mx.nd.array(array, dtype="float32"))
            else:
                found += sample(registry, op, (shape,), seed=len(found))
        if op in ("SoftmaxOutput", "SVMOutput"):
            found[1] = registry.mx.nd.array([0, 2])
        return found

    assert check_inplace(registry, info(op), make, attrs) == len(info(op).inplace)


VIEWS: dict[str, dict[str, str]] = {
    "Reshape": {"shape": "(4,6)"},
    "Flatten": {},
    "expand_dims": {"axis": "1"},
    "squeeze": {},
    "_np_reshape": {"newshape": "(4,6)"},
    "_npx_reshape": {"newshape": "(4,6)"},
    "_np_squeeze": {},
}


def test_views_keep_the_order_of_elements(registry: Registry) -> None:
    for op in (entry.name for entry in ENTRIES if entry.view and entry.name not in POINTWISE):
        inputs = sample(registry, op, ((2, 3, 1, 4),))
        if op == "reshape_like":
            result = registry.call(op, [*inputs, registry.mx.nd.zeros((4, 6))], {})
        else:
            result = registry.call(op, inputs, VIEWS[op])
        np.testing.assert_array_equal(result.asnumpy().ravel(), inputs[0].asnumpy().ravel())


NORMS = ["BatchNorm", "BatchNorm_v1", "_contrib_BatchNormWithReLU"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("fix_gamma", ["False", "True"])
@pytest.mark.parametrize("op", NORMS)
def test_batch_norm_writes(registry: Registry, op: str, fix_gamma: str, training: bool) -> None:
    mx = registry.mx
    inputs = [mx.nd.array(np.random.default_rng(3).uniform(size=(4, 3, 2, 2)))]
    inputs += [mx.nd.array(values) for values in ([2, 3, 4], [1, 2, 3], [0.1, 0.2, 0.3], [1, 2, 3])]
    for array in inputs[:3]:
        array.attach_grad()
    before = [array.asnumpy() for array in inputs]

    def changed() -> tuple[int, ...]:
        mx.nd.waitall()
        return tuple(
            at
            for at, (array, old) in enumerate(zip(inputs, before, strict=True))
            if not np.allclose(array.asnumpy(), old, atol=1e-6)
        )

    attrs = {"fix_gamma": fix_gamma}
    entry = info(op, attrs)
    with mx.autograd.record(train_mode=training):
        result = registry.call(op, inputs, attrs)
    # The running averages move in backward; forward writes gamma, though MXNet does not declare it.
    assert changed() == entry.hidden_writes
    result.backward()
    assert changed() == (entry.writes(5) if training else entry.hidden_writes)


UPDATES = [entry for entry in ENTRIES if "_update" in entry.name and entry.arguments]
UPDATE_ATTRS: dict[str, dict[str, str] | None] = {
    "_sparse_adagrad_update": None,  # these two take row-sparse gradients only
    "_contrib_group_adagrad_update": None,
    "_adamw_update": {"lr": "0.1", "eta": "1"},
    "_mp_adamw_update": {"lr": "0.1", "eta": "1"},
    "ftml_update": {"lr": "0.1", "t": "1"},
    "nag_mom_update": {"lr": "0.1", "momentum": "0.9"},
    "lamb_update_phase1": {"t": "1", "wd": "0.1"},
    "mp_lamb_update_phase1": {"t": "1", "wd": "0.1"},
}


@pytest.mark.parametrize("entry", UPDATES, ids=lambda entry: entry.name)
def test_updates_write_their_states(registry: Registry, entry: OpInfo) -> None:
    attrs = UPDATE_ATTRS.get(entry.name, {"lr": "0.1"})
    if attrs is None:
        pytest.skip("needs a sparse gradient")
    assert not entry.pure
    mx, rng = registry.mx, np.random.default_rng(0)
    low = "mp_" in entry.name
    inputs = []
    for name in entry.arguments:
        small = low and name in ("weight", "grad")
        shape = (1,) if name in ("r1", "r2", "rescale_grad") else (3, 1)
        array = np.full(shape, 0.5) + rng.uniform(0, 0.1, shape)
        inputs.append(mx.nd.array(array, dtype="float16" if small else "float32"))
    before = [array.asnumpy() for array in inputs]
    result = registry.call(entry.name, inputs, attrs)
    assert not np.array_equal(result.asnumpy(), before[0])
    changed = [
        at
        for at, (array, old) in enumerate(zip(inputs, before, strict=True))
        if not np.array_equal(array.asnumpy(), old)
    ]
    # MXNet declares that mp_lamb_update_phase2 writes weight32, and forgets to do it.
    expected = () if entry.name == "mp_lamb_update_phase2" else entry.writes(len(inputs))
    assert tuple(changed) == expected


MULTI = {
    "multi_sgd_mom_update": (3, "float32"),
    "multi_mp_sgd_update": (3, "float16"),
    "multi_mp_sgd_mom_update": (4, "float16"),
}


@pytest.mark.parametrize("op", MULTI)
def test_multi_updates_write_in_groups(registry: Registry, op: str) -> None:
    size, dtype = MULTI[op]
    inputs = [
        registry.mx.nd.full((3,), 0.5, dtype=dtype if at % size < 2 else "float32")
        for at in range(2 * size)
    ]
    attrs = {"num_weights": "2", "lrs": "(0.1,0.1)", "wds": "(0.1,0.1)"}
    if "mom" in op:
        attrs["momentum"] = "0.9"
    registry.call(op, inputs, attrs, out=[inputs[0].copy(), inputs[size].copy()])
    changed = [at for at, array in enumerate(inputs) if (array.asnumpy() != 0.5).any()]
    assert tuple(changed) == info(op).writes(len(inputs))


def test_randomness_and_mode(registry: Registry) -> None:
    mx = registry.mx
    ones = mx.nd.ones((50, 50))
    # Not rrelu: in training it crashes MXNet 1.9.1 on CPU.
    for attrs in ({"p": "0.5"}, {"mode": "always"}):
        entry = info("Dropout", attrs)
        assert entry.random
        results = []
        for training in (False, False, True, True):
            with mx.autograd.record(train_mode=training):
                results.append(registry.call("Dropout", [ones], attrs).asnumpy())
        assert not np.array_equal(results[2], results[3])
        assert np.array_equal(results[0], results[1]) == entry.is_pure(training=False)
    for entry in ENTRIES:
        if entry.name.startswith("_random_") and not entry.arguments:
            assert entry.random
            attrs = {}
            if "randint" in entry.name:
                attrs = {"low": "0", "high": "1000000"}
            elif entry.name == "_random_negative_binomial":
                attrs = {"k": "50", "p": "0.5"}
            draws = [registry.call(entry.name, [], attrs | {"shape": "(40,)"}) for _ in range(2)]
            assert not np.array_equal(draws[0].asnumpy(), draws[1].asnumpy()), entry.name


OTHER_PURE: dict[str, tuple[list[Any], dict[str, str]]] = {
    "FullyConnected": ([(4, 3), (5, 3), (5,)], {"num_hidden": "5"}),
    "Convolution": ([(1, 2, 5, 5), (3, 2, 3, 3), (3,)], {"kernel": "(3,3)", "num_filter": "3"}),
    "Pooling": ([(1, 2, 4, 4)], {"kernel": "(2,2)"}),
    "L2Normalization": ([(3, 4)], {}),
    "InstanceNorm": ([(2, 3, 4), (3,), (3,)], {}),
    "LRN": ([(1, 4, 2, 2)], {"nsize": "3"}),
    "topk": ([(3, 5)], {"k": "2"}),
    "sort": ([(3, 5)], {}),
    "sum": ([(3, 5)], {"axis": "1"}),
    "take": ([(5, 2), (3,)], {}),
    "where": ([(2,), (2, 3), (2, 3)], {}),
    "transpose": ([(2, 3)], {}),
    "Concat": ([(2, 3), (2, 3)], {"num_args": "2"}),
    "batch_dot": ([(2, 3, 4), (2, 4, 5)], {}),
    "_contrib_box_nms": ([(6, 6)], {}),
    "_contrib_MultiBoxPrior": ([(1, 3, 4, 4)], {}),
    "_contrib_ROIAlign": ([(1, 2, 6, 6), (2, 5)], {"pooled_size": "(2,2)", "spatial_scale": "1"}),
    "LeakyReLU": ([(2, 3)], {"act_type": "gelu"}),
}


@pytest.mark.parametrize("op", OTHER_PURE)
def test_other_pure_operators_repeat_and_write_nothing(registry: Registry, op: str) -> None:
    shapes, attrs = OTHER_PURE[op]
    assert info(op, attrs).pure
    inputs = sample(registry, op, tuple(shapes))
    if op == "_contrib_ROIAlign":
        inputs[1] = registry.mx.nd.array([[0, 0, 0, 3, 3], [0, 1, 1, 4, 4]])
    before = [array.asnumpy() for array in inputs]
    for training in (False, True):
        with registry.mx.autograd.record(train_mode=training):
            results = [registry.call(op, inputs, attrs).asnumpy() for _ in range(2)]
        np.testing.assert_array_equal(results[0], results[1])
    for array, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(array.asnumpy(), old)
