"""Sizes as people write them."""

import math

import pytest

from teccl_msccl.collective.size import format_size, parse_size
from teccl_msccl.errors import InputError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0), ("4096", 4096), ("1b", 1), ("1KB", 1e3), ("64MB", 64e6), ("1GB", 1e9), ("2TB", 2e12),
        ("1KiB", 2**10), ("64MiB", 2**26), ("1GiB", 2**30), ("1TiB", 2**40), (" 1.5 gib ", 1.5 * 2**30),
        ("1e3", 1000), ("1e+06", 1e6), ("1e6kb", 1e9), ("1e18", 1e18), (".5MB", 5e5), ("5.kb", 5e3), ("0.1b", 0.1),
        (7, 7), (2.5, 2.5), (10**15, 1e15),
    ],
)  # fmt: skip
def test_units(text, nbytes):
    assert parse_size(text) == nbytes
    if isinstance(text, str):
        assert parse_size(text.upper()) == parse_size(text.lower()) == nbytes


@pytest.mark.parametrize(("text", "nbytes"), [("1K", 2**10), ("3m", 3 * 2**20), ("2G", 2**31), ("2GB", 2e9)])
def test_one_letter_units_are_binary_and_only_where_asked_for(text, nbytes):
    assert parse_size(text, one_letter=True) == nbytes
    if not text.endswith("B"):
        with pytest.raises(InputError, match="not understood"):
            parse_size(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "MB", "-1", "-1MB", "1 M B", "1,5MB", "1PB", "1e-3", "1e", "e3", "nan", "inf", "0x10", "1MB1", "1..2",
     "٣", "1e999", "9" * 400, "1e300TB", "1e19", "2e6TB", 1e100,
     10**400, math.nan, math.inf, -1, -0.5, None, "1_000", b"1MB", [], 1j],
)  # fmt: skip
def test_what_is_no_size_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="size") as refused:
        parse_size(text)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (0.5, "0.5 B"), (999, "999 B"), (1000, "1 KB"), (123456, "123.5 KB"), (1e6, "1 MB"), (64e6, "64 MB"),
     (2.5e9, "2.5 GB"), (1e15, "1000 TB")],
)  # fmt: skip
def test_sizes_are_shown_in_the_largest_unit(nbytes, text):
    assert format_size(nbytes) == text
    assert parse_size(text) == pytest.approx(nbytes, rel=1e-3)
