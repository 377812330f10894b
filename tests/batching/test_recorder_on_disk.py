"""The recorder on disk: built again where it is damaged, and kept elsewhere on a full disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from graphopt.batching import speedups
from graphopt.kernels import cache


def test_the_recorder_is_loaded_where_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.delenv("GRAPHOPT_RECORDER", raising=False)
    monkeypatch.setattr(cache, "write_atomically", refuse)
    monkeypatch.setattr(speedups, "_kept", lambda: cache.folder() / "bridge" / "recorder.so")
    monkeypatch.setattr(speedups, "_build", lambda: b"recorder")
    monkeypatch.setattr(speedups, "_loaded", Path.read_bytes)
    with pytest.warns(RuntimeWarning, match=r"recorder\.so cannot be written .no space left"):
        assert speedups.load.__wrapped__() == (b"recorder", None)


@pytest.mark.parametrize("damaged", [b"", bytes(1000), None], ids=["empty", "zeros", "half"])
def test_a_damaged_recorder_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bytes | None
) -> None:
    monkeypatch.delenv("GRAPHOPT_RECORDER", raising=False)
    good = speedups._library().read_bytes()
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path))
    builds: list[Path] = []

    def rebuild() -> bytes:
        builds.append(tmp_path)
        return good

    monkeypatch.setattr(speedups, "_build", rebuild)
    kept = speedups._kept()
    cache.write_atomically(kept, good[: len(good) // 2] if damaged is None else damaged)
    module, why_not = speedups.load.__wrapped__()
    assert module is not None, why_not
    assert module.configure
    assert kept.read_bytes() == good
    assert builds == [tmp_path]


def test_a_recorder_that_cannot_be_removed_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAPHOPT_RECORDER", raising=False)
    monkeypatch.setenv("GRAPHOPT_CACHE_DIR", str(tmp_path))
    cache.write_atomically(speedups._kept(), bytes(1000))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    monkeypatch.setattr(Path, "unlink", refuse)
    module, why_not = speedups.load.__wrapped__()
    assert module is None
    assert "invalid ELF header" in str(why_not)
