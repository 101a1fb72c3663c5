"""Which ranks are recorded where those that differ are asked for."""

import pytest

from meta_magic.trace.world import read_ranks


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("", ()),
        ("if rank == 5: pass", (5,)),
        ("if dist.get_rank() in (3, 9): pass", (3, 9)),
        ("if self.rank < 32: pass", (31, 32)),  # both sides of the border
        ("if rank == 0 or rank == 63 or rank == 64: pass", ()),  # there, or no rank
        ("if step == 7: rank = 3", ()),
        ("no Python", ()),
    ],
)
def test_ranks_that_differ_are_those_that_the_code_names_too(code, named):
    assert read_ranks("differing", 64, code) == (0, 1, *named, 63)
