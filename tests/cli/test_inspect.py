"""``graphopt inspect``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from graphopt.api.inspecting import inspect
from graphopt.compat import import_mxnet
from graphopt.ir.parser import parse
from tests.places import REPOSITORY

RANDOM = "parameters and data are random (--seed 0); --params FILE gives real ones\n"


def masked(text: str) -> str:
    """Times replaced by #; so the width of columns does not count."""
    return re.sub(r" +", " ", re.sub(r"\d+\.\d(?= |$)", "#", text, flags=re.MULTILINE))


def test_table_without_running(graphopt, net):
    ran = graphopt(
        "inspect", net, "-p", "dce,cse,fold-batch-norm", "--mode", "training", "--no-run"
    )
    assert (ran.code, ran.err) == (0, "")
    assert masked(ran.out) == masked("""\
pass status nodes calls parameters MB pass ms run ms original ms speed-up max error engine
(as lifted) 5 5 15 0.00
eliminate-dead-code changed 4 4 15 0.00 1.1
eliminate-common-subexpressions changed 3 3 15 0.00 1.1
fold-batch-norm refused 3 3 15 0.00 1.1
(total) 2 of 3 3 3 15 0.00 1.1
refused: fold-batch-norm: it would change what training computes
""")


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_json_of_a_run(graphopt, net, mode):
    argv = ("-p", "dce,cse", "--mode", mode, "--seconds", 0, "--json")
    ran = graphopt("inspect", net, *argv)
    assert (ran.code, ran.err) == (0, RANDOM)
    found = json.loads(ran.out)
    assert (found["graph"], found["mode"]) == ("net", mode)
    first, dce, cse = found["rows"]
    assert (first["name"], first["nodes"], first["intermediate_bytes"]) == ("(as lifted)", 5, 96)
    assert (dce["status"], dce["nodes"]) == ("changed", 4)
    assert cse["max_error"] == 0.0
    for row in found["rows"]:
        assert row["run_ms"] > 0
        assert row["engine"]
    assert found["total"]["nodes"] == 3
    assert found["total"]["speed_up"] == cse["original_ms"] / cse["run_ms"]
    assert [r["pass"] for r in found["remarks"]] == [
        "eliminate-dead-code",
        "eliminate-common-subexpressions",
    ]


@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_training_without_parameters(graphopt, tmp_path, dtype):
    """Gradients are those of data, or there are none."""
    net = tmp_path / "net.gir"
    net.write_text(
        f"graph net(%x: {dtype}[2], %y: {dtype}[2]) {{\n"
        f"  %z = elemwise_mul(%x, %y) : {dtype}[2]\n  return %z\n}}\n"
    )
    ran = graphopt("inspect", net, "-p", "dce", "--mode", "training", "--seconds", "0", "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["rows"][0]["run_ms"] > 0


def test_a_process_prints_json_and_no_word_of_mxnet(net):
    """As users run it: here MXNet may have read its settings in a test before."""
    settings = {name: it for name, it in os.environ.items() if name != "MXNET_SUBGRAPH_VERBOSE"}
    ran = subprocess.run(
        [sys.executable, "-m", "graphopt", "inspect", net, "-p", "dce", "--seconds", "0", "--json"],
        cwd=REPOSITORY,
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, RANDOM)
    assert json.loads(ran.stdout)["rows"][0]["run_ms"] > 0


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_what_is_no_time(graphopt, net, seconds):
    ran = graphopt("inspect", net, "--seconds", seconds)
    assert (ran.code, ran.out) == (2, "")
    assert "Invalid value for '--seconds'" in ran.err


def test_a_pass_that_changes_nothing_is_not_timed(graphopt, net):
    found = json.loads(graphopt("inspect", net, "-p", "dce,dce", "--seconds", 0, "--json").out)
    assert found["rows"][2]["status"] == "unchanged"
    assert found["rows"][2]["run_ms"] is None


def test_what_changed_nothing_is_counted(graphopt, net):
    lines = graphopt("inspect", net, "--no-run").out.splitlines()
    every = graphopt("inspect", net, "--no-run", "--all").out.splitlines()
    assert not [line for line in lines if "unchanged" in line]
    assert lines[-1] == f"{len(every) - len(lines) + 1} passes changed nothing; --all shows them"


@pytest.mark.usefixtures("wrong_passes")
def test_a_wrong_pass_is_rolled_back_and_1(graphopt, net):
    ran = graphopt("inspect", net, "-p", "dce,double,crash,cse", "--seconds", 0)
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert re.match(r"double +rolled back +4 ", lines[3])
    assert re.match(r"crash +rolled back +4 ", lines[4])
    assert re.match(r"eliminate-common-subexpressions +changed +3 ", lines[5])
    assert lines[7].startswith("rolled back: double: double changed output0 beyond rtol")
    assert lines[8] == "rolled back: crash: ValueError: on purpose"


def test_integer_and_several_outputs(graphopt, tmp_path):
    path = tmp_path / "several.gir"
    path.write_text("""\
graph several(%x: f32[4,6]) {
  %top = topk(%x) {axis=1, dtype="int32", k=2, ret_typ="indices"} : i32[4,2]
  %halves = SliceChannel(%x) {axis=1, num_outputs=2} : (f32[4,3], f32[4,3])
  return %top, %halves#0, %halves#1, %x
}
""")
    ran = graphopt("inspect", path, "-p", "dce,cse", "--seconds", 0)
    assert ran.code == 0


def test_no_shapes(graphopt, net_json):
    message = (
        "graphopt inspect: error: the shape of input 'data' must be given,"
        " for example --shape data:1,3,224,224\n"
    )
    assert graphopt("inspect", net_json, "-p", "none") == (2, "", message)
    assert graphopt("inspect", net_json, "-p", "none", "--no-run").code == 0


def test_with_shapes(graphopt, net_json):
    argv = ("--shape", "data:2,4", "-p", "dce", "--seconds", 0)
    assert graphopt("inspect", net_json, *argv).code == 0


def test_the_data_behind_it_needs_no_command_line(net):
    seen = inspect(parse(net.read_text()), "dce,cse", run=False)
    assert [row.name for row in seen.rows[1:]] == [r.pass_text for r in seen.result.receipts]
    assert [len(step.after) for step in seen.steps] == [7, 6]
    assert seen.rows[0].run_ms is None


def test_timing_waits_for_the_result():
    """A call is timed until its outputs are there: a big product cannot take microseconds."""
    graph = parse("""\
graph big(%x: f32[700,700]) {
  %y = dot(%x, %x) : f32[700,700]
  %z = dot(%y, %y) : f32[700,700]
  return %z
}""")
    seen = inspect(graph, "none", seconds=0)
    assert seen.rows[0].run_ms is not None
    assert seen.rows[0].run_ms > 0.5


def test_memory_of_a_forward_run(graphopt, net):
    ran = graphopt("inspect", net, "--memory")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(
        "net: forward, 5 operators, 8 tensors in 3 buffers\n"
        "arena        88 B, 1 x the lower bound 88 B (optimal)\n"
    )
    assert "not counted  data 32 B, param 60 B\n" in ran.out
    assert "peak         48 B at step 1 of 5: left (relu, forward)\n" in ran.out


def test_memory_of_a_training_step_as_json(graphopt, net):
    found = json.loads(graphopt("inspect", net, "--memory", "--mode", "training", "--json").out)
    assert found["training"]
    assert [row["name"] for row in found["rows"]][-1] == "forward only"
    assert found["peak"] <= found["lower_bound"] <= found["arena"]
    assert len(found["timeline"]) == len(found["phases"])
    assert set(found["phases"]) == {"forward", "backward"}
    assert "" not in found["layers"]


def test_memory_after_passes_only_if_they_are_named(graphopt, net):
    ran = graphopt("inspect", net, "--memory", "-p", "dce,cse")
    assert ran.err == "2 of 2 passes changed the graph\n"
    assert ran.out.startswith("net: forward, 3 operators,")


def test_memory_needs_shapes(graphopt, net_json):
    ran = graphopt("inspect", net_json, "--memory")
    assert (ran.code, ran.out) == (2, "")
    assert "the shape of input 'data' must be given" in ran.err


@pytest.fixture
def deep(tmp_path):
    """Rows are scaled and squashed: what is learned is small, and what backward needs 6 MB."""
    values = [f"  %m{n} = broadcast_mul(%t{n}, %scale) : f32[64,4096]" for n in range(6)]
    lines = ["graph deep(%t0: f32[64,4096], param %scale: f32[1,4096]) {"]
    for n, line in enumerate(values):
        lines += [line, f"  %t{n + 1} = tanh(%m{n}) : f32[64,4096]"]
    path = tmp_path / "deep.gir"
    path.write_text("\n".join([*lines, "  return %t6\n}"]))
    return path


def test_memory_within_a_budget_computes_again(graphopt, deep):
    training = ("inspect", deep, "--memory", "--mode", "training")
    plain = json.loads(graphopt(*training, "--json").out)
    ran = graphopt(*training, "--budget", "8MB", "--json")
    found = json.loads(ran.out)
    assert "operators are computed again" in ran.err
    assert plain["repeated"] == []
    assert set(found["phases"]) == {"forward", "backward", "recompute"}
    assert found["phases"].count("recompute") == len(found["repeated"]) > 0
    assert found["peak"] < plain["peak"]
    assert graphopt(*training, "--budget", "1GB").out == graphopt(*training).out


def test_a_budget_that_cannot_be(graphopt, net):
    training = ("inspect", net, "--memory", "--mode", "training", "--budget")
    ran = graphopt(*training, "much")
    assert (ran.code, ran.out) == (2, "")
    assert "--budget: 'much' is no size" in ran.err
    ran = graphopt(*training, "10")
    assert (ran.code, ran.out) == (1, "")
    assert "cannot run in 10 bytes: the least is" in ran.err


@pytest.mark.parametrize("options", [(), ("--memory",), ("--mode", "training")])
def test_a_budget_is_of_a_training_step(graphopt, net, options):
    ran = graphopt("inspect", net, "--budget", "1GB", *options)
    assert (ran.code, ran.out) == (2, "")
    assert "give --memory and --mode training, too" in ran.err


@pytest.mark.parametrize("options", [(), ("--budget", "1GB")], ids=["free", "budget"])
def test_a_training_step_of_unknown_shapes_is_refused_by_name(graphopt, tmp_path, options):
    mx = import_mxnet()
    path = tmp_path / "masked.json"
    x = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2, name="fc")
    rows = mx.sym.sum(x, axis=1) > 0
    mx.sym.contrib.boolean_mask(x, rows, name="masked").save(str(path))
    training = ("inspect", path, "--memory", "--mode", "training", "--shape", "data:4,3")
    ran = graphopt(*training, *options)
    assert ran.code != 0
    assert "the shape of 'masked' (_contrib_boolean_mask) is known only once" in ran.err
    assert "internal error" not in ran.err
