"""The text of notebook functions in the payload, and its syntax colours."""

import linecache

import pytest
import torch

from meta_magic import record
from meta_magic.view.source_payload import find_texts, write_tokens

PLAIN, KEYWORD, STRING, NUMBER, COMMENT, NAME = range(6)


def test_each_part_of_a_line_is_of_a_kind_and_as_long_as_it_is():
    assert write_tokens("return 12") == [[KEYWORD, 6, PLAIN, 1, NUMBER, 2]]
    assert write_tokens("def f(x):  # why") == [
        [KEYWORD, 3, PLAIN, 1, NAME, 1, PLAIN, 6, COMMENT, 5]
    ]


def test_the_plain_end_of_a_line_is_left_out():
    assert write_tokens("x + y") == [[]]
    assert write_tokens("len(x)") == [[NAME, 3]]


def test_a_text_of_several_lines_is_a_stretch_of_each():
    assert write_tokens('"""a\n\nbc"""') == [[STRING, 4], [], [STRING, 5]]


def test_lengths_are_those_of_javascript():
    assert write_tokens("'🙂é'") == [[STRING, 5]]  # the emoji is two units


def test_what_is_no_python_is_plain():
    assert write_tokens("%%meta -o x\n2\n!ls 'a") == [[], [NUMBER, 1], []]
    assert write_tokens("if x:\n    y\n  '") == [[KEYWORD, 2], [], []]


CELL = "<a cell>"
BODY = "def double(x):\n    return x * 2"


@pytest.fixture
def send_texts(monkeypatch):
    """What is sent of a cell that another one calls ``double`` of."""

    def send(source, kept):
        lines = kept.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, CELL, (len(kept), None, lines, CELL))
        namespace = {}
        exec(compile(source, CELL, "exec"), namespace)
        with record() as trace:
            namespace["double"](torch.ones(2))
        return [*find_texts(trace.program, __file__)]

    return send


@pytest.mark.parametrize("above", ["", "x = 1\n", "x = 'a\x0cb'\n\x0c\n"])
def test_a_function_is_sent_as_it_is_written(above, send_texts):
    (found,) = send_texts(f"{above}{BODY}\n", f"{above}{BODY}\n")
    assert found["text"] == BODY
    assert found["first"] == above.count("\n") + 1


@pytest.mark.parametrize("kept", ["{% if x %}\n", "x = '\0'\n"])
def test_what_is_kept_of_a_file_may_be_no_python(kept, send_texts):
    assert send_texts(BODY, kept) == []
