"""Instruments: printing, dumping, and comparing numbers."""

import numpy as np
import pytest

from graphopt.errors import GraphError
from graphopt.ir.parser import parse
from graphopt.passes import registry
from graphopt.pipeline.instruments import DumpIR, PrintIR, compare
from graphopt.pipeline.manager import run_passes
from graphopt.pipeline.spec import build
from tests.pipeline.test_manager import Does, raises

TEXT = """\
graph g(%x: f32[2]) {
  %a = relu(%x) : f32[2]
  %unused = tanh(%x) : f32[2]
  return %a
}"""
AFTER = TEXT.replace("  %unused = tanh(%x) : f32[2]\n", "")


def printed(when):
    lines = []
    passes = [*build("cse,dce", registry), Does(raises)]
    run_passes(parse(TEXT), passes, instruments=[PrintIR(when, lines.append)])
    return lines


CSE = f"// after eliminate-common-subexpressions\n{TEXT}\n"
DCE = f"// after eliminate-dead-code\n{AFTER}\n"
FAILED = f"// does failed: by hand\n{AFTER}\n"


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("changed", [DCE]),
        ("all", [CSE, DCE, FAILED]),
        ("failed", [FAILED]),
        (["eliminate-common-subexpressions"], [CSE]),
        ([], []),
    ],
)
def test_print(when, expected):
    assert printed(when) == expected


def test_print_goes_to_standard_error(capsys):
    run_passes(parse(TEXT), build("dce", registry), instruments=[PrintIR()])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == DCE


def test_dump(tmp_path):
    folder = tmp_path / "new" / "folder"
    run_passes(parse(TEXT), build("cse,dce", registry), instruments=[DumpIR(folder)])
    assert {file.name: parse(file.read_text()) for file in folder.iterdir()} == {
        "000_input.gir": parse(TEXT),
        "001_eliminate-common-subexpressions.gir": parse(TEXT),
        "002_eliminate-dead-code.gir": parse(AFTER),
    }


def array(*values, dtype="float32"):
    return np.array(values, dtype)


def test_largest_error_is_returned():
    assert compare({}, {}) == 0.0
    assert compare({"a": array(1.0, 2.0)}, {"a": array(1.0, 2.0)}) == 0.0
    found = compare({"a": array(1, 2, dtype="float64")}, {"a": array(1, 2 + 1e-7, dtype="float64")})
    assert found == pytest.approx(1e-7, rel=1e-3)


def test_what_is_equal_though_no_number():
    values = array(np.nan, np.inf, -np.inf, 0.0)
    assert compare({"a": values}, {"a": values.copy()}) == 0.0
    assert compare({"a": values}, {"a": values.copy()}, rtol=0.0, atol=0.0) == 0.0
    assert compare({"a": array(0.0)}, {"a": array(-0.0)}) == 0.0


def test_empty_arrays_and_scalars():
    assert compare({"a": np.zeros((0, 3))}, {"a": np.zeros((0, 3))}) == 0.0
    assert compare({"a": np.float32(1).reshape(())}, {"a": np.float32(1).reshape(())}) == 0.0
    with pytest.raises(GraphError, match=r"1 became 2 at \[\]"):
        compare({"a": np.array(1.0)}, {"a": np.array(2.0)})


@pytest.mark.parametrize(
    ("want", "got", "message"),
    [
        (array(1.0), array(1.0, dtype="float64"), "p changed a from float32[1] to float64[1]"),
        (array(1.0), array(1.0, 2.0), "p changed a from float32[1] to float32[2]"),
        (
            array(1.0, 2.0, 3.0),
            array(1.0, 2.5, 3.1),
            "p changed a beyond rtol 0.001, atol 0.0001: 2 became 2.5 at [1]",
        ),
        (
            np.zeros((2, 2), "float32"),
            np.array([[0, 1], [2, 1]], "float32"),
            "p changed a beyond rtol 0.001, atol 0.0001: 0 became 2 at [1, 0]",
        ),
        (
            array(1.0),
            array(np.nan),
            "p changed a beyond rtol 0.001, atol 0.0001: 1 became nan at [0]",
        ),
        (
            array(np.nan),
            array(1.0),
            "p changed a beyond rtol 0.001, atol 0.0001: nan became 1 at [0]",
        ),
        (
            array(1.0),
            array(np.inf),
            "p changed a beyond rtol 0.001, atol 0.0001: 1 became inf at [0]",
        ),
        (
            array(np.inf),
            array(1.0),
            "p changed a beyond rtol 0.001, atol 0.0001: inf became 1 at [0]",
        ),
        (
            array(np.inf),
            array(-np.inf),
            "p changed a beyond rtol 0.001, atol 0.0001: inf became -inf at [0]",
        ),
        (
            array(1, 2, dtype="int32"),
            array(1, 3, dtype="int32"),
            "p changed a beyond rtol 0, atol 0: 2 became 3 at [1]",
        ),
        (
            array(2**53, dtype="int64"),
            array(2**53 + 1, dtype="int64"),
            "p changed a beyond rtol 0, atol 0: 9007199254740992 became 9007199254740993 at [0]",
        ),
        (
            array(True, dtype="bool"),
            array(False, dtype="bool"),
            "p changed a beyond rtol 0, atol 0: True became False at [0]",
        ),
    ],
)
def test_differences(want, got, message):
    with pytest.raises(GraphError) as caught:
        compare({"a": want}, {"a": got}, where="p")
    assert str(caught.value) == message


def test_tolerances_given_replace_those_of_the_dtype():
    want, got = {"a": array(1.0)}, {"a": array(1.0005)}
    compare(want, got)
    with pytest.raises(GraphError, match="beyond rtol 0, atol 0"):
        compare(want, got, rtol=0.0, atol=0.0)
    compare(want, {"a": array(1.5)}, atol=1.0)


def test_half_precision_is_wider():
    compare({"a": array(1, dtype="float16")}, {"a": array(1.005, dtype="float16")})
