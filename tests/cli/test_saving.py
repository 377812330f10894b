"""Files that ``graphopt opt -o`` writes where the disk is full: all of them, whole, or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def given(tmp_path, mx):
    """A dense layer and its parameters, as arguments."""
    symbol = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="fc")
    symbol.save(str(tmp_path / "m-symbol.json"))
    arrays = {"arg:fc_weight": mx.nd.ones((3, 4)), "arg:fc_bias": mx.nd.zeros(3)}
    mx.nd.save(str(tmp_path / "m-0000.params"), arrays)
    model, params = tmp_path / "m-symbol.json", tmp_path / "m-0000.params"
    return model, "--params", params, "--shape", "data:2,4"


@pytest.fixture
def old(graphopt, given, tmp_path):
    """What an earlier run left, with the file names of the next."""
    path = tmp_path / "out" / "o-symbol.json"
    path.parent.mkdir()
    assert graphopt("opt", *given, "-o", path).code == 0
    return {file: file.read_bytes() for file in path.parent.iterdir()}


@pytest.mark.parametrize("how", ["silent", "raises"])
def test_parameters_that_are_cut_short_replace_nothing(
    graphopt, given, old, tmp_path, mx, monkeypatch, how
):
    save = mx.nd.save

    def full(file, arrays):
        save(file, arrays)
        with Path(file).open("r+b") as stream:
            stream.truncate(64)
        if how == "raises":
            raise mx.MXNetError("FileStream.Write incomplete")

    changed = {"arg:fc_weight": mx.nd.zeros((3, 4)), "arg:fc_bias": mx.nd.ones(3)}
    save(str(tmp_path / "m-0000.params"), changed)
    with monkeypatch.context() as patched:
        patched.setattr(mx.nd, "save", full)
        ran = graphopt("opt", *given, "-o", tmp_path / "out" / "o-symbol.json")
    assert (ran.code, ran.out) == (1, "")
    assert f"cannot write '{tmp_path / 'out' / 'o-0000.params'}'" in ran.err
    assert {file: file.read_bytes() for file in (tmp_path / "out").iterdir()} == old
    kept = mx.nd.load(str(tmp_path / "out" / "o-0000.params"))
    np.testing.assert_allclose(kept["arg:fc_weight"].asnumpy(), np.ones((3, 4)), atol=1e-6)


def test_parameters_stay_with_the_json_they_belong_to(
    graphopt, given, old, tmp_path, mx, monkeypatch
):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    changed = {"arg:fc_weight": mx.nd.zeros((3, 4)), "arg:fc_bias": mx.nd.ones(3)}
    mx.nd.save(str(tmp_path / "m-0000.params"), changed)
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_text", full)
        ran = graphopt("opt", *given, "-o", tmp_path / "out" / "o-symbol.json")
    assert ran.code == 1
    assert f"cannot write '{tmp_path / 'out' / 'o-symbol.json'}': No space left" in ran.err
    assert {file: file.read_bytes() for file in (tmp_path / "out").iterdir()} == old
