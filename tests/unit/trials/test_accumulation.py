"""Gradients that are accumulated need what a block needs that is written so."""

import ast
from textwrap import dedent

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials.fit import fit_trace
from meta_magic.trials.trial import ask_trial
from meta_magic.trials.trial_choices import Parts, accumulate, read_parts

WIDTH, PARTS = 64, 4


def make_model():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def chosen(trace, *choices):
    return fit_trace(trace, "t4", {"batch": [64]}, choices).peak_nbytes


def test_data_made_outside_of_the_loop():
    batch = 256
    with record() as trace:
        data = [torch.ones(batch, WIDTH) for _ in range(3)]
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters())
        for x in data:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    with record() as written:
        data = [torch.ones(batch // PARTS, WIDTH) for _ in range(3)]
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters())
        for x in data:
            optimizer.zero_grad()
            for _ in range(PARTS):
                model(x).square().mean().backward()
            optimizer.step()
    peak = written.memory.peak_nbytes
    assert chosen(trace, "accumulation:4") == peak < trace.memory.peak_nbytes


def test_gradients_are_accumulated_as_often_as_there_are_parts():
    batch = 8
    with record() as trace:
        model = nn.Linear(WIDTH, WIDTH)
        loss = model(torch.ones(batch, WIDTH)).sum()
        loss.backward()

    def count(again, _):
        shapes = [c.inputs[1].shape for c in again.ops if c.op == "aten.addmm.default"]
        return shapes, sum(c.op == "aten.add_.Tensor" for c in again.ops)

    assert ask_trial(trace, count) == ([(8, WIDTH)], 0)
    # Weight and bias are added to thrice, after a first time that sets them.
    asked = ask_trial(trace, count, choices=["accumulation:batch/4"])
    assert asked == ([(2, WIDTH)] * 4, 6)


def test_the_largest_batch_is_a_multiple_of_the_parts():
    batch = 8
    with record() as trace:
        model = nn.Linear(2, 20_000)
        model(torch.ones(batch, 2)).sum().backward()
    fit = fit_trace(trace, "t4", {"batch": ...}, ["accumulation:4"])
    largest, found = fit.largest["batch"], fit.sizes["batch"]
    assert largest % 4 == 0
    assert fit.choices == ("accumulation:batch/4",)
    assert found.interpolation is not None

    def peak_of(rows):
        with record() as written:
            model = nn.Linear(2, 20_000)
            for _ in range(4):
                model(torch.ones(rows, 2)).sum().backward()
        return written.memory.peak_nbytes

    assert found.peak_nbytes(4 * 123) == peak_of(123)
    assert peak_of(largest // 4) <= fit.nbytes < peak_of(largest // 4 + 1)


# What is declined


def decline(text):
    block = ast.parse(dedent(text))
    with pytest.raises(TrialError) as error:
        accumulate(block, Parts("batch", 2))
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("train(batch)", "no statement of the block itself calls backward"),
        (
            """
            def train_step(batch):
                model(torch.ones(batch)).backward()
            train_step(batch)
            """,
            "no statement of the block itself calls backward",
        ),
        (
            """
            one(batch).backward()
            two(batch).backward()
            """,
            "backward() is called at several lines, 2, 3",
        ),
        (
            """
            x = torch.ones(rows)
            loss = model(x)
            loss.backward()
            """,
            "does not take what is computed from 'batch' right before",
        ),
        (
            """
            loss = model(torch.ones(batch))
            if True:
                loss.backward()
            """,
            "'loss' is not what is computed from 'batch' right before",
        ),
    ],
)
def test_what_is_declined_and_why(text, reason):
    assert reason in decline(text)


def test_a_model_that_depends_on_the_batch_is_declined():
    batch = 8
    with record() as trace:
        model = nn.Linear(batch, 2)
        model(torch.ones(batch, batch)).sum().backward()
    with pytest.raises(TrialError, match="'model' depends on the size"):
        chosen(trace, "accumulation:4")


def test_a_batch_that_cannot_be_split_is_declined():
    batch = 6
    with record() as trace:
        nn.Linear(2, 2)(torch.ones(batch, 2)).sum().backward()
    with pytest.raises(TrialError, match="batch=6 is not split into 4 parts"):
        chosen(trace, "accumulation:4")
    with pytest.raises(TrialError, match=r"none of \[7, 8\] is split into 3 parts"):
        fit_trace(trace, "t4", {"batch": [7, 8]}, ["accumulation:3"])


@pytest.mark.parametrize(
    "choices",
    [
        ["accumulation:4"],
        ["accumulation:batch/0"],
        ["accumulation:batch/x"],
        ["accumulation:batch"],
        ["accumulation:batch/2", "accumulation:batch/4"],
    ],
)
def test_what_is_not_understood_is_said_with_an_example(choices):
    with pytest.raises(TrialError, match="such as 'accumulation:batch/4'"):
        read_parts(choices)


def accumulated(text):
    block = ast.parse(dedent(text))
    bound = accumulate(block, Parts("batch", 2))
    return ast.unparse(ast.fix_missing_locations(block)), bound


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        # Names flow through items, attributes, functions of the block and a for loop.
        ("d['x'] = ones(batch)\nm(d).backward()", ["d['x'] = ones(batch)"]),
        ("a.b.c = ones(batch)\nm(a).backward()", ["a.b.c = ones(batch)"]),
        (
            "def make(): return ones(batch)\nx = make()\nm(x).backward()",
            ["def make():\n    return ones(batch)", "x = make()"],
        ),
        ("x = 1\nx += batch\ny = 2\nm(x).backward()", ["x += batch"]),
        ("x, y = 1, batch\nscaler.scale(y).backward()", ["x, y = (1, batch)"]),
        ("loss = m(batch)\naccelerator.backward(loss)", ["loss = m(batch)"]),
        ("loss = m(batch)\nloss.backward(one)", ["loss = m(batch)"]),
    ],
)
def test_what_depends_on_the_size_is_repeated(text, repeated):
    lines = text.splitlines()
    loop = ast.For(ast.Name("__part"), ast.parse("range(2)").body[0].value, [], [])
    loop.body = [ast.parse(one).body[0] for one in [*repeated, lines[-1]]]
    written = ast.unparse(ast.fix_missing_locations(loop))
    assert accumulated(text)[0].endswith(written)


# The first call that mixes the samples of a batch, by replays with other samples


def find_notes(trace):
    return [note for note in trace.notes if note.kind == "samples"]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(("first", "n"), [(False, 1), (True, 0)])
def test_attention_over_the_batch_mixes_its_samples(first, n):
    with record(check="batch=B") as trace:
        B = 4
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=first)
        nn.TransformerEncoder(layer, 1)(torch.randn(B, 7, 16))
    notes = find_notes(trace)
    assert len(notes) == n
    for note in notes:
        assert note.text.startswith("multi_head_attention_forward mixes samples")
        assert note.line == trace.module_calls[0].line


def test_a_recurrent_layer_without_batch_first_mixes_samples():
    with record(check="batch=B") as trace:
        B = 4
        nn.LSTM(16, 8)(torch.randn(B, 7, 16))
    assert [note.text[:18] for note in find_notes(trace)] == ["lstm mixes samples"]


def test_a_softmax_over_the_batch_behind_a_convolution_is_found():
    with record(check="batch=B=5") as trace:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Softmax(0))
        net(torch.randn(5, 3, 8, 8))
    (note,) = find_notes(trace)
    assert note.text == (
        "softmax mixes samples of the batch: 720 of 720 elements of (5, 144) depend on "
        "two of them"
    )


@pytest.mark.parametrize(("is_training", "n"), [(True, 1), (False, 0)])
def test_after_batch_normalization_in_training_samples_are_not_followed(is_training, n):
    with record(check="batch=B") as trace:
        B = 6
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        net.train(is_training)(torch.randn(B, 3))
    notes = find_notes(trace)
    assert len(notes) == n
    assert all("on purpose while a model is trained" in note.text for note in notes)


def test_a_batch_that_is_not_there_is_a_note_and_another_text_is_refused():
    with record(check="batch=Q") as trace:
        nn.Linear(3, 4)(torch.ones(2, 3))
    (note,) = find_notes(trace)
    assert "is not known: the block has no name 'Q'" in note.text
    with pytest.raises(ValueError, match="batch=NAME as in batch=B, not 'rows=B'"):
        record(check="rows=B")
