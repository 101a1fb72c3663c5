"""Bytes as text that no file of a notebook escapes, and back."""

import json
import shutil
import subprocess

import pytest

from meta_magic.view.page import DIGITS, write_base91, write_packed
from meta_magic.view.scripts import join_scripts
from tests.base91 import read_base91

NODE = shutil.which("node")
ALL_BYTES = bytes(range(256)) * 3
"""Each value at each of the places that its bits can have in a pair."""


@pytest.mark.parametrize("n_bytes", range(28))
def test_bytes_of_any_number_come_back(n_bytes):
    data = ALL_BYTES[-n_bytes:] if n_bytes else b""
    assert read_base91(write_base91(data), n_bytes) == data


def test_thirteen_bits_are_two_characters():
    # 13 bits of ones are 8191 = 90 * 91 + 1.
    assert write_base91(b"\xff" * 13) == 8 * (DIGITS[90] + DIGITS[1])
    assert write_base91(b"\x00") == 2 * DIGITS[0]


def test_neither_json_nor_a_script_in_html_ends_at_a_digit():
    assert len(set(DIGITS)) == 91
    assert json.dumps(DIGITS) == f'"{DIGITS}"'
    assert not set("'<\\") & set(DIGITS)


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
@pytest.mark.parametrize("n_bytes", [0, 1, 12, 13, 14, 768])
def test_a_browser_reads_them(n_bytes):
    data = ALL_BYTES[len(ALL_BYTES) - n_bytes :]
    packed = f"report.read_base91({write_packed(data)})"
    script = f"{join_scripts('starter')}\nconsole.log(JSON.stringify([...{packed}]))"
    done = subprocess.run([NODE, "-e", script], capture_output=True, check=True)
    assert bytes(json.loads(done.stdout)) == data
