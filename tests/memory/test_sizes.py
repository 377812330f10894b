from __future__ import annotations

import pytest

from graphopt.errors import InputError
from graphopt.memory.sizes import parse_size, print_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("900MB", 900_000_000),
        ("1.5 GiB", 3 << 29),
        ("12kb", 12_000),
        ("7", 7),
        (4096, 4096),
        ("2 MiB", 2 << 20),
    ],
)
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "MB", "-5MB", "5 parsecs", "1e3", "0", 0, -1, "9999999TB", True, "9e9GB", "2000000 GB"],
)
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(InputError, match="size"):
        parse_size(text)


def test_sizes_are_printed_in_the_largest_unit() -> None:
    assert print_size(999) == "999 bytes"
    assert print_size(8_640_000) == "8.6 MB"
    assert print_size(123_456_789) == "123 MB"
    assert print_size(1_434_000_000) == "1.43 GB"


@pytest.mark.parametrize("size", [1, 1001, 8_640_001, 123_456_789, 1_434_000_001])
def test_a_size_rounded_up_is_enough(size: int) -> None:
    text = print_size(size, up=True)
    assert parse_size(text.replace(" bytes", "")) >= size
