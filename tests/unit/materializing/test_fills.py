"""What fills a module: the table, one that wraps another, and one of the user's own."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import FILL_BY_INIT, INITS
from meta_magic.materializing.fills.protocol import EmptyFill


def build_with(make):
    """Return a recorded module with a buffer that state dicts lack, from ``make``."""
    torch.manual_seed(0)
    with record():
        made = nn.Linear(2, 2)
        made.register_buffer("scale", make(), persistent=False)
    return made


def copy_of_numpys_numbers():
    """Return a tensor on meta from a real one that torch did not see written."""
    with torch.device("cpu"):
        values = torch.zeros(3)
    values.numpy()[:] = [1, 2, 3]
    return torch.empty(3).copy_(values)


def load_and_replay(made):
    """Materialize from a state dict that has all but the buffer."""
    return materialize(made, init=nn.Linear(2, 2).state_dict())


# A checkpoint, and for the rest a replay


def test_a_state_dict_reports_the_doubts_of_what_is_replayed_besides():
    (note,) = load_and_replay(build_with(copy_of_numpys_numbers)).notes
    assert note.split(": ")[1] == (
        "a real tensor was written unseen by torch, as numpy does it; on cpu the cell "
        "itself may give other values"
    )


def test_a_state_dict_counts_the_operators_of_what_is_replayed_besides():
    made = build_with(lambda: torch.arange(3) * 2)
    report = load_and_replay(made)
    assert made.scale.tolist() == [0, 2, 4]
    assert report.n_operators == 2  # arange and mul


def test_a_state_dict_that_lacks_nothing_replays_no_operators():
    with record():
        made = nn.Linear(2, 2)
    report = load_and_replay(made)
    assert (report.n_operators, report.notes) == (0, ())


def test_a_state_dict_leaves_the_generator_alone_though_the_rest_is_drawn():
    made = build_with(lambda: torch.rand(3))
    before = torch.get_rng_state()
    state = nn.Linear(2, 2).state_dict()
    torch.set_rng_state(before)
    assert materialize(made, init=state).notes == ()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(0)
    nn.Linear(2, 2)
    assert torch.equal(made.scale, torch.rand(3))


# The table


class BlankFill(EmptyFill):
    """Fills all with zeros, for the test."""

    source = "blank"

    def write(self, tensor):
        tensor.zero_()

    def finish(self):
        return ("all is zero",)


def test_a_new_init_is_a_class_and_a_row(monkeypatch):
    monkeypatch.setitem(FILL_BY_INIT, "blank", BlankFill)
    with torch.device("meta"):
        made = nn.Linear(2, 2)
    report = materialize(made, init="blank")
    assert made.weight.tolist() == [[0, 0], [0, 0]]
    assert report.names("blank") == ("weight", "bias")
    assert str(report).splitlines()[1:] == [
        "  blank: 2 (weight, bias)",
        "  all is zero",
    ]


def test_a_tensor_that_torch_refuses_to_write_is_named(monkeypatch):
    class NormalFill(EmptyFill):
        def write(self, tensor):
            tensor.normal_()

    monkeypatch.setitem(FILL_BY_INIT, "normal", NormalFill)
    made = nn.Linear(2, 2, device="meta")
    made.register_buffer("steps", torch.zeros(3, dtype=torch.int64, device="meta"))
    with pytest.raises(MaterializeError, match="cannot write 'steps'"):
        materialize(made, init="normal")
    assert made.weight.is_meta


def test_what_a_filling_raises_in_the_end_leaves_the_module_on_meta(monkeypatch):
    class FailingFill(EmptyFill):
        def finish(self):
            raise KeyboardInterrupt

    monkeypatch.setitem(FILL_BY_INIT, "failing", FailingFill)
    made = nn.Linear(2, 2, device="meta")
    with pytest.raises(KeyboardInterrupt):
        materialize(made, init="failing")
    assert [p.is_meta for p in made.parameters()] == [True, True]


def test_an_init_that_is_none_is_an_error_with_all_that_there_are():
    with pytest.raises(MaterializeError) as caught:
        materialize(nn.Linear(2, 2, device="meta"), init=3)
    named = ", ".join(map(repr, INITS))
    assert (
        str(caught.value) == f"init=3, but init= takes {named}, a path or a state dict"
    )
