"""The texts of functions that other cells of a notebook define."""

import linecache

import pytest
import torch

from meta_magic import record
from meta_magic.view.source_payload import find_texts

NAME = "<a cell>"
BODY = "def double(x):\n    return x * 2"


@pytest.fixture
def send_texts(monkeypatch):
    """What is sent of a cell that another one calls ``double`` of."""

    def send(source, kept):
        lines = kept.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, NAME, (len(kept), None, lines, NAME))
        namespace = {}
        exec(compile(source, NAME, "exec"), namespace)
        with record() as trace:
            namespace["double"](torch.ones(2))
        return [*find_texts(trace.program)]

    return send


@pytest.mark.parametrize("above", ["", "x = 1\n", "x = 'a\x0cb'\n\x0c\n"])
def test_a_function_is_sent_as_it_is_written(above, send_texts):
    (found,) = send_texts(f"{above}{BODY}\n", f"{above}{BODY}\n")
    assert found["text"] == BODY
    assert found["first"] == above.count("\n") + 1


@pytest.mark.parametrize("kept", ["{% if x %}\n", "x = '\0'\n"])
def test_what_is_kept_of_a_file_may_be_no_python(kept, send_texts):
    assert send_texts(BODY, kept) == []
