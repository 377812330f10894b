"""``graphopt pack``: plans, exit codes, and what is said about files that are no good."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphopt.memory import check_packing, pack, read_buffers
from tests.memory.cutting import cut

ROOT = Path(__file__).resolve().parents[2]

# Of the lower bound, but no greedy order finds that.
ROWS = ["a,0,3,4", "b,3,9,4", "c,0,9,4", "d,9,21,4", "e,0,21,4"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "in.csv"
    path.write_text("id,lower,upper,size\n" + "\n".join(ROWS) + "\n")
    return path


def test_table(graphopt, file):
    ran = graphopt("pack", file)
    assert (ran.code, ran.err) == (0, "")
    heading, line = ran.out.splitlines()
    assert heading.split() == [
        *("buffers", "arena", "lower", "bound", "ratio", "sum", "seconds", "method", "status")
    ]
    assert line.split()[:5] == ["5", "12", "12", "1.0000", "20"]
    assert line.endswith("optimal")


def test_json(graphopt, file):
    ran = graphopt("pack", file, "--json", "--capacity", 12)
    found = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert found["status"] == "fits"
    assert (found["buffers"], found["arena"], found["lower_bound"]) == (5, 12, 12)


def test_stdin_that_is_no_text(graphopt, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(b"id,lower,upper,size\nb\xe9,0,3,4\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", stream)
    told = "graphopt: error: <stdin>: it is no UTF-8 text\n"
    assert graphopt("pack", "-") == (1, "", told)


def test_output(graphopt, file, tmp_path):
    out = tmp_path / "out.csv"
    assert graphopt("pack", file, "-o", out).code == 0
    lines = out.read_text().splitlines()
    assert lines[0] == "id,lower,upper,size,offset"
    assert [line.rsplit(",", 1)[0] for line in lines[1:]] == ROWS
    check_packing(read_buffers(out), [int(line.rsplit(",", 1)[1]) for line in lines[1:]], 12)


def test_output_on_stdout(graphopt, file):
    ran = graphopt("pack", file, "-o", "-")
    assert ran.out.splitlines()[0] == "id,lower,upper,size,offset"
    assert len(ran.out.splitlines()) == 6
    assert ran.err.split()[0] == "buffers"


def test_stdin(graphopt, file, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text()))
    assert graphopt("pack", "-").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("id\n"))
    ran = graphopt("pack", "-")
    assert (ran.code, ran.err) == (
        1,
        "graphopt: error: <stdin>:1: no column 'lower' in the heading 'id'\n",
    )


def test_a_folder(graphopt, tmp_path):
    ran = graphopt("pack", tmp_path)
    assert ran.code == 2
    assert "it is a folder" in ran.err


def test_infeasible(graphopt, file, tmp_path):
    out = tmp_path / "out.csv"
    ran = graphopt("pack", file, "--capacity", 11, "-o", out)
    assert ran.code == 3
    assert ran.err == "no plan fits 11 bytes: 12 are needed at least\n"
    assert not out.exists()


def test_unknown(graphopt, tmp_path):
    # Greedy orders do not pack it tightly, and there is no time for more.
    buffers = cut(60, seed=1)
    plan = pack(buffers, time_limit=0)
    assert plan.arena > plan.lower_bound
    file = tmp_path / "in.csv"
    file.write_text(plan.to_csv())
    ran = graphopt("pack", file, "--time-limit", 0, "--capacity", plan.lower_bound)
    assert ran.code == 4
    assert ran.err.startswith(f"no plan for {plan.lower_bound} bytes was found in time, and none")


def test_empty(graphopt, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("id,lower,upper,size\n")
    ran = graphopt("pack", file, "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["ratio"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the file is empty; start it with id,lower,upper,size"),
        ("id,lower,size\n", ":1: no column 'upper' in the heading 'id,lower,size'"),
        ("id,lower,upper,size\na,0,1\n", ":2: 3 fields, where the heading has 4 columns"),
        ("id,lower,upper,size\n\na,0,x,1\n", ":3: upper must be an integer, not 'x'"),
        ("id,lower,upper,size\na,0,1,1.5\n", ":2: size must be an integer, not '1.5'"),
        (
            "id,lower,upper,size\na,0,1,0\n",
            ":2: buffer 'a': size is 0, but must be at least 1",
        ),
        (
            "size,id,lower,upper\n-4,a,0,1\n",
            ":2: buffer 'a': size is -4, but must be at least 1",
        ),
        (
            "id,lower,upper,size\na,3,3,1\n",
            ":2: buffer 'a': upper (3) must be above lower (3)",
        ),
        (
            "id,lower,upper,size\na,0,1,1099511627777\n",
            ":2: buffer 'a': size is 1099511627777, but must be at most 2**40",
        ),
        ("id,lower,upper,size\na,0,1,99999999999999999999\n", ":2: size does not fit 64 bits"),
        (
            "id,lower,upper,size\na,0,1,1\na,1,2,1\n",
            ":3: buffer 'a' is there twice; every id must be used once",
        ),
        ('id,lower,upper,size\n"a,0,1,1\n', ":2: malformed CSV: unexpected end of data"),
    ],
)
def test_malformed_files(graphopt, tmp_path, text, message):
    file = tmp_path / "in.csv"
    file.write_text(text)
    ran = graphopt("pack", file)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"graphopt: error: {file}{message}\n"


def test_files_that_cannot_be_read(graphopt, tmp_path):
    none = tmp_path / "none.csv"
    told = f"graphopt: error: cannot read '{none}': No such file or directory\n"
    assert graphopt("pack", none) == (1, "", told)
    (tmp_path / "latin.csv").write_bytes(b"id,lower,upper,size\n\xff,0,1,1\n")
    ran = graphopt("pack", tmp_path / "latin.csv")
    assert (ran.code, ran.err.rsplit(":", 1)[1]) == (1, " the file is not UTF-8 text\n")


@pytest.mark.parametrize(
    "options",
    [["--capacity", "0"], ["--capacity", "-4"], ["--alignment", "0"], ["--time-limit", "-1"]],
)
def test_wrong_usage(graphopt, file, options):
    ran = graphopt("pack", file, *options)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("graphopt pack: error: ")


def test_outputs_that_are_refused(graphopt, file, tmp_path):
    assert graphopt("pack", file, "-o", "-", "--json").code == 2
    assert graphopt("pack", file, "-o", file).code == 2
    assert graphopt("pack", file, "-o", tmp_path).code == 2


def test_a_full_disk_keeps_what_was_written_before(graphopt, file, tmp_path, monkeypatch):
    def write_half(path, text, encoding):
        path.write_bytes(text[: len(text) // 2].encode(encoding))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as close() does: of no file

    out = tmp_path / "out.csv"
    out.write_text("of an earlier run")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(Path, "write_text", write_half)
    ran = graphopt("pack", file, "-o", out)
    assert ran.code == 1
    assert ran.err.strip() == f"graphopt: error: cannot write {str(out)!r}: No space left on device"
    assert out.read_text() == "of an earlier run"
    assert sorted(tmp_path.iterdir()) == before


def test_help_tells_exit_codes_and_imports_no_numba():
    code = (
        "import sys; from graphopt.cli.main import main; code = main(['pack', '--help'])\n"
        "found = {'mxnet', 'numba', 'numpy'} & set(sys.modules)\n"
        "assert not found, found; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 no plan fits" in " ".join(done.stdout.split())
