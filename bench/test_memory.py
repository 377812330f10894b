"""Memory: of steps what MXNet plans, within budgets and for which time; of inference all."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.fresh import ROOT, measured
from bench.inference_memory import CASES
from bench.report import Record
from bench.step_memory import Step, buckets, cases
from bench.timing import race
from graphopt.kernels.cache import folder

#: Samples of a step; what --slow asks for, and otherwise.
BATCH = {"resnet50": (32, 4), "vgg16": (16, 2), "inception-v3": (16, 2)}
OTHERS = (16, 2)

#: MXNet's own ways, and graphopt's with shares of what it takes without a budget.
MXNET = ("executor", "search", "mirror")
SHARES = (0.9, 0.7, 0.5, 0.4)

#: What a net is to come down to, as a share of what MXNet plans by default, and the time of a step.
GOALS = {"resnet50": (0.35, 1.2)}

#: Millions of bytes.
MIB = (1 << 20) / 1e6

#: Sequence lengths of a bucketed net.
LENGTHS = tuple(range(10, 101, 10))


@pytest.mark.parametrize("name", list(GOALS))
def test_goals(
    name: str,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
) -> None:
    """The step at the goal's share beside the plain net's, with no other net in the process."""
    batch = BATCH.get(name, OTHERS)[1 if quick else 0]
    if quick:
        pytest.skip("runs in several processes, for minutes")
    share, slower = GOALS[name]
    default = apart(name, batch, "executor")["planned"]
    unbounded = apart(name, batch, "graphopt:1000GB")
    held = total(unbounded["told"]) - unbounded["planned"] * MIB  # no plan changes it
    found = apart(name, batch, f"graphopt:{int(held + share * default * MIB)}MB")
    contenders = {"gluon": Step(name, batch, "gluon"), "goal": Step(name, batch, found["how"])}
    medians = race(benchmark, contenders, max(3, rounds), quick)
    record(
        Record(
            "Training memory, the goal",
            f"{name}, batch {batch}",
            {
                "planned MiB": found["planned"],
                "resident MiB": found["peak"],
                "of MXNet's default": found["planned"] / default,
                "time over gluon": medians["goal"] / medians["gluon"],
            },
            targets={"of MXNet's default": share, "time over gluon": slower},
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", list(cases()))
def test_budgets(
    name: str,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    rounds: int,
    request: pytest.FixtureRequest,
) -> None:
    """Planned and resident memory and the time of a step, by budget."""
    slow = request.config.getoption("--slow")
    batch = BATCH.get(name, OTHERS)[0 if slow else 1]
    if quick:
        if name != "encoder":
            pytest.skip("runs in several processes, for minutes")
        step = Step(name, 1, f"graphopt:{least(name, 1)}MB")
        benchmark.pedantic(step, rounds=1)
        assert "computed again" in step.told()
        return
    plain = {way: apart(name, batch, way) for way in MXNET}
    gluon = apart(name, batch, "gluon")
    best = min(found["planned"] for found in plain.values())
    unbounded = apart(name, batch, "graphopt:1000GB")
    whole = total(unbounded["told"])
    record(
        Record(
            "Training memory without a budget, MiB",
            f"{name}, batch {batch}",
            {f"{way} planned": found["planned"] for way, found in plain.items()}
            | {f"{way} resident": found["peak"] for way, found in plain.items()}
            | {"gluon resident": gluon["peak"]},
        )
    )
    contenders = {"gluon": Step(name, batch, "gluon")}
    planned: dict[str, float] = {}
    resident: dict[str, float] = {}
    asks = {f"{share:.0%}": whole * share for share in SHARES} | {"least": least(name, batch)}
    for label, ask in asks.items():
        found = apart(name, batch, f"graphopt:{max(1, int(ask))}MB")
        if not found:
            continue
        planned[label] = found["planned"]
        resident[label] = found["peak"]
        contenders[label] = Step(name, batch, found["how"])
    medians = race(benchmark, contenders, max(3, rounds // 3), quick)
    for label in planned:
        record(
            Record(
                "Training memory by budget",
                f"{name}, batch {batch}, {label}",
                {
                    "planned MiB": planned[label],
                    "resident MiB": resident[label],
                    "of MXNet's default": planned[label] / plain["executor"]["planned"],
                    "of MXNet's best": planned[label] / best,
                    "time over gluon": medians[label] / medians["gluon"],
                },
                targets={"of MXNet's best": 1.0},
            )
        )
    assert min(planned.values()) <= best


def test_buckets(benchmark: Any, record: Callable[[Record], None], quick: bool) -> None:
    """Ten lengths of an LSTM net: memory of all, and of the longest alone."""
    if quick:
        benchmark.pedantic(buckets, (2, "graphopt", "4,3,1"), rounds=1)
        return
    benchmark.pedantic(lambda: None, rounds=1)
    figures = {
        f"{way}, {which}": apart("buckets", 32, f"{way}:{lengths}")["peak"]
        for way in ("gluon", "graphopt")
        for which, lengths in (("longest", LENGTHS[-1]), ("all", ",".join(map(str, LENGTHS[::-1]))))
    }
    ours = figures["graphopt, all"] / figures["graphopt, longest"]
    theirs = figures["gluon, all"] / figures["gluon, longest"]
    line = "two layers of LSTM, 256 units, batch 32, lengths 10 to 100"
    shown = figures | {"all over longest": ours, "gluon all over longest": theirs}
    record(Record("Memory of ten buckets, MiB", line, shown, {}, {"all over longest": 1.1}))


@pytest.mark.parametrize("name", list(CASES))
def test_inference(
    name: str,
    benchmark: Any,
    record: Callable[[Record], None],
    quick: bool,
    tmp_path: Path,
) -> None:
    """What four calls leave resident, each time in a process of its own."""
    if quick and name != "squeezenet1_0":
        pytest.skip("makes large nets")
    shutil.copytree(folder() / "bridge", tmp_path / "bridge")
    plain, first, later = (
        measured("bench.inference_memory", name, who, cache=tmp_path)
        for who in ("plain", "graphopt", "graphopt")
    )
    benchmark.pedantic(lambda: None, rounds=1)
    figures = {
        "parameters": plain["parameters"],
        "plain": plain["kept"],
        "graphopt": later["kept"],
        "at most: plain": plain["most"],
        "graphopt, known": later["most"],
        "never measured": first["most"],
    }
    record(Record("Memory of inference, resident MiB of the process", name, figures))


def apart(name: str, batch: int, how: str) -> dict[str, Any]:
    """Two steps in a process of their own; empty where the budget is too small."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "bench.step_memory",
        name,
        str(batch),
        how,
        "2",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        if "BudgetError" in done.stderr:
            return {}
        raise RuntimeError(f"{name}, {how}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"how": how}


def least(name: str, batch: int) -> int:
    """The smallest budget in millions of bytes."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.step_memory", name, str(batch)]
    done = subprocess.run(
        [*command, "graphopt:1kB", "1"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    found = re.search(r"the least is ([\d.]+) (\w+)", done.stderr)
    if found is None:
        raise RuntimeError(f"{name}: no least budget in {done.stderr[-300:]!r}")
    size = float(found.group(1)) * (1000 if found.group(2) == "GB" else 1)
    return int(size) + 1


def total(told: str) -> float:
    """Millions of bytes a step takes, as graphopt tells it."""
    found = re.search(r"a step takes ([\d.]+) (\w+)", told)
    assert found is not None
    return float(found.group(1)) * (1000 if found.group(2) == "GB" else 1)
