"""``graphopt opt``."""

from __future__ import annotations

import json
import os
import re

import numpy as np
import pytest

CONSTANT_NET = """\
graph folds(%data: f32[2,3]) {
  %steps = _arange() {start=0.0, stop=3.0} : f32[3]
  %twice = _mul_scalar(%steps) {scalar=2.0} : f32[3]
  %y = broadcast_add(%data, %twice) : f32[2,3]
  return %y
}
"""
CLEAN = """\
graph net(%data: f32[2,4], param %weight: f32[3,4], param %bias: f32[3]) {
  %fc = FullyConnected(%data, %weight, %bias) {num_hidden=3} : f32[2,3]
  %left = relu(%fc) : f32[2,3]
  %sum = elemwise_add(%left, %left) : f32[2,3]
  return %sum
}
"""


@pytest.fixture
def folds(tmp_path):
    """A model in which a pass makes a constant."""
    path = tmp_path / "folds.gir"
    path.write_text(CONSTANT_NET)
    return path


def test_text_on_stdout(graphopt, net):
    assert graphopt("opt", net, "-p", "dce,cse") == (0, CLEAN, "")


def test_text_can_be_read_again(graphopt, net, tmp_path):
    path = tmp_path / "out.gir"
    ran = graphopt("opt", net, "-p", "dce,cse", "-o", path)
    assert ran == (0, "", f"wrote {path}\n")
    assert path.read_text() == CLEAN
    assert graphopt("opt", path, "-p", "dce,cse").out == CLEAN
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".tmp")] == []


def test_stop_after(graphopt, net):
    ran = graphopt("opt", net, "-p", "dce,cse,dce", "--stop-after", "dce")
    assert "%right" in ran.out
    assert "%unused" not in ran.out


def test_json_loads_in_plain_mxnet(graphopt, net, tmp_path, mx):
    path = tmp_path / "out-symbol.json"
    assert graphopt("opt", net, "-p", "dce,cse", "-o", path).code == 0
    symbol = mx.sym.load(str(path))
    assert symbol.list_arguments() == ["data", "weight", "bias"]
    assert not (tmp_path / "out-0000.params").exists()


def test_json_on_stdout(graphopt, net):
    ran = graphopt("opt", net, "-p", "dce,cse", "--emit", "json")
    assert [n["op"] for n in json.loads(ran.out)["nodes"]][-1] == "elemwise_add"


def test_constants_go_into_a_params_file(graphopt, folds, tmp_path, mx):
    path = tmp_path / "out-symbol.json"
    ran = graphopt("opt", folds, "-p", "fold-constants,dce", "-o", path)
    params = tmp_path / "out-0000.params"
    assert ran == (0, "", f"wrote {path}\nwrote {params}\n")
    arrays = mx.nd.load(str(params))
    assert {k: v.asnumpy().tolist() for k, v in arrays.items()} == {"arg:twice": [0.0, 2.0, 4.0]}
    symbol = mx.sym.load(str(path))
    data = np.ones((2, 3), "float32")
    (found,) = symbol.eval(data=mx.nd.array(data), twice=arrays["arg:twice"])
    np.testing.assert_array_equal(found.asnumpy(), [[1, 3, 5], [1, 3, 5]])


def test_constants_cannot_go_into_json_on_stdout(graphopt, folds):
    ran = graphopt("opt", folds, "-p", "fold-constants,dce", "--emit", "json")
    assert (ran.code, ran.out) == (2, "")
    assert "the result has 1 computed tensors" in ran.err
    assert "-o FILE" in ran.err


def test_given_parameters_go_along(graphopt, net, tmp_path, mx):
    given = tmp_path / "given.params"
    arrays = {"arg:weight": mx.nd.ones((3, 4)), "arg:bias": mx.nd.ones(3)}
    mx.nd.save(str(given), arrays)
    path = tmp_path / "out.json"
    assert graphopt("opt", net, "-p", "dce", "--params", given, "-o", path).code == 0
    assert sorted(mx.nd.load(str(tmp_path / "out.params"))) == ["arg:bias", "arg:weight"]


@pytest.mark.parametrize(("mode", "left"), [("inference", 1), ("training", 2)])
def test_what_depends_on_given_parameters_is_computed(graphopt, tmp_path, mx, mode, left):
    model = tmp_path / "net.gir"
    model.write_text("""\
graph net(%data: f32[2,3], param %weight: f32[4,3], param %bias: f32[4]) {
  %half = _mul_scalar(%weight) {scalar=0.5} : f32[4,3]
  %y = FullyConnected(%data, %half, %bias) {num_hidden=4} : f32[2,4]
  return %y
}
""")
    given = tmp_path / "given.params"
    mx.nd.save(str(given), {"arg:weight": mx.nd.ones((4, 3)), "arg:bias": mx.nd.ones(4)})
    argv = ("-p", "none", "--mode", mode, "--params", given)
    assert graphopt("opt", model, *argv, "-o", tmp_path / "out-symbol.json").code == 0
    symbol = mx.sym.load(str(tmp_path / "out-symbol.json"))
    arrays = mx.nd.load(str(tmp_path / "out-0000.params"))
    arrays = {key.split(":")[1]: array for key, array in arrays.items()}
    assert sum(n["op"] != "null" for n in json.loads(symbol.tojson())["nodes"]) == left
    assert set(symbol.list_arguments()) == {"data", *arrays}
    assert symbol.infer_shape(data=(2, 3))[1] == [(2, 4)]
    (found,) = symbol.eval(data=mx.nd.ones((2, 3)), **arrays)
    np.testing.assert_array_equal(found.asnumpy(), np.full((2, 4), 2.5))


def test_dot(graphopt, net, tmp_path):
    out = graphopt("opt", net, "-p", "dce,cse", "--emit", "dot").out
    assert out.startswith('digraph "net" {\n')
    assert '[label="relu\\nleft"' in out
    assert out.count(" -> ") == 7
    path = tmp_path / "out.dot"
    graphopt("opt", net, "-p", "dce,cse", "-o", path)
    assert path.read_text() == out


def test_json_report(graphopt, net, tmp_path):
    found = json.loads(graphopt("opt", net, "-p", "dce,cse", "--json").out)
    assert found["text"] + "\n" == CLEAN
    assert [r["status"] for r in found["receipts"]] == ["changed", "changed"]
    assert found["output"] is None
    path = tmp_path / "out.gir"
    found = json.loads(graphopt("opt", net, "-p", "dce,cse", "--json", "-o", path).out)
    assert (found["output"], found["text"]) == (str(path), None)


@pytest.mark.parametrize("form", [[], ["--emit", "json"], ["--emit", "dot"]])
def test_the_input_is_never_overwritten(graphopt, net, form):
    before = net.read_text()
    ran = graphopt("opt", net, "-p", "dce", "-o", net, *form)
    assert (ran.code, ran.out) == (2, "")
    assert "would overwrite the input" in ran.err
    assert net.read_text() == before


def test_the_parameters_are_never_overwritten(graphopt, net, tmp_path, mx):
    given = tmp_path / "net-0000.params"
    mx.nd.save(str(given), {"arg:weight": mx.nd.ones((3, 4)), "arg:bias": mx.nd.ones(3)})
    out = tmp_path / "net-symbol.json"
    ran = graphopt("opt", net, "-p", "dce", "--params", given, "-o", out)
    assert ran.code == 2
    assert "would overwrite the input" in ran.err


def test_the_graph_does_not_take_the_file_of_its_parameters(graphopt, folds, tmp_path):
    path = tmp_path / "net.params"
    ran = graphopt("opt", folds, "-p", "fold-constants", "--emit", "json", "-o", path)
    assert (ran.code, ran.out) == (2, "")
    assert "is where the parameters go; name the graph's file *.json" in ran.err
    assert not path.exists()


def test_targets_that_cannot_be_written(graphopt, net, tmp_path):
    ran = graphopt("opt", net, "-p", "none", "-o", tmp_path)
    assert ran == (2, "", f"graphopt opt: error: -o: '{tmp_path}' is a folder\n")
    ran = graphopt("opt", net, "-p", "none", "-o", tmp_path / "no" / "out.gir")
    assert ran == (2, "", f"graphopt opt: error: -o: there is no folder '{tmp_path / 'no'}'\n")


def test_a_link_is_written_through(graphopt, net, tmp_path):
    path, link = tmp_path / "kept" / "out.gir", tmp_path / "link.gir"
    path.parent.mkdir()
    link.symlink_to(path)
    for before in (None, "old"):
        if before is not None:
            path.write_text(before)
        assert graphopt("opt", net, "-p", "dce,cse", "-o", link).code == 0
        assert link.is_symlink()
        assert path.read_text() == CLEAN
    assert list(path.parent.iterdir()) == [path]
    path.unlink()
    path.parent.rmdir()
    ran = graphopt("opt", net, "-p", "none", "-o", link)
    assert ran == (2, "", f"graphopt opt: error: -o: there is no folder '{path.parent}'\n")


def test_a_named_pipe_is_written_to(graphopt, net, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)) as reading:
        assert graphopt("opt", net, "-p", "dce,cse", "-o", pipe).code == 0
        assert reading.read() == CLEAN
    assert pipe.is_fifo()


def test_a_pipe_of_the_shell_is_written_to(graphopt, net):
    """As for ``-o >(gzip > out.gz)``."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as pipe:
        assert graphopt("opt", net, "-p", "dce,cse", "-o", f"/dev/fd/{writing}").code == 0
        os.close(writing)
        assert pipe.read() == CLEAN


def test_no_tensors_go_beside_a_pipe(graphopt, folds, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ran = graphopt("opt", folds, "-p", "fold-constants", "--emit", "json", "-o", pipe)
    assert (ran.code, ran.out) == (2, "")
    assert f"no .params file can lie beside '{pipe}'; name a file" in ran.err
    assert list(tmp_path.glob("*.params")) == []


def test_a_failed_write_leaves_the_old_file(graphopt, net, tmp_path, monkeypatch):
    path = tmp_path / "out.gir"
    path.write_text("old")

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_text", full)
        ran = graphopt("opt", net, "-p", "none", "-o", path)
    assert (ran.code, ran.out) == (1, "")
    assert "No space left on device" in ran.err
    assert path.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.gir", "out.gir"]


def test_print_ir_after(graphopt, net):
    changed = graphopt("opt", net, "-p", "dce,dce,cse", "--print-ir-after", "changed").err
    assert re.findall(r"// after (.*)", changed) == [
        "eliminate-dead-code",
        "eliminate-common-subexpressions",
    ]
    assert changed.endswith(CLEAN)
    every = graphopt("opt", net, "-p", "dce,dce,cse", "--print-ir-after", "all").err
    assert every.count("// after") == 3
    named = graphopt("opt", net, "-p", "dce,cse", "--print-ir-after", "cse").err
    assert named.count("// after") == 1


@pytest.mark.usefixtures("wrong_passes")
def test_a_pass_that_fails_is_reported_and_1(graphopt, net):
    ran = graphopt("opt", net, "-p", "dce,crash,cse", "--print-ir-after", "failed")
    assert (ran.code, ran.out) == (1, CLEAN)
    assert ran.err.startswith("// crash failed: on purpose\ngraph net(")
    assert ran.err.endswith("rolled back: crash: ValueError: on purpose\n")


@pytest.mark.usefixtures("wrong_passes")
def test_strict_stops(graphopt, net):
    ran = graphopt("opt", net, "-p", "dce,crash,cse", "--strict")
    assert (ran.code, ran.out) == (1, "")
    assert "crash failed on graph 'net' after [eliminate-dead-code]" in ran.err


@pytest.mark.usefixtures("wrong_passes")
def test_check_numerics(graphopt, net):
    assert graphopt("opt", net, "-p", "dce,cse", "--check-numerics").code == 0
    ran = graphopt("opt", net, "-p", "dce,double,cse", "--check-numerics")
    assert (ran.code, ran.out) == (1, CLEAN)
    assert "rolled back: double: double changed output0 beyond" in ran.err
    assert graphopt("opt", net, "-p", "double").code == 0, "nothing was checked"


def test_dump_dir(graphopt, net, tmp_path):
    folder = tmp_path / "dump"
    assert graphopt("opt", net, "-p", "dce,cse", "--dump-dir", folder).code == 0
    assert sorted(p.name for p in folder.iterdir()) == [
        "000_input.gir",
        "001_eliminate-dead-code.gir",
        "002_eliminate-common-subexpressions.gir",
    ]
    ran = graphopt("opt", net, "-p", "dce", "--dump-dir", net)
    assert ran == (2, "", f"graphopt opt: error: --dump-dir: '{net}' is no folder\n")


def test_timing_and_statistics(graphopt, net):
    ran = graphopt("opt", net, "-p", "dce,cse", "--timing", "--stats")
    assert ran.out == CLEAN
    lines = [line.split() for line in ran.err.splitlines()]
    assert lines[0] == ["pass", "status", "pass", "ms", "check", "ms"]
    assert lines[1][:2] == ["eliminate-dead-code", "changed"]
    assert lines[3][0] == "(total)"
    assert lines[4] == ["pass", "statistic", "count"]


def test_remarks(graphopt, net):
    ran = graphopt(
        "opt", net, "-p", "dce,fold-batch-norm", "--remarks", "all", "--mode", "training"
    )
    assert "missed: fold-batch-norm: it would change what training computes" in ran.err
    assert "passed: eliminate-dead-code:" in ran.err
    ran = graphopt("opt", net, "-p", "dce", "--remarks=passed,missed")
    assert "passed: eliminate-dead-code:" in ran.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-p", "dcee"], "unknown pass 'dcee'; did you mean 'dce'?"),
        (["-p", "dce{size=1}"], "pass 'eliminate-dead-code' has no option 'size'"),
        (["-p", "dce,"], "pipeline 'dce,': expected a pass name at ''"),
        (["-p", "dce", "--stop-after", "cse"], "not in the pipeline (eliminate-dead-code)"),
        (["-p", "dce", "--stop-after", "dec"], "unknown pass 'dec'; did you mean 'dce'?"),
        (["-p", "dce", "--print-ir-after", "chnged"], "unknown pass 'chnged'"),
        (["-p", "dce", "--remarks", "mised"], "unknown kind 'mised'; did you mean 'missed'?"),
        (["-p", "dce", "--emit", "xml"], "'xml' is not one of 'text', 'json', 'dot'"),
        (["-p", "dce", "--mode", "infer"], "'infer' is not one of 'inference', 'training'"),
    ],
)
def test_wrong_usage(graphopt, net, argv, message):
    ran = graphopt("opt", net, *argv)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("graphopt opt: error: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1


@pytest.fixture
def contradictory(mx, tmp_path):
    """A layer whose weight is its bias: MXNet infers a shape, and refuses it the second time."""
    weight = mx.sym.var("weight")
    layer = mx.sym.FullyConnected(mx.sym.var("data"), weight, weight, num_hidden=4, name="fc")
    path = tmp_path / "contradictory-symbol.json"
    layer.save(str(path))
    return path


@pytest.mark.parametrize("more", [[], ["--strict"], ["--json"]])
@pytest.mark.parametrize("verb", ["opt", "explain"])
def test_types_that_contradict(graphopt, contradictory, verb, more):
    if verb == "explain" and "--strict" in more:
        return
    ran = graphopt(verb, contradictory, "--shape", "data:2,4", *more)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(
        "graphopt: error: inputs of node 'fc' (FullyConnected) do not fit:"
        " (f32[2,4], f32[4], f32[4]); MXNet: "
    )
    assert ran.err.count("\n") == 1


def test_too_few_inputs(graphopt, tmp_path):
    path = tmp_path / "few.gir"
    path.write_text("graph net(%x: f32[2]) { %y = broadcast_add(%x) : f32[2] return %y }")
    ran = graphopt("opt", path)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[0] == (
        "graphopt: error: node 'y' of graph 'net' is malformed:"
        " broadcast_add takes 2 inputs (lhs, rhs), not 1"
    )
