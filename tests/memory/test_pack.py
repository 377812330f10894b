"""Plans are right, as small as brute force finds them, and as small as known cases allow."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphopt.errors import GraphError, InputError
from graphopt.memory import Buffers, check_packing, pack, read_buffers
from tests.memory.cutting import cut
from tests.places import REPOSITORY, data_folder

FILES = sorted((data_folder() / "memalloc").glob("*.csv"))

ROW = st.tuples(st.integers(0, 12), st.integers(1, 8), st.integers(1, 9))


def buffers_of(rows) -> Buffers:
    """From rows of start, duration and size."""
    lower, length, size = np.array(rows, np.int64).reshape(-1, 3).T
    return Buffers(range(len(rows)), lower, lower + length, size)


def smallest(rows, alignment: int = 1) -> int:
    """The smallest arena: some order gives it when every buffer is placed as low as it goes."""
    best = sum(size + alignment for _, _, size in rows)
    for order in itertools.permutations(rows):
        placed: list[tuple[int, int, int, int]] = []
        for start, length, size in order:
            others = [p for p in placed if p[0] < start + length and start < p[1]]
            places = [0, *(-(-top // alignment) * alignment for *_, top in others)]
            at = min(
                place
                for place in places
                if all(place + size <= low or top <= place for *_, low, top in others)
            )
            placed.append((start, start + length, at, at + size))
        best = min(best, max((top for *_, top in placed), default=0))
    return best


@settings(max_examples=40)
@given(st.lists(ROW, max_size=60), st.sampled_from([1, 2, 8]))
def test_plans_are_right(rows, alignment):
    buffers = buffers_of(rows)
    found = pack(buffers, alignment=alignment, time_limit=0.02)
    check_packing(buffers, found.offsets, found.arena, alignment)
    assert found.arena == max((found.offsets + buffers.size).tolist(), default=0)
    assert found.lower_bound <= found.arena
    assert found.status == ("optimal" if found.is_optimal else "feasible")


@given(st.lists(ROW, max_size=5), st.sampled_from([1, 2, 4]))
@example([(0, 2, 3), (2, 2, 2), (1, 2, 1), (0, 1, 1), (3, 1, 2)], 1)
def test_small_plans_are_optimal(rows, alignment):
    found = pack(buffers_of(rows), alignment=alignment)
    assert found.status == "optimal"
    assert found.arena == smallest(rows, alignment)


@given(st.lists(ROW, min_size=1, max_size=5), st.integers(-2, 3), st.sampled_from([1, 4]))
def test_capacity_is_decided(rows, more, alignment):
    needed = smallest(rows, alignment)
    capacity = max(1, needed + more)
    found = pack(buffers_of(rows), capacity=capacity, alignment=alignment)
    assert found.status == ("fits" if capacity >= needed else "infeasible")
    check_packing(found.buffers, found.offsets, found.arena, alignment)
    assert (found.arena <= capacity) == (found.status == "fits")


def test_nothing_to_pack():
    found = pack(Buffers([], [], [], []), capacity=1)
    assert (found.arena, found.ratio, found.status, found.total) == (0, 1.0, "fits", 0)
    assert found.to_csv() == "id,lower,upper,size,offset\n"


def test_the_largest_sizes_and_moments():
    rows = [(2**62 - 2, 1, 2**40)] * 200
    found = pack(buffers_of(rows))
    assert found.arena == 200 * 2**40
    check_packing(found.buffers, found.offsets, found.arena)


def test_same_seed_same_plan():
    buffers = cut(60, seed=3)
    one, other = (pack(buffers, capacity=64, time_limit=60, seed=5) for _ in range(2))
    assert np.array_equal(one.offsets, other.offsets)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity must be 1 to 2[*][*]62 bytes, not 0"),
        ({"alignment": 0}, "alignment must be 1 to"),
        ({"time_limit": -1}, "time_limit must be at least 0 seconds, not -1"),
        ({"time_limit": float("nan")}, "time_limit must be"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(InputError, match=message):
        pack(buffers_of([(0, 1, 1)]), **options)


def test_what_are_no_buffers_is_refused():
    with pytest.raises(InputError, match=r"pack\(\) takes Buffers, not a list: make them"):
        pack([("a", 0, 1, 8)])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((["a"], [0], [1], [0]), "row 0: buffer 'a': size is 0"),
        ((["a"], [-1], [1], [1]), "row 0: buffer 'a': lower is -1"),
        ((["a", "b"], [0, 2], [1, 2], [1, 1]), r"row 1: buffer 'b': upper \(2\) must be above"),
        ((["a"], [0], [1], [2**40 + 1]), "at most 2[*][*]40"),
        ((["a", "a"], [0, 1], [1, 2], [1, 1]), "row 1: buffer 'a' is there twice"),
        ((["a"], [0], [1], [1.5]), "size must be one-dimensional and of integers"),
        ((["a"], [0, 1], [1], [1]), "lower has 2 values for 1 ids"),
        ((["a"], [0], [2**63], [1]), "upper holds 9223372036854775808"),
    ],
)
def test_wrong_buffers(columns, message):
    with pytest.raises(InputError, match=message):
        Buffers(*columns)


def test_columns_are_copied():
    size = np.array([4])
    buffers = Buffers(["a"], [0], [1], size)
    size[0] = 0
    assert buffers.size[0] == 4
    with pytest.raises(ValueError, match="read-only"):
        buffers.size[0] = 1


def test_overlaps_are_named():
    buffers = Buffers(["a", "b", "c"], [0, 1, 2], [2, 3, 4], [4, 4, 4])
    check_packing(buffers, [0, 4, 0], capacity=8, alignment=4)
    with pytest.raises(GraphError, match="'a' and 'b' are live at once and overlap"):
        check_packing(buffers, [0, 3, 8])
    with pytest.raises(GraphError, match="'c' and 'b' are live at once and overlap"):
        check_packing(buffers, [0, 4, 1])
    with pytest.raises(GraphError, match="'b' ends at 8, above 7 bytes"):
        check_packing(buffers, [0, 4, 0], capacity=7)
    with pytest.raises(GraphError, match="'b' lies at 4, no multiple of 8"):
        check_packing(buffers, [0, 4, 0], alignment=8)
    with pytest.raises(GraphError, match="'a' lies at -1"):
        check_packing(buffers, [-1, 4, 0])
    with pytest.raises(InputError, match="2 offsets for 3 buffers"):
        check_packing(buffers, [0, 4])


@given(st.lists(ROW, max_size=12), st.data())
def test_the_checker_agrees_with_all_pairs(rows, data):
    buffers = buffers_of(rows)
    offsets = data.draw(st.lists(st.integers(0, 60), min_size=len(rows), max_size=len(rows)))
    found = [(s, s + n, o, o + z) for (s, n, z), o in zip(rows, offsets, strict=True)]
    clash = any(
        a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
        for a, b in itertools.combinations(found, 2)
    )
    if clash:
        with pytest.raises(GraphError, match="overlap"):
            check_packing(buffers, offsets)
    else:
        check_packing(buffers, offsets)


@pytest.mark.parametrize("seed", range(4))
def test_tight_plans_are_found(seed):
    buffers = cut(40, seed)
    found = pack(buffers, time_limit=60)
    assert (found.arena, found.status) == (64, "optimal")
    check_packing(buffers, found.offsets, 64)


def test_there_are_known_cases(shared_data):
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_known_cases(file: Path):
    buffers = read_buffers(file)
    name = file.stem.rpartition(".")[2]
    capacity = int(name) if name.isdigit() else None
    # Far more than is needed, and no more than that is taken.
    limit = 60 if capacity else 0.5
    found = pack(buffers, capacity=capacity, time_limit=limit)
    check_packing(buffers, found.offsets, capacity)
    assert found.status == "fits" if capacity else found.ratio <= 1.01


def test_loops_are_compiled_once(tmp_path):
    code = (
        "from graphopt.memory import Buffers, pack; from graphopt.kernels.packing import greedy\n"
        "pack(Buffers('ab', [0, 1], [2, 3], [1, 2]))\n"
        "print(sum(greedy.place.stats.cache_hits.values()))"
    )
    hits = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPOSITORY,
            env={"GRAPHOPT_CACHE_DIR": str(tmp_path), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        hits.append(int(done.stdout))
    assert hits == [0, 1]
