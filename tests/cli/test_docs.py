"""Every example of docs/cli.md runs and prints what stands there.

``python tests/cli/test_docs.py`` writes what is printed now into the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import tempfile
from pathlib import Path

from graphopt.cli.main import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
FILES = re.compile(r"`(\S+)`:\n\n```text\n(.*?)```", re.DOTALL)
BLOCKS = re.compile(r"```console\n(.*?)```", re.DOTALL)


def write_files(page: str, folder: Path) -> None:
    """Write the files the page shows under their names."""
    for name, text in FILES.findall(page):
        (folder / name).write_text(text)


def replay(block: str) -> str:
    """Run the commands of a block in the current folder; what they print follows each."""
    shown = ""
    for line in re.findall(r"^\$ (graphopt .*)$", block, re.MULTILINE):
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            code = main(shlex.split(line)[1:])
        shown += f"$ {line}\n{stream.getvalue()}" + (f"[exit status {code}]\n" if code else "")
    return shown


def masked(text: str) -> str:
    """Times, ratios and engines depend on the machine; the width of columns follows them."""
    text = re.sub(r"(CachedOp|executor)( \+ oneDNN)?", "ENGINE", text)
    text = re.sub(r"\d+\.\d+(e[+-]\d+)?x?|\d+ms", "#", text)
    return re.sub(r" +", " ", re.sub(r" +$", "", text, flags=re.MULTILINE))


def test_examples(tmp_path, monkeypatch):
    page = PAGE.read_text()
    write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCKS.findall(page)
    assert len(blocks) > 10
    for block in blocks:
        assert masked(replay(block)) == masked(block)


def test_every_verb_and_option_is_described(graphopt):
    from graphopt.cli.main import VERBS

    page = PAGE.read_text()
    for verb in VERBS:
        assert f"## {verb}\n" in page
        for option in re.findall(r"^  .*?(--[\w-]+)", graphopt(verb, "--help").out, re.MULTILINE):
            assert f"`{option}" in page, f"{verb} {option}"


if __name__ == "__main__":
    text = PAGE.read_text()
    os.chdir(tempfile.mkdtemp())
    write_files(text, Path.cwd())
    PAGE.write_text(BLOCKS.sub(lambda m: f"```console\n{replay(m[1])}```", text))
