"""Shapes by name, found by recording again with other values."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials import dims
from meta_magic.trials.dims import Calls, name_trace
from meta_magic.trials.size_formulas import choose, propose
from tests.conformance.recorded_cells import record_cell


def test_names_of_one_value_are_told_apart_as_each_moves_alone():
    with record(dims="B,T,D,H") as trace:
        B, T, D, H = 4, 4, 32, 4
        x = nn.Linear(D, 3 * D)(torch.randn(B, T, D))
        q, k, _ = x.view(B, T, 3, H, D // H).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1)
    assert trace.shape(x) == "[B, T, 3*D]"
    assert trace.shape(q) == "[B, H, T, D//H]"
    assert trace.shape(scores) == "[B, H, T, T]"
    assert trace.dims.named == trace.dims.moving > 0
    frame = trace.to_pandas(dims=True)
    assert "[B*H, T, T]" in [*frame.output_shapes]
    assert "(B, T, D) -> (B, T, 3*D)" in trace.summary()


def test_rounded_sizes_have_a_formula():
    with record(dims="S") as trace:
        S = 33
        x = nn.Conv2d(1, 2, 3, stride=2, padding=1)(torch.ones(1, 1, S, S))
        y = nn.functional.max_pool2d(x, 2)
    assert trace.shape(x) == "[1, 2, ceil(S/2), ceil(S/2)]"
    assert trace.shape(y)[7:] == "(S + 1)//4, (S + 1)//4]"


@dataclass
class Config:
    n_embd: int = 12
    n_head: int = 3


def test_an_argument_and_a_literal_are_names():
    with record(dims="n_embd,B=7") as trace:
        config = Config(n_embd=24)
        x = nn.Linear(config.n_embd, 5)(torch.ones(7, config.n_embd))
    assert trace.shape(x) == "[B, 5]"
    assert trace.dims.values == {"n_embd": 24, "B": 7}
    assert trace.modules[0].tensors[0].shape == (5, 24)
    assert "B, n_embd" in trace.summary()


def test_auto_takes_variables_and_fields_of_classes():
    with record(dims="auto") as trace:

        @dataclass
        class Sizes:
            width: int = 6
            bias: bool = True

        B, own = 7, Sizes()
        x = nn.Linear(own.width, own.width * 2, own.bias)(torch.ones(B, own.width))
    assert trace.shape(x) == "[B, 2*width]"
    assert trace.dims.values == {"B": 7, "width": 6}


def test_a_size_by_value_is_its_number_and_an_idle_name_is_reported():
    with record(dims="N,idle") as trace:
        N, idle = 6, 5
        x = torch.arange(N).nonzero()
        torch.ones(3) * idle
    assert trace.shape(x)[1] in "N5"
    assert "no size depends on idle" in str(trace.dims)
    assert any(note.kind == "dims" for note in trace.named.notes)


def test_calls_whose_number_depends_on_a_size_are_compared_by_turn():
    with record(dims="B,T") as trace:
        B, T = 2, 3
        cell, h = nn.GRUCell(4, 5), torch.zeros(B, 5)
        for x in torch.ones(T, B, 4):
            h = cell(x, h)
    assert trace.shape(h) == "[B, 5]"


def test_a_name_that_is_not_there_is_said_in_a_note():
    with record(dims="Q") as trace:
        torch.ones(3)
    with pytest.raises(TrialError, match="no name 'Q'"):
        _ = trace.dims
    assert "no sizes have names: the block has no name 'Q'" in trace.summary()


def test_without_names_a_shape_by_name_is_refused():
    with record() as trace:
        x = torch.ones(3)
    assert trace.dims is None
    with pytest.raises(TrialError, match="has no names"):
        trace.shape(x)
    with pytest.raises(ValueError, match="not 'B T'"):
        record(dims="B T")


@pytest.mark.parametrize(
    ("others", "formula"),
    [
        ([12, 24, 12, 24], "3*D"),
        ([8, 16, 4, 8], "4*D//H"),
        ([5, 9, 5, 9], "D + 1"),
        ([17, 65, 17, 65], "D*D + 1"),
        ([6, 10, 8, 12], "D + H"),
        ([2, 4, 1, 2], "D//H"),
    ],
)
def test_a_small_form_is_proposed(others, formula):
    sizes = [{"D": 4, "H": 2}, {"D": 8, "H": 2}, {"D": 4, "H": 4}, {"D": 8, "H": 4}]
    points = [*zip(sizes, others, strict=True)]
    assert choose(points, propose(points)) == formula


def test_a_quotient_without_a_rest_comes_before_one_that_is_rounded():
    points = [({"H": n}, n // 16) for n in (64, 128, 192)]
    assert all(n // 15 == n // 16 for n in (64, 128, 192))
    assert choose(points, propose(points)) == "H//16"


def test_calls_are_compared_from_the_front_and_from_the_back():
    assert align("absscd", "abscd") == [0, 1, 2, 4, 5]
    assert align("ascd", "axcd") == [0, None, 2, 3]


def align(text, usual, lines="0" * 9, its_lines="0" * 9):
    def make(text, lines):
        kinds = [(op, (((i,),), ())) for i, op in enumerate(text)]
        return Calls([*range(len(text))], kinds, [*lines[: len(text)]])

    found = make(text, lines).align(make(usual, its_lines))
    return [one and one[0][0][0] for one in found]


def test_calls_between_two_loops_are_compared_line_by_line():
    assert align("asstbuuc", "astbuc") == [0, 1, None, None, 6, 7]
    assert align("asstbuuc", "astbuc", "01112333", "011233") == [0, 1, 3, 4, 5, 7]
    assert align("absscd", "abscd", "011123", "01123") == [0, 1, 2, 4, 5]


def test_notes_on_mistakes_have_shapes_by_name():
    text = "import torch\nB, T, D = 4, 6, 16\nx = torch.randn(B, T, D).view(B, D, T)\n"
    trace = record_cell(f"{text}y = torch.nn.Linear(T, D)(x)", "<named>")
    options = trace.rerun.options._replace(dims=("B", "T", "D"))
    named = name_trace(replace(trace, rerun=replace(trace.rerun, options=options)))
    (note,) = named.wrong
    mixed = "mixes dimensions: (T, D) are dealt out as (D, T)"
    assert note.text.startswith(f"view of (B, T, D) to (B, D, T) {mixed}")


def test_sizes_that_depend_on_drawn_values_are_numbers():
    with record(dims="B") as trace:
        B = 40
        x = torch.randn(B, 3)
        y = x[x > 0]
        z = x @ x.T
    assert trace.shape(z) == "[B, B]"
    assert trace.shape(y) == f"[{len(y)}]"
    assert "depend on values" in str(trace.dims)


def test_a_product_of_rounded_sizes_has_a_formula():
    with record(dims="S,P") as trace:
        S, P = 32, 8
        x = nn.Conv2d(1, 2, P, stride=P)(torch.ones(1, 1, S, S)).flatten(2)
        y = torch.cat([x, x[..., :1]], -1)
    assert trace.shape(x) == "[1, 2, (S//P)**2]"
    assert trace.shape(y) == "[1, 2, (S//P)**2 + 1]"


def test_a_count_of_patches_has_a_formula_by_three_names():
    with record(dims="B,L,P,S") as trace:
        B, L, P, S = 2, 50, 8, 3
        x = torch.ones(B, L).unfold(1, P, S)
        y = x.reshape(-1, P)
    assert trace.shape(x) == "[B, (L - P)//S + 1, P]"
    assert trace.shape(y) == "[B*((L - P)//S + 1), P]"


def test_a_product_of_names_that_is_rounded_has_a_formula():
    with record(dims="H,d,S") as trace:
        H, d, S = 4, 9, 13
        x = nn.Linear(1, H * d * 8 // 3)(torch.ones(1, 1))
        y = torch.ones(H, S // 4).flatten()
    assert trace.shape(x) == "[1, 8*H*d//3]"
    assert trace.shape(y) == "[H*(S//4)]"


def test_names_that_there_is_no_time_for_are_said(monkeypatch):
    monkeypatch.setattr(dims, "SECONDS", 0.05)
    with record(dims="B,T") as trace:
        B, T = 2, 3
        for _ in range(2000):
            torch.tanh(torch.ones(B, T))
    (text,) = [note.text for note in trace.named.notes if note.kind == "dims"]
    assert "it takes too long to record" in text
