"""Values that a cell asks for: those that the CPU would have had from the same seed."""

import contextlib
import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, ValueLimits, record
from meta_magic.trace.notes import Note
from meta_magic.view.payload import build_payload


def halve():
    x, n = torch.randn(8), 0
    while x.norm() > 0.1:
        x, n = x * 0.5, n + 1
    return n


def write_and_read():
    mask = torch.zeros(5, dtype=torch.bool)
    mask[2] = True
    before = mask.any().item()
    mask.zero_()
    return before, mask.any().item()


def train():
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


VALUES = {
    "item": lambda: torch.randn(3).sum().item(),
    "float": lambda: float(torch.randn(1)),
    "int": lambda: int(torch.randint(0, 100, (1,))),
    "bool": lambda: bool((torch.randn(5) > 0).all()),
    "if": lambda: 1 if torch.randn(()) > 0 else 2,
    "index": lambda: [10, 20, 30][torch.tensor(1)],
    "tolist": lambda: torch.randn(3, 4).tolist(),
    "iteration": lambda: [x.item() for x in torch.linspace(0, 1, 5)],
    "numpy": lambda: torch.randn(3).numpy().tolist(),
    "asarray": lambda: np.asarray(torch.randn(3)).tolist(),
    "format": lambda: f"{torch.randn(()):.3f}",
    "equal": lambda: torch.equal(torch.randn(3), torch.randn(3)),
    "allclose": lambda: torch.allclose(torch.ones(3), torch.ones(3) + 1e-9),
    "a loop": halve,
    "writes": write_and_read,
    "a training step": train,
    "a view": lambda: int(torch.arange(12).view(3, 4).t()[1, 2]),
    "complex": lambda: torch.randn(2, dtype=torch.complex64).conj().tolist(),
    "several draws": lambda: [torch.randn(()).item() for _ in range(3)],
    "a module's weight": lambda: nn.Linear(3, 3).weight.std().item(),
    "a copy to the CPU": lambda: torch.arange(3).cpu().tolist(),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_that_of_the_cpu(name):
    torch.manual_seed(0)
    wanted = VALUES[name]()
    with record():
        torch.manual_seed(0)
        met = VALUES[name]()
    assert met == wanted


SIZES = {
    "nonzero": lambda: torch.randn(10).gt(0).nonzero(),
    "a mask": lambda: torch.randn(10, 3)[torch.randn(10) > 0],
    "a mask of two dimensions": lambda: torch.randn(4, 3, 2)[torch.randn(4, 3) > 0],
    "a mask after a slice": lambda: torch.randn(10, 3)[:, torch.randn(3) > 0],
    "a mask and positions": lambda: torch.randn(3, 4)[torch.ones(3).bool(), [1, 2, 3]],
    "a mask without any true": lambda: torch.ones(2, 3)[torch.zeros(2).bool(), :, None],
    "masked_select": lambda: torch.randn(4, 3).masked_select(torch.randn(3) > 0),
    "unique": lambda: torch.unique(torch.randint(0, 5, (20,))),
    "unique_consecutive": lambda: torch.unique_consecutive(torch.randint(0, 2, (20,))),
    "bincount": lambda: torch.bincount(torch.randint(0, 5, (20,))),
    "repeat_interleave": lambda: torch.repeat_interleave(
        torch.arange(3), torch.tensor([1, 2, 3])
    ),
    "one_hot": lambda: nn.functional.one_hot(torch.randint(0, 5, (20,))),
    "where": lambda: torch.where(torch.randn(9) > 0)[0],
}


@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_depends_on_data_is_that_of_the_cpu(name):
    torch.manual_seed(0)
    wanted = SIZES[name]()
    with record() as trace:
        torch.manual_seed(0)
        met = SIZES[name]()
    assert met.is_meta
    assert (met.shape, met.dtype) == (wanted.shape, wanted.dtype)
    assert met.stride() == wanted.stride()
    assert trace.program.evaluations


def test_a_mask_is_evaluated_without_what_it_selects_from():
    with record(limits=ValueLimits(nbytes=1000, flops=1000)):
        assert torch.zeros(10**6, 4)[:3][torch.ones(3) > 0].shape == (3, 4)


def test_what_is_evaluated_can_be_recorded_twice_with_other_results():
    with record() as trace:
        shapes = [torch.arange(n).gt(1).nonzero().shape for n in (3, 3, 5)]
        shapes += [(torch.arange(3) > n).nonzero().shape for n in (1, 0)]
    assert shapes == [(1, 1), (1, 1), (3, 1), (1, 1), (2, 1)]
    assert len(trace.program.evaluations) == 5


def test_a_trace_marks_what_was_evaluated():
    with record() as trace:
        x = torch.ones(3)
        for _ in range(2):
            x.sum().item()
    line = test_a_trace_marks_what_was_evaluated.__code__.co_firstlineno + 4
    (note,) = trace.notes
    assert note == Note(
        kind="evaluated",
        # 3 ones and their sum: 3 + 1 elements, 16 bytes of float32.
        text="torch.Tensor.item was evaluated, 2 times: its value comes from 2 "
        "operator calls on the CPU (16 bytes, 4 FLOPs), and what follows depends on "
        "data",
        line=line,
    )
    assert [e.call for e in trace.program.evaluations] == [2, 4]
    assert [trace.ops[i].op for i in (2, 4)] == ["aten._local_scalar_dense.default"] * 2
    evaluation = trace.ops[2].evaluation
    assert (evaluation.n_calls, evaluation.nbytes, evaluation.flops) == (2, 16, 4)
    assert trace.ops[1].evaluation is None
    assert build_payload(trace)["remarks"]["evaluation"][0] == (
        *(2, 3, "2 calls, 16 bytes, 4 FLOPs"),
    )


def test_a_value_from_outside_is_refused_by_name():
    x = torch.ones(3, device="meta")
    with pytest.raises(MissingValueError, match="came from outside"), record():
        x.sum().item()


def test_a_tensor_whose_values_take_too_much_is_printed_as_torch_does():
    with record(limits=ValueLimits(nbytes=0)):
        assert repr(torch.ones(3)) == "tensor(..., device='meta', size=(3,))"
        assert repr(torch.empty(3)) == "tensor(..., device='meta', size=(3,))"


@pytest.mark.parametrize("write", [lambda x: None, lambda x: x.add_(1)])
def test_a_real_tensor_that_numpy_wrote_has_no_value_any_more(write):
    x = torch.ones(3)
    with record():
        assert x.to("meta").sum().item() == 3
        write(x)
        wanted = x.sum().item()
        assert x.to("meta").sum().item() == wanted
        x.numpy()[0] = 7
        with pytest.raises(MissingValueError, match="written without torch"):
            x.to("meta").sum().item()


@torch.library.custom_op("meta_magic_tests::jitter", mutates_args=())
def jitter(x: torch.Tensor) -> torch.Tensor:
    return x + float(np.random.rand())  # noqa: NPY002  the generator of most cells


@jitter.register_fake
def _(x):
    return torch.empty_like(x)


# Operators of the user's own


def make_model():
    with record():
        return nn.GroupNorm(2, 4)


def call_between_recordings():
    """Return what plain code made of a recorded module, and a recorded tensor."""
    model = make_model()
    with record():
        x = torch.ones(2, 4, 3)
    return model(x), x


def test_no_variable_is_named_that_has_its_values():
    (v, x), made = call_between_recordings(), [torch.ones(3, device="meta")]
    with record():
        w = x * 2
        assert w.sum().item() == 48
        with pytest.raises(MissingValueError) as raised:
            made[0].sum().item()
    assert "It is" not in str(raised.value)
    assert v.is_meta


READS = {
    "sum": lambda x: x[:2].sum().item(),
    "list": lambda x: x[:2].tolist(),
    "product": lambda x: (x[:2] * 2).tolist(),
    "element": lambda x: x[1].item(),
    "column": lambda x: x.view(2, 3)[:, 0].tolist(),
}


def fill(x):
    x[:2] = torch.tensor([3.0, 4.0])
    x[3] = 5.0
    return x


@pytest.mark.parametrize("name", READS)
def test_what_was_written_of_a_buffer_has_its_values_here_and_in_later_cells(name):
    wanted = READS[name](fill(torch.zeros(6)))
    with record():
        assert READS[name](fill(torch.empty(6))) == wanted
        x = fill(torch.empty(6))
    with record():
        assert READS[name](x) == wanted


READS_MORE = {
    "element": lambda x: x[2].item(),
    "sum": lambda x: x[:3].sum().item(),
    "after a step": lambda x: (x[0].item(), x[1:3].tolist()),
    "computed": lambda x: (x + 1)[:2].tolist(),
    "written over": lambda x: x.add_(1)[:2].tolist(),
}


@pytest.mark.parametrize("name", READS_MORE)
def test_what_was_not_written_of_a_buffer_is_no_value(name):
    refused = pytest.raises(MissingValueError, match=r"since aten.empty.* in line \d+")
    with record(), refused:
        READS_MORE[name](fill(torch.empty(6)))


def test_a_refused_value_keeps_no_tensor_alive():
    gc.disable()
    try:
        with record():
            x = torch.empty(3)
            alive = weakref.ref(x)
            with contextlib.suppress(MissingValueError):
                x.tolist()
            del x
            assert alive() is None
    finally:
        gc.enable()
