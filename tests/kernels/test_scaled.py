"""Products that come multiplied by a power of two, for a matrix unit that multiplies float16."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import graphopt
from graphopt.compat import import_mxnet
from graphopt.kernels import products
from graphopt.kernels.interpret import evaluate
from graphopt.kernels.products import usual_factor
from graphopt.kernels.recurrence import encode
from graphopt.kernels.recurrence.forward import forward
from graphopt.kernels.recurrence.scaled import divided, read_by_kernels
from graphopt.kernels.recurrence.spec import Map, parse
from tests.kernels.recurrence_support import Call, cell, check_forward, in_single

#: A product that a kernel reads, and one that leaves the step as well.
TWO = (
    "recurrence f32 (3) (4) (3x4, 4x4) () ;; 4 = x0 @ m0 ;; 4 = s0 @ m1 ;; "
    "4 = t0 t1 -> f32[a,b] (f32[a,b], f32[a,b]) "
    "{ %2 = tanh %0; %3 = add %2 %1; return %3:f32[a,b] } "
    ";; next t2 ;; emit t1"
)


def test_only_what_kernels_alone_read_comes_multiplied() -> None:
    spec = parse(TWO)
    assert read_by_kernels(spec, set()) == {0}
    assert read_by_kernels(spec, {0}) == frozenset()
    packs = forward(spec, training=False, times=8).packs
    assert [pack[-1] for pack in packs] == [8, 1]
    assert {pack[-1] for pack in forward(spec, training=False).packs} == {1}


def test_kernels_divide_what_they_read() -> None:
    (step,) = (step for step in parse(TWO).steps if isinstance(step, Map))
    changed = divided(step, {0}, step.kernel, 8)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((5, 4)).astype("float32") for _ in range(2))
    found, want = evaluate(changed, [a * 8, b]), evaluate(step.kernel, [a, b])
    np.testing.assert_array_equal(found[0], want[0])
    assert divided(step, {0}, step.kernel, 1) is step.kernel
    assert divided(step, {2}, step.kernel, 8) is step.kernel


@pytest.mark.parametrize("flags", [{}, {"lengths": True}, {"indexed": True}])
@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_recurrences_without_such_a_unit(
    mode: str, flags: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The factor changes nothing, whatever multiplies: vectors for few rows, the unit for many."""
    monkeypatch.setattr(encode, "usual_factor", lambda _: 64)
    # No other test has such cells: programs are made once.
    spec = in_single(cell(37, {"lstm": 105, "gru": 117, "rnn_tanh": 211}[mode], "float64", mode))
    for batch in (5, 70):
        for stash in (False, True):
            check_forward(spec, Call(4, batch, **flags), stash=stash)


@pytest.mark.parametrize(("wanted", "said"), [("off", "none of 0"), ("fp16", "no matrix unit")])
def test_settings_that_are_not_followed_are_told_once(wanted: str, said: str) -> None:
    products._tell_of_setting.cache_clear()
    with pytest.warns(RuntimeWarning, match=said):
        products._tell_of_setting(wanted, has_float16=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        products._tell_of_setting(wanted, has_float16=False)


@pytest.mark.parametrize("wanted", ["", "0", "bf16"])
@pytest.mark.filterwarnings("error")
def test_settings_that_are_followed(wanted: str) -> None:
    products._tell_of_setting(wanted, has_float16=False)
    products._tell_of_setting("fp16", has_float16=True)


#: What uses the unit.
FILES = ["kernels/test_recurrence_sizes.py", "kernels/test_recurrence_slots.py"]
FILES += ["kernels/test_dense.py", "kernels/test_products.py", "nn/test_matrix_unit.py"]


def test_everything_on_halves() -> None:
    """The tests of whatever uses the unit, where it multiplies float16 if it is asked to."""
    mx = import_mxnet()
    if usual_factor(mx) > 1:
        pytest.skip("it does unasked, in those tests themselves")
    if os.environ.get("GRAPHOPT_AMX") != "0" and not products.has_matrix_unit(mx):
        pytest.skip("there is no matrix unit here")
    root = Path(graphopt.__file__).parents[1]
    env = {**os.environ, "GRAPHOPT_AMX": "fp16", "PYTHONPATH": str(root)}
    script = "import graphopt, mxnet; from graphopt.kernels.products import usual_factor;"
    script += "print(usual_factor(mxnet))"
    asked = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    if int(asked.stdout) == 1:
        pytest.skip("the matrix unit multiplies no float16 here")
    files = [str(Path(__file__).parents[1] / file) for file in FILES]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *files], env=env, cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
