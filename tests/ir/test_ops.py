"""The operator table against itself, against MXNet's registry, and against MXNet's behaviour."""

import ast
import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.compat import import_mxnet
from graphopt.ir.ops import Gradient, Kind, OpInfo, canonical, info, is_known, names

REPOSITORY = Path(__file__).resolve().parents[2]
GRAPHS = REPOSITORY.parent / "shared" / "data" / "symbols" / "graphs"
ENTRIES = [info(name) for name in names()]

GLUON = """
    Activation BatchNorm BlockGrad CTCLoss Cast Concat Convolution Deconvolution Dropout Embedding
    Flatten FullyConnected GroupNorm InstanceNorm LayerNorm LeakyReLU Pad Pooling RNN Reshape
    SequenceMask SequenceReverse SliceChannel SoftmaxOutput SwapAxis UpSampling _copy _foreach
    _arange _contrib_AdaptiveAvgPooling2D _contrib_BilinearResize2D _contrib_DeformableConvolution
    _contrib_ModulatedDeformableConvolution _contrib_SyncBatchNorm _contrib_arange_like
    _contrib_box_nms _contrib_boolean_mask _contrib_div_sqrt_dim
    _contrib_interleaved_matmul_selfatt_qk _contrib_interleaved_matmul_selfatt_valatt
    _div_scalar _equal_scalar _greater _greater_scalar _lesser_scalar _maximum _maximum_scalar
    _minimum_scalar _minus_scalar _mod_scalar _mul_scalar _ones _plus_scalar _power _power_scalar
    _random_normal _random_uniform _rdiv_scalar _rminus_scalar _rnn_param_concat
    _sample_unique_zipfian _shuffle _split_v2 _while_loop _cond _zeros abs add_n argmax batch_dot
    broadcast_add broadcast_axis broadcast_div broadcast_like broadcast_mul broadcast_sub
    broadcast_to clip cos depth_to_space dot elemwise_add elemwise_div elemwise_mul elemwise_sub
    erf exp expand_dims gather_nd im2col log log_softmax max mean norm one_hot ones_like pick
    relu repeat reshape_like reverse rsqrt sigmoid slice slice_axis slice_like smooth_l1 softmax
    space_to_depth sqrt square squeeze stack sum take tanh tile topk transpose where zeros_like
"""

# Registered only where MXNet is built with CUDA.
GPU_ONLY = {"CuDNNBatchNorm"}


# ---------------------------------------------------------------- the table alone


def test_entries_are_consistent() -> None:
    for entry in ENTRIES:
        if entry.mutates or entry.hidden_writes or entry.random:
            assert not entry.pure, entry.name
        if entry.pure:
            assert not entry.mode_dependent, entry.name
        if entry.commutative:
            assert len(entry.arguments) == 2, entry.name
        if entry.pure_at_inference:
            assert not entry.pure, entry.name
        if entry.loss:
            assert entry.gradient is not Gradient.NONE, entry.name
        if entry.arguments:
            reach = max((*entry.mutates, *entry.hidden_writes, *(i for i, _ in entry.inplace), 0))
            assert reach < len(entry.arguments), entry.name
        assert entry.name.strip() == entry.name != ""


def test_the_table_needs_nothing_but_python() -> None:
    for file in (REPOSITORY / "graphopt" / "ir" / "ops").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Import) or node.names[0].name in sys.stdlib_module_names
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                own = module.startswith("graphopt.ir.ops")
                assert own or module.split(".")[0] in sys.stdlib_module_names, (file.name, module)


def test_aliases_resolve_to_their_entry() -> None:
    seen = set(names())
    for entry in ENTRIES:
        for alias in entry.aliases:
            assert alias not in seen, alias
            seen.add(alias)
            assert canonical(alias) == entry.name
            assert is_known(alias)
            assert info(alias) is entry


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_Plus", "elemwise_add"),
        ("_plus", "elemwise_add"),
        ("_Mul", "elemwise_mul"),
        ("_MulScalar", "_mul_scalar"),
        ("ElementWiseSum", "add_n"),
        ("flatten", "Flatten"),
        ("reshape", "Reshape"),
        ("swapaxes", "SwapAxis"),
        ("split", "SliceChannel"),
        ("crop", "slice"),
        ("concat", "Concat"),
        ("broadcast_plus", "broadcast_add"),
        ("identity", "_copy"),
        ("stop_gradient", "BlockGrad"),
        ("Softmax", "SoftmaxOutput"),
        ("_contrib_box_non_maximum_suppression", "_contrib_box_nms"),
        ("Crop", "Crop"),
    ],
)
def test_old_names(old: str, new: str) -> None:
    assert canonical(old) == new


def test_unknown_is_opaque_and_impure() -> None:
    entry = info("no_such_operator")
    assert entry == OpInfo("no_such_operator", Kind.OPAQUE, pure=False)
    assert entry.gradient is Gradient.BOTH
    assert not is_known("no_such_operator")
    assert not entry.is_pure(training=False)
    assert entry.writes(4) == ()


def test_writes_repeat_per_group() -> None:
    assert info("multi_mp_sgd_mom_update").writes(8) == (2, 3, 6, 7)
    assert info("preloaded_multi_sgd_mom_update").writes(3 * 2 + 2) == (2, 5)
    assert info("reset_arrays").writes(3) == (0, 1, 2)
    assert info("BatchNorm").writes(5) == (1, 3, 4)


def test_attributes_narrow() -> None:
    assert info("FullyConnected", {"no_bias": "True"}).arguments == ("data", "weight")
    assert info("FullyConnected", {"no_bias": False}).arguments == ("data", "weight", "bias")
    assert info("Deconvolution", {}).arguments == ("data", "weight")
    assert info("_npi_percentile", {"q_scalar": "None"}).arguments == ("a", "q")
    assert info("_npi_percentile", {"q_scalar": 50.0}).arguments == ("a",)
    assert not info("LeakyReLU").pure
    assert info("LeakyReLU", {}).pure
    assert info("LeakyReLU", {}).kind is Kind.ELEMENTWISE
    assert info("LeakyReLU", {"act_type": "rrelu"}).random
    assert info("LeakyReLU", {"act_type": "prelu"}).arguments == ("data", "gamma")
    assert not info("RNN").pure
    assert info("RNN", {"mode": "gru", "p": "0"}).pure
    assert info("RNN", {"mode": "gru"}).arguments == ("data", "parameters", "state")
    assert not info("RNN", {"mode": "lstm", "p": 0.5}).pure
    assert info("BatchNorm", {"fix_gamma": "False"}).hidden_writes == ()
    assert info("BatchNorm", {"fix_gamma": "False"}).is_pure(training=False)
    assert not info("BatchNorm", {"fix_gamma": "False"}).is_pure(training=True)
    assert not info("BatchNorm", {}).is_pure(training=False)
    assert info("Dropout", {"p": 0.5}).is_pure(training=False)
    assert not info("Dropout", {"mode": "always"}).is_pure(training=False)
    assert info("Activation", {"act_type": "relu"}).gradient is Gradient.OUTPUTS
    assert info("Activation", {"act_type": "tanh"}).gradient is Gradient.BOTH
    assert info("relu", {}) is info("relu")


def test_what_training_depends_on() -> None:
    assert info("stop_gradient").stops_gradient
    losses = {entry.name for entry in ENTRIES if entry.loss}
    assert losses == {
        "SoftmaxOutput",
        "LinearRegressionOutput",
        "LogisticRegressionOutput",
        "MAERegressionOutput",
        "SVMOutput",
        "MakeLoss",
        "make_loss",
    }
    assert info("Dropout").mode_dependent
    assert info("BatchNorm").mutates == (3, 4)


@pytest.mark.skipif(not GRAPHS.is_dir(), reason="the collection of real graphs is not here")
def test_real_graphs_are_classified() -> None:
    files = sorted(GRAPHS.glob("*-symbol.json"))
    used = {
        node["op"]
        for file in files
        for node in json.loads(file.read_text(encoding="utf-8"))["nodes"]
        if node["op"] != "null"
    }
    assert len(used) > 40
    assert sorted(op for op in used if not is_known(op)) == []


def test_gluon_is_classified() -> None:
    assert [op for op in GLUON.split() if canonical(op) not in names()] == []


# ---------------------------------------------------------------- MXNet's registry


class Registry:
    """What MXNet says about its operators, through the C interface that its front end uses."""

    def __init__(self) -> None:
        pytest.importorskip("numpy")
        try:
            self.mx = import_mxnet()
        except ImportError as error:
            pytest.skip(str(error))
        from mxnet import base

        self.base = base
        size, array = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
        base.check_call(base._LIB.MXListAllOpNames(ctypes.byref(size), ctypes.byref(array)))
        self.names = [array[at].decode() for at in range(size.value)]

    def handle(self, op: str) -> Any:
        found = self.base.OpHandle()
        self.base.check_call(self.base._LIB.NNGetOpHandle(op.encode(), ctypes.byref(found)))
        return found

    def describe(self, op: str) -> tuple[str, dict[str, str]]:
        """The canonical name, and the type of every argument and attribute by name."""
        name, text, key, returns = (ctypes.c_char_p() for _ in range(4))
        count = ctypes.c_uint()
        columns = [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
        self.base.check_call(
            self.base._LIB.MXSymbolGetAtomicSymbolInfo(
                self.handle(op),
                *(ctypes.byref(out) for out in (name, text, count, *columns, key, returns)),
            )
        )
        kinds = {columns[0][at].decode(): columns[1][at].decode() for at in range(count.value)}
        assert name.value is not None
        return name.value.decode(), kinds

    def compose(self, op: str, attrs: dict[str, str]) -> Any:
        """A symbol of one node called ``n`` whose inputs MXNet creates by itself."""
        symbol = self.base.SymbolHandle()
        count = len(attrs)
        keys = (ctypes.c_char_p * count)(*(key.encode() for key in attrs))
        values = (ctypes.c_char_p * count)(*(value.encode() for value in attrs.values()))
        self.base.check_call(
            self.base._LIB.MXSymbolCreateAtomicSymbol(
                self.handle(op), ctypes.c_uint(count), keys, values, ctypes.byref(symbol)
            )
        )
        node = self.mx.sym.Symbol(symbol)
        node._compose(name="n")
        return node

    def settings(self, op: str) -> list[dict[str, str]]:
        """Attributes that make ``op`` valid, then each of its choices in turn."""
        _, kinds = self.describe(op)
        kinds = {key: kind for key, kind in kinds.items() if not kind.startswith(("NDA", "Symbol"))}
        needed = {key: guess(kind) for key, kind in kinds.items() if "required" in kind}
        needed.update(ATTRS.get(op, {}))
        found = [needed]
        for key, kind in kinds.items():
            if kind.startswith("boolean"):
                found += [{**needed, key: "True"}, {**needed, key: "False"}]
            elif kind.startswith("{") and key not in ("dtype", "ctx"):
                words = kind[1 : kind.index("}")].replace("'", "").split(",")
                found += [{**needed, key: word.strip()} for word in words if "None" not in word]
        return found

    def call(self, op: str, inputs: list[Any], attrs: dict[str, str], out: Any = None) -> Any:
        from mxnet._ctypes.ndarray import _imperative_invoke

        result = _imperative_invoke(
            self.handle(op).value, inputs, list(attrs), list(attrs.values()), out, False, None
        )
        return result[0] if isinstance(result, (list, tuple)) else result

    def backward_needs(self, symbol: Any) -> tuple[bool, bool, bool] | None:
        """Whether the gradient graph reads inputs, outputs, head gradients; None if not known."""
        lib, inputs = self.base._LIB, symbol.list_inputs()
        group = self.mx.sym.Group
        heads = group([self.mx.sym.var(f"head{at}") for at in range(len(symbol.list_outputs()))])
        internals = symbol.get_internals()
        leaves = group([internals[name] for name in inputs])
        graph, done, back = (ctypes.c_void_p() for _ in range(3))
        assert lib.NNGraphCreate(symbol.handle, ctypes.byref(graph)) == 0
        for key, value in (
            (b"grad_ys", symbol),
            (b"grad_ys_out_grad", heads),
            (b"grad_xs", leaves),
        ):
            assert lib.NNGraphSetNodeEntryListAttr_(graph, key, value.handle) == 0
        passes = (ctypes.c_char_p * 1)(b"MXGradient")
        if lib.NNGraphApplyPasses(graph, 1, passes, ctypes.byref(done)) != 0:
            return None
        assert lib.NNGraphGetSymbol(done, ctypes.byref(back)) == 0
        symbol = self.mx.sym.Symbol(self.base.SymbolHandle(back.value))
        nodes = json.loads(symbol.tojson())["nodes"]
        reads = [False, False, False]
        for node in nodes:
            # zeros_like and ones_like look at shapes only
            if node["op"] in ("null", "zeros_like", "ones_like") or node["name"] == "n":
                continue
            for source in (nodes[at] for at, *_ in node["inputs"]):
                reads[0] |= source["name"] in inputs
                reads[1] |= source["name"] == "n"
                reads[2] |= source["name"].startswith("head")
        return reads[0], reads[1], reads[2]


def guess(kind: str) -> str:
    """A value for a required attribute of this type."""
    if kind.startswith("{"):
        return kind[1:].split(",")[0].strip("'} ")
    return "(1,1)" if "Shape" in kind or "tuple" in kind else "1"


ATTRS: dict[str, dict[str, str]] = {
    "Activation": {"act_type": "softsign"},
    "Cast": {"dtype": "float32"},
    "Pad": {"mode": "constant", "pad_width": "(0,0,0,0,1,1,1,1)"},
    "amp_cast": {"dtype": "float32"},
    "broadcast_axis": {"axis": "1", "size": "3"},
    "broadcast_to": {"shape": "(2,3,4)"},
    "clip": {"a_min": "-0.5", "a_max": "0.5"},
    "_np_roll": {"shift": "1"},
    "_npi_broadcast_to": {"shape": "(2,3,4)"},
    "_npi_full_like": {"fill_value": "2"},
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry()


def test_every_name_exists_and_aliases_agree(registry: Registry) -> None:
    registered = set(registry.names)
    ours = {name for entry in ENTRIES for name in (entry.name, *entry.aliases)}
    ours -= GPU_ONLY | {
        "graphopt_fused",
        "graphopt_batch_dot",
    }  # which is there once kernels are loaded
    assert sorted(ours - registered) == []
    wrong = [name for name in ours if registry.describe(name)[0] != canonical(name)]
    assert wrong == []


def test_coverage_of_the_registry(registry: Registry) -> None:
    forward = [name for name in registry.names if "backward" not in name]
    known = [name for name in forward if is_known(name)]
    opaque = [name for name in known if info(name).kind is Kind.OPAQUE]
    pure = [name for name in known if info(name).pure]
    sys.stdout.write(
        f"\n{len(known)} of {len(forward)} forward names classified "
        f"({len(names())} operators), {len(pure)} pure, {len(opaque)} opaque\n"
    )
    assert len(known) / len(forward) > 0.98


def test_arguments_and_auxiliary_states(registry: Registry) -> None:
    checked = set()
    for entry in (entry for entry in ENTRIES if entry.arguments and entry.name not in GPU_ONLY):
        for attrs in registry.settings(entry.name):
            try:
                symbol = registry.compose(entry.name, attrs)
            except registry.mx.MXNetError:  # this setting alone is not valid
                continue
            found = tuple(name.removeprefix("n_") for name in symbol.list_inputs())
            narrowed = info(entry.name, attrs)
            assert narrowed.name == entry.name
            assert set(narrowed.arguments) <= set(entry.arguments)
            if found != narrowed.arguments:
                assert entry.name in FREE_INPUTS, (entry.name, attrs, found)
                assert found == narrowed.arguments[: len(found)]
            states = symbol.list_auxiliary_states()
            assert [symbol.list_inputs()[at] for at in narrowed.mutates] == states, entry.name
            checked.add(entry.name)
    assert len(checked) > 400


# Their number of inputs hangs on attributes in ways not worth a rule.
FREE_INPUTS = {"_npi_bincount", "_npi_delete", "_npi_ediff1d"}


def test_gradients(registry: Registry) -> None:
    checked = set()
    for entry in (entry for entry in ENTRIES if entry.arguments and entry.name not in GPU_ONLY):
        for attrs in registry.settings(entry.name):
            try:
                symbol = registry.compose(entry.name, attrs)
            except registry.mx.MXNetError:
                continue
            needs = registry.backward_needs(symbol)
            if needs is None:
                continue
            checked.add(entry.name)
            inputs, outputs, heads = needs
            narrowed = info(entry.name, attrs)
            assert narrowed.gradient.needs_inputs >= inputs, (entry.name, attrs)
            assert narrowed.gradient.needs_outputs >= outputs, (entry.name, attrs)
            if any(needs):
                assert narrowed.gradient is not Gradient.NONE, entry.name
                assert narrowed.loss == (not heads), (entry.name, attrs)
    assert len(checked) > 350


# ---------------------------------------------------------------- MXNet's behaviour

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
