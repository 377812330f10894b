"""The argument MODEL: what can be given, and what is said of what cannot."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphopt.backend.symbol import to_json
from graphopt.compat import import_mxnet
from graphopt.ir.parser import parse
from tests.places import REPOSITORY

NONE = ("-p", "none")


def stdin(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_text_on_stdin(graphopt, net, monkeypatch):
    stdin(monkeypatch, net.read_text())
    assert graphopt("opt", "-", *NONE).out == net.read_text()


def test_json_on_stdin(graphopt, net, monkeypatch):
    stdin(monkeypatch, to_json(parse(net.read_text())))
    ran = graphopt("opt", "-", *NONE, "--shape", "data:2,4")
    assert ran.out.startswith("graph stdin(%data: f32[2,4], param %weight: f32[3,4]")


@pytest.mark.parametrize("text", ["", "\n"])
def test_nothing_on_stdin(graphopt, monkeypatch, text):
    stdin(monkeypatch, text)
    ran = graphopt("opt", "-", *NONE)
    assert (ran.code, ran.err) == (1, "graphopt: error: stdin is empty\n")


def test_json_file_with_shapes_and_dtypes(graphopt, net_json):
    out = graphopt("opt", net_json, *NONE, "--shape", "data:5,4", "--dtype", "data:float64").out
    assert out.startswith("graph net(%data: f64[5,4], param %weight: f64[3,4]")
    assert ": f64[5,3]" in out


def test_text_with_other_shapes(graphopt, net):
    out = graphopt("opt", net, *NONE, "--shape", "data:7,4").out
    assert out.startswith("graph net(%data: f32[7,4]")
    assert "%sum = elemwise_add(%left, %right) : f32[7,3]" in out


def test_inputs_that_no_memory_holds(graphopt, tmp_path):
    net = tmp_path / "net.gir"
    net.write_text("graph net(%x: f32[2,2]) {\n  %y = relu(%x) : f32[2,2]\n  return %y\n}\n")
    ran = graphopt("inspect", net, "-p", "dce", "--shape", f"x:{10**8},{10**8}")
    assert ran.code == 1
    assert "graphopt: error: not enough memory: Unable to allocate 71.1 PiB" in ran.err


def test_inputs_that_no_array_holds(graphopt, tmp_path):
    net = tmp_path / "net.gir"
    net.write_text("graph net(%x: f32[2,2]) {\n  %y = relu(%x) : f32[2,2]\n  return %y\n}\n")
    ran = graphopt("inspect", net, "-p", "dce", "--shape", f"x:{2**31 - 1},{2**31 - 1}")
    assert ran.code == 1
    told = "not enough memory: input 'x' has type f32[2147483647,2147483647]"
    assert f"graphopt: error: {told}\n" in ran.err


def test_types_that_contradict(graphopt, net):
    ran = graphopt("opt", net, *NONE, "--shape", "data:7,5")
    assert (ran.code, ran.out) == (1, "")
    assert "'fc'" in ran.err or "fc" in ran.err


def test_zoo(graphopt):
    ran = graphopt("opt", "model_zoo:mobilenet0.25", *NONE, "--shape", "data:1,3,64,64")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(
        "graph mobilenet0_25(\n  %data: f32[1,3,64,64],\n  param %mobilenet0_25_"
    )


def test_zoo_knows_its_shape(graphopt):
    ran = graphopt("opt", "model_zoo:inceptionv3", *NONE)
    assert ran.code == 0
    assert ran.err == "--shape data:1,3,299,299 is assumed\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet51_v1",
            "unknown model of Gluon's model zoo 'resnet51_v1'; did you mean 'resnet50_v1'?",
        ),
        ("xyzzy", "unknown model of Gluon's model zoo 'xyzzy'"),
    ],
)
def test_unknown_zoo_model(graphopt, name, message):
    assert graphopt("opt", f"model_zoo:{name}", *NONE) == (
        2,
        "",
        f"graphopt opt: error: {message}\n",
    )


def test_missing_file(graphopt, net):
    wrong = net.with_name("nett.gir")
    ran = graphopt("inspect", wrong, *NONE)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"graphopt inspect: error: cannot read '{wrong}': No such file or directory;"
        f" did you mean '{net}'?\n"
    )


def test_the_prefix_of_exported_files(graphopt, net_json):
    ran = graphopt("inspect", str(net_json).removesuffix("-symbol.json"))
    assert ran.code == 2
    assert ran.err.endswith(f"; did you mean {str(net_json)!r}?\n")


def test_parameters_for_a_model(graphopt, params):
    ran = graphopt("inspect", params(arg__weight=np.ones(3)))
    assert ran.code == 1
    assert "give it with --params, and as MODEL its *-symbol.json" in ran.err


def test_folder(graphopt, net, tmp_path):
    ran = graphopt("inspect", tmp_path, *NONE)
    assert ran == (2, "", f"graphopt inspect: error: cannot read '{tmp_path}': it is a folder\n")
    ran = graphopt("inspect", net, *NONE, "--params", tmp_path)
    assert ran == (2, "", f"graphopt inspect: error: cannot read '{tmp_path}': it is a folder\n")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "", "a.json is not valid JSON"),
        ("a.json", "graph", "a.json is not valid JSON"),
        ("a.json", "{}", "a.json is malformed: it has no list 'nodes'"),
        ("a.json", '{"nodes": [{"op": 1}], "heads": [[0, 0, 0]]}', "node 0 has no text 'op'"),
        ("a.gir", "", "a.gir: line 1: expected 'graph'"),
        ("a.gir", "graph a(%x: f32[2]) {", "a.gir: line 1: expected"),
        ("a.gir", "graph a(%x: f32[2]) {\n  return %y\n}", "a.gir: line 2:"),
        ("a.txt", "[1, 2]", "a.txt is malformed"),
    ],
)
def test_malformed(graphopt, tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    ran = graphopt("inspect", path, *NONE)
    assert (ran.code, ran.out) == (1, "")
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_not_text(graphopt, tmp_path):
    path = tmp_path / "a.gir"
    path.write_bytes(b"\xff\xfe\x00")
    assert graphopt("opt", path, *NONE) == (1, "", f"graphopt: error: {path} is no UTF-8 text\n")


def test_operator_mxnet_does_not_know(graphopt, net_json):
    document = json.loads(net_json.read_text())
    document["nodes"][-1]["op"] = "NoSuchOperator"
    net_json.write_text(json.dumps(document))
    ran = graphopt("opt", net_json, *NONE)
    assert (ran.code, ran.out) == (1, "")
    assert "NoSuchOperator" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--shape", "1,3"], "'1,3' names no input; write for example data:1,3,224,224"),
        (["--shape", "data:"], "'' is no shape"),
        (["--shape", "data:2x4"], "'2x4' is no shape; extents are positive whole numbers"),
        (["--shape", "data:2,-4"], "'2,-4' is no shape"),
        (["--shape", "data:2,0"], "'2,0' is no shape"),
        (["--shape", "data:2147483648,4"], "'2147483648,4' is no shape"),
        (["--shape", "dta:2,4"], "unknown input 'dta'; did you mean 'data'?"),
        (["--shape", "data:2,4", "--shape", "data:3,4"], "input 'data' is given twice"),
        (["--dtype", "float16"], "'float16' names no input; write for example data:float16"),
        (["--dtype", "data:float17"], "unknown dtype 'float17'; did you mean 'float16'?"),
        (["--dtype", "dat:float16"], "unknown input 'dat'; did you mean 'data'?"),
    ],
)
@pytest.mark.parametrize("form", ["net", "net_json"])
def test_wrong_types(graphopt, request, form, argv, message):
    ran = graphopt("opt", request.getfixturevalue(form), *NONE, *argv)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


@pytest.fixture
def params(tmp_path, mx):
    """Writes a file of parameters."""

    def write(**arrays):
        path = tmp_path / "given.params"
        mx.nd.save(str(path), {key.replace("__", ":"): mx.nd.array(a) for key, a in arrays.items()})
        return path

    return write


def test_params(graphopt, net, params):
    path = params(arg__weight=np.ones((3, 4)), arg__bias=np.ones(3), arg__other=np.ones(1))
    ran = graphopt("bisect", net, "-p", "dce,cse", "--params", path)
    assert ran.code == 0
    assert ran.err == f"parameters are those of {path}, data is random (--seed 0)\n"


@pytest.mark.parametrize("verb", ["bisect", "inspect"])
def test_a_seed_below_zero(graphopt, net, verb):
    ran = graphopt(verb, net, "--seed", -5)
    assert (ran.code, ran.out) == (2, "")
    assert "-5 is not in the range x>=0" in ran.err


def test_params_that_miss_one(graphopt, net, params):
    path = params(arg__weight=np.ones((3, 4)))
    ran = graphopt("bisect", net, "-p", "dce", "--params", path)
    assert ran == (1, "", f"graphopt: error: {path} has no parameter 'bias'\n")


def test_params_of_a_checkpoint_have_no_labels(graphopt, tmp_path):
    mx = import_mxnet()
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(symbol, name="softmax"))
    module.bind([("data", (2, 4))], [("softmax_label", (2,))])
    module.init_params()
    module.save_checkpoint(str(tmp_path / "net"), 1)
    given = tmp_path / "net-symbol.json", "--shape", "data:2,4"
    path = tmp_path / "net-0001.params"
    ran = graphopt("inspect", *given, "--params", path, "--no-run")
    assert (ran.code, ran.err) == (0, "")
    ran = graphopt("bisect", *given, "-p", "dce", "--params", path)
    assert ran.code == 0
    assert ran.err == f"parameters are those of {path}, data is random (--seed 0)\n"


def test_params_of_a_net_without_any(graphopt, tmp_path, params):
    net = tmp_path / "net.gir"
    net.write_text("graph net(%x: f32[2]) {\n  %y = relu(%x) : f32[2]\n  return %y\n}\n")
    path = params()
    ran = graphopt("bisect", net, "-p", "dce", "--params", path)
    assert ran.code == 0
    assert ran.err == f"parameters are those of {path}, data is random (--seed 0)\n"


def test_params_of_another_shape(graphopt, net, params):
    path = params(arg__weight=np.ones((3, 5)), bias=np.ones(3))
    ran = graphopt("bisect", net, "-p", "dce", "--params", path)
    assert ran.code == 1
    assert f"parameter 'weight' has shape (3, 5) in {path}, but (3, 4) in the model" in ran.err


def test_params_that_are_none(graphopt, net):
    ran = graphopt("bisect", net, "-p", "dce", "--params", net)
    assert ran == (
        1, "", f"graphopt: error: {net} is no file of parameters that MXNet can read\n"
    )  # fmt: skip
    ran = graphopt("bisect", net, "-p", "dce", "--params", "missing.params")
    assert ran.code == 2
    assert "cannot read 'missing.params'" in ran.err


@pytest.mark.parametrize("part", [slice(None), slice(100), slice(0)], ids=["all", "cut", "none"])
def test_params_from_a_pipe_of_the_shell(graphopt, net, params, part):
    """As for ``--params <(zcat given.params.gz)``."""
    whole = params(arg__weight=np.ones((3, 4)), arg__bias=np.ones(3)).read_bytes()
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb") as pipe:
        pipe.write(whole[part])
        pipe.close()
        path = f"/dev/fd/{reading}"
        ran = graphopt("bisect", net, "-p", "dce,cse", "--params", path)
    if part == slice(None):
        assert ran.code == 0
        assert ran.err == f"parameters are those of {path}, data is random (--seed 0)\n"
    else:
        told = f"graphopt: error: {path} is no file of parameters that MXNet can read\n"
        assert ran == (1, "", told)


def test_params_with_names_that_are_no_text(graphopt, net, params):
    path = params(arg__weight=np.ones((3, 4)), arg__bias=np.ones(3))
    path.write_bytes(path.read_bytes().replace(b"arg:weight", b"arg:w\xffight"))
    ran = graphopt("bisect", net, "-p", "dce", "--params", path)
    assert ran == (
        1, "", f"graphopt: error: {path} is no file of parameters that MXNet can read\n"
    )  # fmt: skip


def test_parameters_saved_by_a_block(graphopt, tmp_path, mx):
    """``save_parameters`` names them by their place in the Block."""
    block = mx.gluon.model_zoo.vision.mobilenet0_25()
    block.initialize()
    block(mx.nd.zeros((1, 3, 64, 64)))
    path = tmp_path / "block.params"
    block.save_parameters(str(path))
    argv = ("--shape", "data:1,3,64,64", "-p", "dce", "--params", path)
    assert graphopt("bisect", "model_zoo:mobilenet0_25", *argv).code == 0


@pytest.mark.parametrize("verb", ["view", "bisect"])
def test_names_of_files_that_are_no_text(graphopt, net_json, tmp_path, verb):
    path = net_json.rename(tmp_path / os.fsdecode(b"b\xffad-symbol.json"))
    page = tmp_path / "page.html"
    more = ("-o", page, "--no-run") if verb == "view" else ()
    ran = graphopt(verb, path, "-p", "dce", "--shape", "data:2,4", *more)
    assert ran.code == 0
    told = page.read_text(encoding="utf-8") if verb == "view" else ran.out
    assert r"b\udcffad" in told


def test_parameters_in_a_file_whose_name_is_no_text(graphopt, net, params, tmp_path):
    path = params(weight=np.ones((3, 4)), bias=np.ones(3)).rename(
        tmp_path / os.fsdecode(b"b\xffad.params")
    )
    ran = graphopt("opt", net, *NONE, "--params", path)
    assert (ran.code, ran.out) == (1, "")
    assert "no file whose name is not UTF-8, as " in ran.err
    assert "rename it" in ran.err


def test_parameters_where_names_of_files_are_not_decoded(net, params, tmp_path):
    """As in the locale C, without its coercion to UTF-8."""
    path = params(weight=np.ones((3, 4)), bias=np.ones(3)).rename(tmp_path / "ü.params")
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "graphopt", "opt", net, *NONE, "--params", path]
    done = subprocess.run(command, env=env, cwd=REPOSITORY, capture_output=True, check=False)
    assert (done.returncode, done.stderr.count(b"error")) == (0, 0)


@pytest.mark.parametrize("verb", ["inspect", "view"])
def test_params_are_looked_at_though_nothing_runs(graphopt, net, tmp_path, verb):
    page = tmp_path / "page.html"
    more = ("-o", page) if verb == "view" else ()
    ran = graphopt(verb, net, "-p", "dce", "--no-run", "--params", tmp_path / "none", *more)
    assert ran.code == 2
    assert "there is no such file" in ran.err
    assert not page.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_device_that_is_full_is_named(graphopt, net):
    ran = graphopt("opt", net, *NONE, "-o", "/dev/full")
    assert (ran.code, ran.err) == (
        1,
        "graphopt: error: cannot write '/dev/full': No space left on device\n",
    )
