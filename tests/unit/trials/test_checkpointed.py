"""Modules that are chosen by name or class are checkpointed as if written so."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials.fit import fit_trace

WIDTH, BATCH = 96, 512


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.inside(x).chunk(3, -1)
        return self.out((q * k).softmax(-1) * v)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        x = x + save_inputs(self, "attention", x)
        return x + save_inputs(self, "mlp", x)


class Model(nn.Module):
    """Layers in a list, of which some are checkpointed where it is written so."""

    written = ()

    def __init__(self):
        super().__init__()
        self.h = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x):
        for n in range(4):
            x = save_inputs(self.h, str(n), x)
        return x


def save_inputs(owner, name, x):
    module = getattr(owner, name)
    if name in Model.written:
        return checkpoint(module, x, use_reentrant=False)
    return module(x)


def train():
    model = Model()
    for _ in range(2):
        model(torch.ones(BATCH, WIDTH)).sum().backward()


def record_written(*names):
    Model.written = names
    try:
        with record() as trace:
            train()
    finally:
        Model.written = ()
    return trace.memory


def chosen(*choices):
    with record() as trace:
        train()
    return fit_trace(trace, "t4", choices=choices)


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("h.*", "0123"),
        ("Layer", "0123"),
        ("h.[02]", "02"),
        ("h.?.mlp", ["mlp"]),
        ("*.mlp", ["mlp"]),
        ("Attention", ["attention"]),
        ("Seq*", ["mlp"]),
    ],
)
def test_modules_by_name_or_class(pattern, written):
    peaks = record_written(*written).peak_nbytes, record_written().peak_nbytes
    assert chosen(f"checkpointing:{pattern}").peak_nbytes == peaks[0] < peaks[1]


def test_blocks_are_what_stands_in_a_row():
    assert chosen("checkpointing").peak_nbytes == record_written(*"0123").peak_nbytes


def test_two_choices_are_two_patterns():
    both = record_written("0", "attention").peak_nbytes
    assert chosen("checkpointing:h.0", "checkpointing:*.[!0].attention") != both
    peak = chosen("checkpointing:h.0", "checkpointing:h.*.attention").peak_nbytes
    assert peak == both


def test_a_module_that_is_called_by_itself_is_known_by_its_class():
    with record() as trace:
        layers = [Layer(), Layer()]
        x = torch.ones(BATCH, WIDTH)
        for layer in layers:
            x = layer(x)
        x.sum().backward()
    with record() as written:
        layers = [Layer(), Layer()]
        x = torch.ones(BATCH, WIDTH)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.sum().backward()
    fit = fit_trace(trace, "t4", choices=["checkpointing:Layer"])
    assert fit.peak_nbytes == written.memory.peak_nbytes < trace.memory.peak_nbytes


def test_a_pattern_that_names_nothing_is_answered_with_what_could_be_meant():
    with pytest.raises(TrialError) as error:
        chosen("checkpointing:blocks.*")
    assert str(error.value) == (
        "it has no module that 'blocks.*' names among Model, ModuleList (h), "
        "Layer (h.0), Attention (h.0.attention), Linear (h.0.attention.inside), "
        "Sequential (h.0.mlp), GELU (h.0.mlp.1)"
    )


def test_without_a_row_of_blocks_it_is_said_how_to_name_modules():
    with record() as trace:
        nn.Linear(2, 2)(torch.ones(2, 2)).sum().backward()
    message = r"no module in a row .* among Linear; name some, as checkpointing:PATTERN"
    with pytest.raises(TrialError, match=message):
        fit_trace(trace, "t4", choices=["checkpointing"])


def test_a_block_that_calls_no_module_says_so():
    with record() as trace:
        torch.ones(2, 2)
    with pytest.raises(TrialError, match="calls none"):
        fit_trace(trace, "t4", choices=["checkpointing:h.*"])
