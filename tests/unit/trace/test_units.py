import pytest

from meta_magic.trace.units import format_bytes, format_count


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (3 * 2**30 // 2, "1.5 GiB"),
        (5 * 2**60, "5,120.0 PiB"),
    ],
)
def test_bytes_are_binary_units(nbytes, text):
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (1000, "1.0 K"), (70_553_706_496, "70.6 B"), (999_999, "1.0 M")],
)
def test_counts_are_decimal_units(count, text):
    assert format_count(count) == text
