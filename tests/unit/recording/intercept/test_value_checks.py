"""Indices, classes and masks out of range are refused as on the CPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import ValueLimits, children, record
from tests.unit.eager import assert_refused_alike, assert_same, outcome


def table():
    return torch.arange(15.0).view(5, 3)


def at(*positions):
    return torch.tensor(positions)


CALLS = {
    "embedding": lambda i: F.embedding(at(i), table()),
    "embedding_bag": lambda i: F.embedding_bag(at(i), table(), at(0)),
    "an offset": lambda i: F.embedding_bag(at(0, 1, 2, 3), table(), at(0, i)),
    "max_norm": lambda i: F.embedding(at(i), table(), max_norm=1.0),
    "gather": lambda i: table().gather(0, at(i)[:, None]),
    "take": lambda i: table()[:, 0].take(at(i)),
    "put": lambda i: table()[:, 0].put(at(i), torch.ones(1)),
    "index_select": lambda i: table().index_select(0, at(i)),
    "an index": lambda i: table()[at(i)],
    "the second index": lambda i: table()[at(0), at(i)],
    "an index after a mask": lambda i: torch.ones(2, 5)[
        torch.tensor([True, False]), at(i)
    ],
    "an index of a write": lambda i: table().__setitem__(at(i), 1.0),
    "index_add": lambda i: table().index_add(0, at(i), torch.ones(1, 3)),
    "index_copy_": lambda i: table().index_copy_(0, at(i), torch.ones(1, 3)),
    "scatter": lambda i: table().scatter(0, at(i)[:, None], 1.0),
    "scatter_reduce": lambda i: table().scatter_reduce(
        0, at(i)[:, None], torch.ones(1, 1), "sum"
    ),
    "cross_entropy": lambda i: F.cross_entropy(torch.ones(2, 5), at(0, i)),
    "ignored classes": lambda i: F.nll_loss(
        torch.ones(2, 5), at(-1, i), ignore_index=-1
    ),
    "multi_margin_loss": lambda i: F.multi_margin_loss(torch.ones(2, 5), at(0, i)),
    "multilabel_margin_loss": lambda i: F.multilabel_margin_loss(
        torch.ones(1, 5), at(0, i, -1, 0, 0)[None]
    ),
    "one_hot": lambda i: F.one_hot(at(0, i), 5),
    "max_unpool": lambda i: F.max_unpool1d(torch.ones(1, 1, 1), at(i).view(1, 1, 1), 5),
    "packed lengths": lambda i: nn.utils.rnn.pack_padded_sequence(
        torch.ones(6, 2, 1), at(6, i)
    ),
    "bincount": lambda i: at(i).bincount(),
    "repeat_interleave": lambda i: at(7).repeat_interleave(at(i)),
    "probabilities": lambda i: torch.multinomial(torch.tensor([1.0, i]), 1),
    "a mask's count": lambda i: torch.zeros(6).masked_scatter(
        torch.tensor([True] * abs(i) + [False] * (6 - abs(i))), torch.ones(4)
    ),
}
POSITIONS = (-6, -5, -1, 0, 4, 5)


@pytest.mark.parametrize("name", CALLS)
def test_what_a_constant_holds_is_refused_where_the_cpu_refuses_it(name):
    call = CALLS[name]
    for position in POSITIONS:
        assert_same(lambda at=position: outcome(call, at), as_device="cpu")
    assert any(outcome(call, position) for position in POSITIONS)


@pytest.mark.parametrize(
    "labels",
    [
        lambda: torch.arange(12).view(3, 4),
        lambda: torch.arange(10).unsqueeze(0) + 2,
        lambda: torch.full((3,), 10),
        lambda: torch.ones(3, dtype=torch.long) - 2,
        lambda: torch.tensor([9, 8]) + 1,
        lambda: torch.stack([torch.tensor([9, 10])]).clone(),
        lambda: F.pad(torch.tensor([9]), (0, 1), value=10),
        lambda: torch.cat([torch.zeros(2, dtype=torch.long), torch.tensor([10])]),
        lambda: torch.randint(0, 30, (500,)),
        lambda: torch.randperm(11).flip(0),
        lambda: nn.utils.rnn.pad_sequence([at(1, 2), at(10)]),
        lambda: torch.zeros(3, dtype=torch.long).index_fill_(0, at(1), 10),
    ],
)
def test_what_the_block_made_is_refused_where_its_bounds_do_not_fit(labels):
    assert_refused_alike(
        lambda: F.embedding(labels(), torch.ones(10, 2)), as_device="cpu"
    )


@pytest.mark.parametrize(
    "labels",
    [
        lambda: torch.arange(20)[:10],
        lambda: torch.randint(0, 30, (500,)) % 10,
        lambda: torch.zeros(3, dtype=torch.long),
        lambda: torch.tensor([1, 99])[:1],
        lambda: torch.tensor([99]).fill_(3),
        lambda: torch.empty(0, dtype=torch.long),
        lambda: nn.utils.rnn.pad_sequence([at(1, 2), at(9)]),
        lambda: torch.full((4,), 99).copy_(torch.arange(4)),
    ],
)
@pytest.mark.parametrize("check_values", [False, True])
def test_what_is_in_range_is_taken(labels, check_values):
    with record(as_device="cpu", check_values=check_values):
        assert F.embedding(labels(), torch.ones(10, 2)).shape[-1] == 2


def test_the_error_says_which_value_is_out_of_range_and_what_is_allowed():
    with record(as_device="cpu"), pytest.raises(IndexError) as error:
        nn.Embedding(128, 4)(torch.tensor([[1, 128, 5]]))
    note = "meta_magic: indices[0, 1] is 128; allowed are 0 to 127"
    assert error.value.__notes__ == [note]


def test_the_refused_call_is_the_last_of_the_trace():
    with pytest.raises(IndexError), record(as_device="cpu") as trace:
        F.cross_entropy(torch.ones(2, 3), torch.tensor([0, 3]))
    assert trace.program.raised.signature.op == "aten.nll_loss_forward.default"


def test_a_call_that_was_served_before_is_refused_for_other_values():
    weight = torch.ones(10, 2)
    with record(as_device="cpu"), torch.no_grad():
        table = torch.ones(10, 2)
        for _ in range(3):
            F.embedding(torch.tensor([9]), table)
        with pytest.raises(IndexError):
            F.embedding(torch.tensor([10]), table)
    assert weight.shape == (10, 2)


def test_padding_that_a_loss_ignores_is_no_doubt():
    with record(as_device="cpu") as trace:
        nn.Linear(8192, 8192)
        labels = F.pad(torch.randint(0, 10, (3,)), (0, 1), value=-100)
        F.cross_entropy(torch.ones(4, 10), labels)
    assert [note.kind for note in trace.notes] == []


def test_what_was_written_since_is_not_what_it_was():
    with record(as_device="cpu"):
        labels = torch.tensor([99])
        labels.fill_(3)
        assert F.embedding(labels, torch.ones(10, 2)).tolist() == [[1, 1]]


@pytest.mark.parametrize("make", [at, lambda *n: torch.stack([at(*n), at(*n)])[0]])
def test_what_a_gradient_is_written_to_is_taken(make):
    with record(as_device="cpu"):
        weight = torch.ones(3, 3, requires_grad=True)
        weight.index_select(0, make(0, 2)).sum().backward()
        weight[make(-1, 2)].sum().backward()
        assert weight.grad.tolist() == [[1] * 3, [0] * 3, [3] * 3]


def test_real_data_from_outside_is_checked():
    labels = torch.tensor([3, 10])
    with record(as_device="cpu"), pytest.raises(IndexError):
        F.embedding(labels, torch.ones(10, 2))


@pytest.mark.parametrize(
    "labels",
    [
        lambda: torch.tensor([3, 10]),
        lambda: torch.arange(12),
        lambda: torch.randint(0, 30, (500,)),
    ],
)
def test_what_an_earlier_block_made_is_checked(labels):
    with record(as_device="cpu"):
        made = labels()
    with record(as_device="cpu"), pytest.raises(IndexError):
        F.embedding(made[None], torch.ones(10, 2))


@pytest.mark.parametrize("last", [2, 12])
@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int32, torch.bfloat16]
)
def test_indices_made_from_constants_of_each_dtype_are_checked(dtype, last):
    def look_up():
        F.embedding(torch.tensor([1, last], dtype=dtype).long(), torch.ones(10, 2))

    plain = find_error(look_up)
    with record(as_device="cpu"):
        assert find_error(look_up) == plain
    assert (plain is None) == (last == 2)


def find_error(run):
    try:
        run()
    except IndexError as error:
        return str(error)


def test_a_large_call_is_refused_in_the_words_of_the_cpu():
    with record(as_device="cpu"), pytest.raises(IndexError, match="in self"):
        nn.Embedding(128_000, 8192)(torch.full((4, 512), 128_000))


def test_what_the_cpu_says_nothing_of_is_noted(monkeypatch):
    monkeypatch.setattr(children, "read_answer", lambda *_: children.NO_ANSWER)
    with record(as_device="cpu") as trace:
        nn.Embedding(128, 4)(torch.tensor([1, 128]))
    (note,) = [note for note in trace.notes if note.kind == "unchecked"]
    assert "indices[1] is 128; allowed are 0 to 127" in note.text


def test_what_would_take_too_much_is_noted():
    with record(as_device="cpu") as trace:
        nn.Linear(32768, 32768)
        nn.Embedding(40, 4)(torch.randint(0, 50, (3,)))
    (note,) = [note for note in trace.notes if note.kind == "unchecked"]
    assert "may be 0 to 49, allowed are 0 to 39" in note.text


@pytest.mark.parametrize("check_values", [False, True])
def test_what_takes_too_much_and_has_no_bounds_is_noted_on_request(check_values):
    limits = ValueLimits(nbytes=0)
    with record(as_device="cpu", limits=limits, check_values=check_values) as trace:
        nn.Embedding(10, 4)(torch.ones(3, 3).sum(1).long())
    notes = [note.text for note in trace.notes if note.kind == "unchecked"]
    assert len(notes) == int(check_values)
    assert all("indices were not checked, allowed are 0 to 9" in text for text in notes)


def test_positions_among_unique_values_are_refused_where_these_are_more():
    with record(as_device="cpu"), pytest.raises(IndexError):
        _, inverse = torch.tensor([7, 7, 9, 8]).unique(return_inverse=True)
        F.embedding(inverse, torch.randn(2, 2))


def test_torchs_own_meta_kernels_take_any_value():
    with record(as_device="meta"):
        assert nn.Embedding(10, 4)(torch.tensor([10])).shape == (1, 4)


@pytest.mark.parametrize(
    "solve",
    [
        lambda: torch.linalg.inv(torch.zeros(3, 3)),
        lambda: torch.linalg.inv(torch.zeros(2, 3, 3)),
        lambda: torch.tensor([[1.0, 2.0], [2.0, 4.0]]).inverse(),
        lambda: torch.linalg.cholesky(-torch.eye(3)),
        lambda: torch.linalg.solve(torch.zeros(3, 3), torch.ones(3)),
        lambda: torch.linalg.lu_factor(torch.zeros(2, 2)),
    ],
)
def test_singular_matrices_are_refused_as_on_the_cpu(solve):
    with pytest.raises(RuntimeError) as wanted:
        solve()
    for _ in range(2):
        with (
            record(as_device="cpu", check_values=True),
            pytest.raises(RuntimeError) as met,
        ):
            solve()
        assert (met.type, str(met.value)) == (wanted.type, str(wanted.value))


def test_regular_matrices_are_taken():
    with record(as_device="cpu", check_values=True):
        assert torch.linalg.inv(2 * torch.eye(2)).tolist() == [[0.5, 0], [0, 0.5]]
