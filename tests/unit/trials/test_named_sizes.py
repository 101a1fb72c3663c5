"""Sizes that a block's text names, told without running it."""

import pytest
import torch

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials.blocks import list_sizes
from meta_magic.trials.recordings import Recordings
from meta_magic.trials.trial import check_rerun

WIDTH = 5


def names_of(trace):
    return list_sizes(check_rerun(trace))


def test_what_a_block_reads_is_as_it_was_before():
    rows, zero, text, flag, unread = 4, 0, "8", True, 3
    with record() as trace:
        torch.ones(rows, WIDTH + zero + len(text) + flag)
    assert names_of(trace) == {"rows": 4, "WIDTH": 5}
    assert unread


def test_what_it_binds_to_a_number_is_that():
    rows = 1
    with record() as trace:
        rows, (columns, depth) = 4, (6, 7)
        other = unread = 8
        torch.ones(rows, columns, depth, other)
    assert names_of(trace) == {"rows": 4, "columns": 6, "depth": 7, "other": 8}
    assert unread


def test_what_it_computes_is_not_known():
    rows = columns = depth = height = 4
    with record() as trace:
        rows = rows * 2
        columns += 1
        depth = 2
        depth = 3
        for height in (1, 2):
            torch.ones(rows, columns, depth, height)
    assert names_of(trace) == {}


def test_names_of_functions_in_it_are_others():
    with record() as trace:

        def make():
            inner = 3
            return torch.ones(inner)

        make()
    assert names_of(trace) == {}


@pytest.mark.parametrize("name", ["rows", "columns", "depth"])
def test_the_text_says_what_a_run_does(name):
    rows = 4
    with record() as trace:
        columns = 6
        depth = rows + columns
        torch.ones(rows, columns, depth)
    size = Recordings(trace).read_size(name)
    assert size == {"rows": rows, "columns": columns, "depth": depth}[name]


def test_what_cannot_be_run_again_says_why():
    variables = {"record": record}
    exec("with record() as trace:\n    pass", variables)
    with pytest.raises(TrialError, match="is run again"):
        Recordings(variables["trace"]).list_sizes()
