"""The call that raised the error which ended a block: the last of its trace, marked."""

import sysconfig
from pathlib import Path

import pytest
import torch
from torch import nn

from meta_magic import record, replay, verify
from meta_magic.session.raised_calls import choose_frames


def record_failing(block, error=RuntimeError):
    """Return the trace of a block that fails, and its error."""
    with pytest.raises(error) as caught, record() as trace:
        block()
    return trace, caught.value


def mismatch():
    torch.ones(2, 3) @ torch.ones(4, 5)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(3, 4)

    def forward(self, x):
        return self.second(self.first(x))


def test_the_operator_that_raised_is_the_last_call():
    trace, error = record_failing(mismatch)
    *_, call = trace.ops
    assert call.op == "aten.mm.default"
    assert [(t.tensor_id, t.shape) for t in call.inputs] == [(0, (2, 3)), (1, (4, 5))]
    assert (call.outputs, call.writes, call.flops) == ((), (), None)
    assert [c.raised for c in trace.ops] == [None, None, f"RuntimeError: {error}"]


def test_a_function_that_raised_before_any_operator_is_the_last_call():
    logits, classes = (3, 4), (5,)
    trace, error = record_failing(
        lambda: nn.functional.cross_entropy(
            torch.ones(logits), torch.zeros(classes, dtype=torch.long)
        ),
        ValueError,
    )
    call = trace.ops[-1]
    assert call.op == call.function == "torch.nn.functional.cross_entropy"
    assert [tensor.shape for tensor in call.inputs] == [logits, classes]
    assert dict(call.arguments)["reduction"] == "mean"
    assert call.raised == f"ValueError: {error}"


@pytest.mark.parametrize(
    ("module", "error"),
    [(nn.LSTM(8, 16), RuntimeError), (nn.BatchNorm2d(3), ValueError)],
    ids=["of features", "of dimensions"],
)
def test_a_module_of_torch_that_looks_at_its_input_is_the_last_call(module, error):
    trace, raised = record_failing(lambda: module(torch.ones(5, 3, 9)), error)
    call = trace.ops[-1]
    assert call.op.endswith(f".{type(module).__name__}")
    assert [tensor.shape for tensor in call.inputs] == [(5, 3, 9)]
    assert call.module_call == 0
    assert call.raised == f"{error.__name__}: {raised}"


def test_a_module_of_the_users_that_raises_is_no_call_of_torch():
    class Refuses(nn.Module):
        def forward(self, x):
            raise ValueError("mine")

    trace, _ = record_failing(lambda: Refuses()(torch.ones(2)), ValueError)
    assert trace.ops[-1].raised is None


def test_an_error_that_the_block_caught_leaves_no_call():
    def catch():
        try:
            mismatch()
        except RuntimeError:
            raise ValueError("mine") from None

    trace, _ = record_failing(catch, ValueError)
    assert [call.op for call in trace.ops] == ["aten.ones.default"] * 2
    assert trace.ops[-1].raised is None


def test_an_error_that_is_its_own_cause_ends_the_search():
    def wrap():
        error = ValueError("mine")
        raise error from error

    trace, _ = record_failing(wrap, ValueError)
    assert len(trace) == 0


def test_an_interrupt_is_no_error_of_a_call():
    def interrupt():
        x = torch.ones(3, requires_grad=True)
        x.register_hook(raise_interrupt)
        x.sum().backward()

    def raise_interrupt(_):
        raise KeyboardInterrupt

    trace, _ = record_failing(interrupt, KeyboardInterrupt)
    assert trace.ops[-1].raised is None


def test_it_is_in_the_module_that_called_it():
    trace, _ = record_failing(lambda: Two()(torch.ones(2, 3)))
    call = trace.ops[-1]
    assert (call.module, call.phase) == ("second", "forward")
    assert trace.module_calls[call.module_call].module == "second"
    within = {c.module: trace.ops[c.first_op : c.end_op] for c in trace.module_calls}
    assert [c.op for c in within["second"]] == ["aten.t.default", "aten.addmm.default"]
    assert within["second"][-1] == within[""][-1] == call


def test_a_write_that_raised_wrote_nothing():
    trace, _ = record_failing(lambda: torch.ones(2).add_(torch.ones(3)))
    assert trace.ops[-1].op == "aten.add_.Tensor"
    assert trace.ops[-1].writes == ()
    assert trace.program.n_writes_by_storage == {}


def test_recordings_in_each_other_both_have_it():
    def within():
        with record() as trace:
            traces.append(trace)
            mismatch()

    traces = []
    outer, error = record_failing(within)
    for trace in (outer, *traces):
        assert trace.ops[-1].function == "torch.Tensor.matmul"
        assert trace.ops[-1].raised == f"RuntimeError: {error}"


# What asks the program: it was no call that a device could make.


def test_replay_and_verify_leave_it_out():
    trace, _ = record_failing(mismatch)
    (made,) = replay(trace, trace.ops[0].outputs)
    assert torch.equal(made, torch.ones(2, 3))
    assert verify(trace).attrs == {"n_calls": 2, "n_checked": 2}


def test_the_summary_says_it_below_the_operators_that_ran():
    trace, error = record_failing(mismatch)
    failure, headline, raised = trace.summary().splitlines()
    assert failure == f"mm got (2, 3), (4, 5) at line {trace.error_line}"
    assert "2 operators" in headline
    assert raised == (
        f"raised: line {trace.error_line}: aten.mm.default float32 (2, 3), "
        f"float32 (4, 5): RuntimeError: {error}"
    )


# Which frames of an error its reader sees; the others hide from pytest


TORCH = f"{Path(torch.__file__).parent}/nn/a.py"
PACKAGES = sysconfig.get_paths()["purelib"]
LIBRARY = f"{PACKAGES}/library/part/b.py"


def raise_through(*files, error):
    """Return an error that came up through functions of files, the outermost first."""

    def fail():
        raise error

    call = fail
    for file in reversed(files):
        names = {"inner": call}
        exec(compile("def call():\n    inner()", file, "exec"), names)
        call = names["call"]
    with pytest.raises(type(error)) as caught:
        call()
    return caught.value.with_traceback(caught.tb.tb_next)


def shown_of(error):
    entries, folded = choose_frames(error, error.__traceback__)
    own = {__file__: "user's", TORCH: "torch's", LIBRARY: "library's"}
    return [own[e.tb_frame.f_code.co_filename] for e in entries], list(folded)


class Said(Exception):
    """An error of this file's."""


@pytest.mark.parametrize(
    ("text", "shown"), [("text", ["library's"]), ("", ["torch's"])]
)
def test_of_an_error_without_a_text_the_frame_that_raised_it_is_shown(text, shown):
    error = raise_through(LIBRARY, TORCH, error=Said(text))
    last = error.__traceback__
    while last.tb_next.tb_next is not None:
        last = last.tb_next
    last.tb_next = None  # as if torch itself had raised it
    assert shown_of(error)[0] == shown


def visible(caught):
    """Return the file of each frame that pytest would show."""
    return [str(entry.path) for entry in caught.traceback.filter(caught)]


def test_pytest_shows_the_users_line_alone_of_what_torch_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    with pytest.raises(RuntimeError) as caught, record():
        model(torch.ones(5))
    assert visible(caught) == [__file__]
