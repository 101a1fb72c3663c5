"""The payload of the details panel, and settings of modules in short."""

import linecache

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.view.details_payload import ARROW, TIMES, shorten_settings
from meta_magic.view.payload import build_payload
from meta_magic.view.source_payload import find_texts, write_tokens


def build(make):
    with record() as trace:
        kept = make()
    assert kept is not None
    return trace, build_payload(trace)


def test_alike_modules_share_their_settings_and_class():
    _, payload = build(lambda: nn.Sequential(*(nn.Linear(4, 4) for _ in range(50))))
    details = payload["details"]
    short = [f"4{ARROW}4", ""]
    assert details["settings"] == [["", "", ""], [nn.Linear(4, 4).extra_repr(), *short]]
    assert details["settings_of"] == [0] + [1] * 50
    docs = [row["docs"] for row in details["definitions"]]
    pages = "https://docs.pytorch.org/docs/stable/generated"
    assert docs == [
        f"{pages}/torch.nn.Sequential.html",
        f"{pages}/torch.nn.Linear.html",
    ]


def test_inputs_have_the_names_of_the_schema():
    def run():
        x = torch.ones(2, 2)
        return torch.addmm(x, x, x), torch.cat([x, x])

    _, payload = build(run)
    signatures = payload["signatures"]
    names = dict(zip(signatures["op"], signatures["names"], strict=True))
    assert names["aten.addmm.default"] == ["self", "mat1", "mat2"]
    assert names["aten.cat.default"] == ["tensors[0]", "tensors[1]"]


class Attention(nn.Module):
    def __init__(self, dim, *, n_heads=8, dropout=0.0, is_causal=False, use_bias=True):
        super().__init__()
        self.dim, self.n_heads, self.dropout = dim, n_heads, dropout
        self.is_causal, self.use_bias, self.backend = is_causal, use_bias, None


class Named(nn.Module):
    def extra_repr(self):
        return "mode='a, b', window=(1, 2)\nis_odd=False"


def nothing_known():
    with record() as trace:
        named = Named()
    assert named is not None
    return trace.modules[0].definition


def shorten(make):
    with record() as trace:
        module = make()
    assert module is not None
    (node,) = trace.modules
    return shorten_settings(node.settings, node.definition)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.BatchNorm2d(8), ("8", "")),
        (lambda: nn.LayerNorm((4, 8)), (f"4{TIMES}8", "")),
        (lambda: nn.GroupNorm(2, 8), ("2, 8", "")),
        (lambda: nn.Linear(2, 3), (f"2{ARROW}3", "")),
        (lambda: nn.Linear(2, 3, bias=False), (f"2{ARROW}3", "bias=False")),
        (lambda: nn.Embedding(9, 4), (f"9 {TIMES} 4", "")),
        (lambda: nn.Conv2d(3, 4, 3), (f"3{ARROW}4", f"3{TIMES}3")),
        (
            lambda: nn.Conv2d(3, 4, (3, 5), 2, (1, 2)),
            (f"3{ARROW}4", f"3{TIMES}5, stride 2, padding 1{TIMES}2"),
        ),
        (lambda: nn.MaxPool2d(3, 2), ("", f"3{TIMES}3, stride 2")),
        (lambda: nn.AvgPool1d(3, 2), ("", "kernel 3, stride 2")),
        (nn.Dropout, ("", "")),
        (lambda: nn.ReLU(inplace=True), ("", "inplace")),
    ],
)
def test_what_all_modules_of_a_class_have_by_default_is_left_out(make, text):
    assert shorten(make) == text


def test_the_defaults_of_a_base_are_known():
    assert shorten(lambda: nn.LSTM(3, 4)) == (f"3{ARROW}4", "")


def test_sizes_and_what_is_on_come_before_fractions():
    text = shorten(
        lambda: nn.LSTM(3, 4, 2, False, True, dropout=0.5, bidirectional=True)
    )
    others = "num_layers=2, bias=False, bidirectional, batch_first, dropout=0.5"
    assert text == (f"3{ARROW}4", others)


def test_of_plain_attributes_what_is_off_is_left_out():
    assert shorten(lambda: Attention(64)) == ("", "dim=64")
    text = shorten(lambda: Attention(64, n_heads=4, dropout=0.1, is_causal=True))
    assert text == ("", "n_heads=4, dim=64, is_causal, dropout=0.1")


def test_what_a_class_says_is_kept_in_one_line():
    assert shorten(Named) == ("", "mode='a, b', window=(1, 2) is_odd=False")


@pytest.mark.parametrize("text", ["", "a, b", "f(a, b", "x=1)], y", "=", "é=[1, 2]"])
def test_what_makes_no_sense_is_not_lost(text):
    assert shorten_settings(text, nothing_known()) == ("", text)


def test_the_settings_of_a_module_that_was_not_looked_at_stay_as_they_are():
    assert shorten_settings("a=1,\n  b=True", None) == ("", "a=1, b=True")


# The text of notebook functions in the payload, and its syntax colours


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
