"""Integers in a row that goes on."""

from array import array

from meta_magic.trace.program import Growing


def test_a_view_stays_as_it_is_while_more_are_added():
    column, growing = array("I", range(5)), Growing()
    first = growing.follow(column)
    column.extend(range(5, 20_000))
    second = growing.follow(column)
    assert (first.tolist(), second.tolist()) == ([*range(5)], [*range(20_000)])
    assert len(growing) == 20_000


def test_a_view_copies_nothing():
    growing = Growing()
    growing.extend(array("I", [1, 2]))
    assert growing.view().obj is growing.view().obj


def test_there_may_be_none():
    assert Growing().view().cast("B").cast("I").tolist() == []
