"""The operator table against itself, and against what real graphs have."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from graphopt.ir.ops import Gradient, Kind, OpInfo, canonical, info, is_known, names
from tests.ir.ops_support import ENTRIES

REPOSITORY = Path(__file__).resolve().parents[2]
GRAPHS = REPOSITORY.parent / "shared" / "data" / "symbols" / "graphs"

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
