"""A semicolon at the end of a cell, also where IPython does not look for it."""

import pytest

from meta_magic.magic.line_options import ends_with_semicolon, silence_at_semicolon


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("41 + 1;", True),
        ("x = 1\n41 + 1;  # the answer\n\n", True),
        ("41 + 1", False),
        ("print(';')", False),
        ("41 + 1  # ;", False),
        ("", False),
        ("'''", False),
    ],
)
def test_the_last_token_of_code_is_what_counts(code, ends):
    assert ends_with_semicolon(code) is ends


def test_a_silenced_magic_returns_nothing_of_a_line_and_of_a_cell():
    silenced = silence_at_semicolon(lambda magics, line, cell=None: 42)
    assert silenced(None, "41 + 1") == 42
    assert silenced(None, "41 + 1;") is None
    assert silenced(None, "-q;", "41 + 1") == 42
    assert silenced(None, "", "41 + 1;") is None
