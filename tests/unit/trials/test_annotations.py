# ruff: noqa: E501, ISC004  programs and texts as people read them
"""Annotations of shapes in the form of jaxtyping: checked, and written."""

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials.annotations import align, check_annotations
from tests.conformance.recorded_cells import record_cell

HEAD = """import torch
from torch import Tensor, nn
class Float:  # as jaxtyping's: what is subscripted knows its text and dtypes
    def __class_getitem__(cls, given):
        return type("Float", (), {"dim_str": given[1], "dtypes": ("float16", "float32")})
"""


def find_notes(text, *dims):
    trace = record_cell(HEAD + text, "<annotated>")
    assert trace.error is None
    rerun = replace(trace.rerun, options=trace.rerun.options._replace(dims=dims))
    notes = check_annotations(replace(trace, rerun=rerun))
    return [(note.line - HEAD.count("\n"), note.text) for note in notes]


def test_a_result_with_another_size_is_noted_with_both():
    text = """class Linear(nn.Module):
    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.w: Float[nn.Parameter, "d_out d_in"] = nn.Parameter(torch.ones(d_in, d_out))
    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_in"]:
        return x @ self.w
Linear(8, 12)(torch.ones(2, 3, 8))"""
    assert find_notes(text) == [
        (
            4,
            'self.w is annotated "d_out d_in" and is [8, 12]: d_out is 12, and this is 8',
        ),
        (
            6,
            'the result of forward is annotated "... d_in" and is [2, 3, 12]: d_in is 8, '
            "and this is 12",
        ),
    ]


def test_another_number_of_dimensions_is_noted():
    text = """def flat(x: "Float[Tensor, 'b t d']") -> Float[Tensor, "b t d"]:
    return x.flatten(1)
flat(torch.ones(2, 3, 4))"""
    assert find_notes(text) == [
        (
            2,
            'the result of flat is annotated "b t d" and is [2, 12]: 2 dimensions instead '
            "of 3",
        )
    ]


def test_sizes_that_are_equal_by_chance_are_noted_by_name():
    text = """def turn(x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
    return x.transpose(0, 1)
B, T = 4, 4
turn(torch.ones(B, T, 3))"""
    assert find_notes(text) == []
    ((line, note),) = find_notes(text, "B", "T")
    assert line == 2
    assert note.endswith("is [T, B, 3]: b is B, and this is T, which is 4 as well")


def test_right_annotations_and_those_of_other_dtypes():
    text = """from typing import Optional
def f(x: Float[Tensor, "b t d"], m: Optional[Float[Tensor, "b #t"]] = None) -> tuple[Float[Tensor, "b t 2*d"], int]:
    y: Float[Tensor, "*any 2*d"] = torch.cat([x, x], -1)
    return y, 3
f(torch.ones(2, 3, 4), torch.ones(2, 1))
f(torch.ones(5, 6, 7))
def g(x: Float[Tensor, "_ 3"]): pass
g(torch.ones(2, 3).double())"""
    assert find_notes(text) == [
        (7, 'x of g is annotated "_ 3" and is float64, not float16 or float32')
    ]


def test_functions_of_the_users_modules_are_checked_as_they_are_called(
    tmp_path, monkeypatch
):
    text = f"""{HEAD}
class Turn(nn.Module):
    @torch.no_grad()
    def forward(self, x: Float[Tensor, "b t"], n: int) -> 'tuple[Float[Tensor, "b t"], int]':
        return x.mT, n
def turn(x):
    y: Float[Tensor, "a b"] = x
    z: Float[Tensor, "a b"] = x.mT
    w: Float[Tensor, "a"] = x
    w = x[:, 0]
    return y
"""
    (tmp_path / "turned.py").write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "jaxtyping", sys)
    block = "import torch, turned\nx = torch.ones(2, 3)\n"
    block += "turned.Turn()(x, 4); turned.turn(x)"
    notes = check_annotations(record_cell(block, "<block>"))
    assert [note.text.partition("turned.py, ")[2] for note in notes] == [
        'line 8: the result of Turn.forward is annotated "b t" and is [3, 2]: b is 2, and this is 3',
        'line 13: z is annotated "a b" and is [3, 2]: a is 2, and this is 3',
    ]


def test_each_turn_of_a_loop_of_the_block_has_its_own_sizes():
    text = """w: Float[Tensor, "d"] = torch.ones(4)
for n in (3, 2):
    x: Float[Tensor, "b d"] = torch.ones(n, 4)
    y: Float[Tensor, "b d"] = torch.ones(n, n + 2)"""
    assert find_notes(text) == [
        (4, 'y is annotated "b d" and is [3, 5]: d is 4, and this is 5')
    ]


def test_sizes_that_may_broadcast_stand_for_the_larger_one():
    text = """def f(x: Float[Tensor, "*#n 3"], y: Float[Tensor, "*#n 3"]) -> Float[Tensor, "*n 3"]:
    return (x + y)[..., :1, :]
f(torch.ones(4, 1, 3), torch.ones(5, 3))"""
    assert find_notes(text) == [
        (
            2,
            'the result of f is annotated "*n 3" and is [4, 1, 3]: n is 4, 5, and this is 4, 1',
        )
    ]


def test_many_dimensions_stand_for_any_number():
    assert align(["*a", "b"], (2, 3, 4), ("2", "3", "4")) == [
        ("*a", (2, 3), ("2", "3")),
        ("b", (4,), ("4",)),
    ]
    assert align(["...", "b"], (4,), ("4",)) == [("...", (), ()), ("b", (4,), ("4",))]
    assert align(["a", "b"], (4,), ("4",)) is None


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x, image, mask=None, *, scale=1.0):
        return self.down(self.up(x)), self.conv(image)


def test_sizes_are_names_and_what_differs_between_calls_is_none():
    with record(dims="B,T,D,S") as trace:
        B, T, D, S = 2, 5, 8, 33
        image = torch.ones(B, 3, S, S)
        model = Model(D)
        model(torch.ones(B, T, D), image, mask=torch.ones(B, T).bool())
    assert trace.annotate(model) == (
        "from jaxtyping import Bool, Float\n"
        "from torch import Tensor\n\n\n"
        'def forward(self, x: Float[Tensor, "B T D"], image: Float[Tensor, "B 3 S S"], '
        'mask: Bool[Tensor, "B T"] | None = None, *, scale = 1.0) -> '
        'tuple[Float[Tensor, "B T D"], Float[Tensor, "B 4 -(-S//2) -(-S//2)"]]: ...\n'
    )
    linear = trace.annotate(nn.Linear)
    assert 'input: Float[Tensor, "B T _"]) -> Float[Tensor, "B T _"]: ...' in linear


def test_without_names_sizes_are_numbers_and_a_class_must_be_called():
    with record() as trace:
        nn.Flatten()(torch.ones(2, 3, 5).long())
    wanted = 'input: Int[Tensor, "2 3 5"]) -> Int[Tensor, "2 15"]'
    assert wanted in trace.annotate(nn.Flatten)
    with pytest.raises(TrialError, match="no call of a Linear"):
        trace.annotate(nn.Linear)
