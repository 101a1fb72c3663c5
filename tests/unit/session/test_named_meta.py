"""What a cell puts on meta by name: notes where torch raises, and no memory."""

import pytest
import torch
from torch import nn

from meta_magic import record


def make():
    """Return a layer on meta."""
    with torch.device("meta"):
        return nn.Linear(3, 4)


def load(state):
    """Return a layer that was on meta, given a state dict."""
    layer = make()
    layer.load_state_dict(state, strict=False, assign=True)
    return layer


def fill():
    """Return a layer that was on meta, whose memory was filled."""
    layer = make().to_empty(device="cpu")
    nn.init.ones_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def step():
    """Take a training step on meta."""
    layer = make()
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(2, 3, device="meta")).sum().backward()
    optimizer.step()


ON_META = {"device": "meta"}
PROGRAMS = {
    "move a module": lambda: make().to("cpu"),
    "move a tensor": lambda: torch.ones(3, device="meta").cpu(),
    "call it with what lies on the CPU": lambda: make()(torch.ones(2, 3)),
    "call it": lambda: make()(torch.ones(2, 3, **ON_META)),
    "read what it returns": lambda: make()(torch.ones(2, 3, **ON_META)).sum().item(),
    "numpy": lambda: torch.ones(3, device="meta").numpy(),
    "branch": lambda: bool(torch.ones(3, device="meta").sum() > 2),
    "copy from it": lambda: torch.ones(3).copy_(torch.ones(3, device="meta")),
    "copy to it": lambda: torch.ones(3, device="meta").copy_(torch.ones(3)),
    "join": lambda: torch.cat([torch.ones(3), torch.ones(3, device="meta")]),
    "add a number": lambda: torch.ones(3, device="meta") + torch.tensor(2.0),
    "cast": lambda: torch.ones(3, device="meta").double().to(torch.half),
    "a likeness": lambda: torch.ones_like(make().bias, device="cpu") + torch.ones(4),
    "a new one": lambda: make().bias.new_ones(4, device="cpu") + torch.ones(4),
    "load a part": lambda: load({"bias": torch.ones(4)}).to("cpu"),
    "load all": lambda: load(nn.Linear(3, 4).state_dict())(torch.ones(2, 3)).sum(),
    "fill": lambda: fill().to("cpu")(torch.ones(2, 3)).sum().item(),
    "skip": lambda: nn.utils.skip_init(nn.Linear, 3, 4)(torch.ones(2, 3)),
    "train": step,
    "sizes": lambda: torch.broadcast_shapes((3,), (2, 3)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_note_says_that_a_line_fails_where_it_fails_for_real(program):
    try:
        program()
    except (RuntimeError, TypeError):
        does_fail = True
    else:
        does_fail = False
    with record() as trace:
        program()
    assert any(note.kind == "fails" for note in trace.notes) == does_fail


def test_the_note_names_function_line_and_ways_out():
    with record() as trace:
        layer = make()
        layer.to("cpu")
    (note,) = [note for note in trace.notes if note.kind == "fails"]
    code = test_the_note_names_function_line_and_ways_out.__code__
    assert note.line == code.co_firstlineno + 3
    assert note.text.startswith("torch.Tensor.to needs values")
    assert "to_empty" in note.text
    assert "assign=True" in note.text


def test_the_kernels_of_meta_have_no_other_place():
    with record(as_device="meta") as trace:
        make()(torch.ones(2, 3)).sum().item()
    assert not [note for note in trace.notes if note.kind == "fails"]
    assert trace.memory.peak_nbytes >= 16 * 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_on_meta_takes_no_memory_until_it_is_put_elsewhere(device):
    with record() as trace:
        with torch.device("meta"):
            layer = nn.Linear(1000, 1000, bias=False)
            layer(torch.ones(10, 1000))
        layer.to_empty(device=device)
    assert trace.memory.peak_nbytes == 4_000_000  # of the weight, once
    assert trace.memory.live_nbytes[0] == 0


def test_what_is_moved_off_meta_takes_memory_once():
    with record() as trace:
        layer = nn.Linear(1000, 1000, bias=False, device="meta")
        layer.to("cpu")
    assert trace.memory.peak_nbytes == 4_000_000
