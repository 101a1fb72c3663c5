"""A choice needs as much memory as a block that is written so."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meta_magic import record
from meta_magic.errors import TrialError
from meta_magic.trials.fit import fit_trace
from meta_magic.trials.trial import ask_trial

WIDTH, N_LAYERS, BATCH = 96, 4, 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Stack(nn.Module):
    def __init__(self, is_checkpointed):
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.layers = nn.ModuleList(Block() for _ in range(N_LAYERS))

    def forward(self, x):
        for layer in self.layers:
            if self.is_checkpointed:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return x


def train(make_optimizer, *, is_checkpointed=False, batch=BATCH):
    model = Stack(is_checkpointed).to("cuda")
    optimizer = make_optimizer(model.parameters())
    for _ in range(2):
        loss = model(torch.ones(batch, WIDTH, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def record_training(make_optimizer=torch.optim.AdamW, **kwargs):
    with record(as_device="cuda") as trace:
        train(make_optimizer, **kwargs)
    return trace


def peak_of(trace):
    return trace.memory.peak_by_place["cuda:0"]


def chosen(*choices, **kwargs):
    trace = record_training(**kwargs)
    return fit_trace(trace, "t4", choices=choices).peak_nbytes


def test_fused():
    written = record_training(lambda p: torch.optim.AdamW(p, fused=True), batch=1)
    unfused = peak_of(record_training(batch=1))
    assert chosen("fused", batch=1) == peak_of(written) < unfused


def test_sgd():
    written = record_training(torch.optim.SGD)
    assert chosen("sgd") == peak_of(written) < peak_of(record_training())


def test_checkpointing():
    written = record_training(is_checkpointed=True)
    assert chosen("checkpointing") == peak_of(written) < peak_of(record_training())


def test_bfloat16():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        written = record_training()
    finally:
        torch.set_default_dtype(before)
    assert chosen("bfloat16") == peak_of(written) < peak_of(record_training())


def test_autocast():
    with record(as_device="cuda") as trace, torch.autocast("cuda", torch.bfloat16):
        train(torch.optim.AdamW)
    assert chosen("autocast") == peak_of(trace)


class Adam8bit(torch.optim.Optimizer):
    """Two states: a byte a number and 4 for 256 of them; 4 a number below 4,096."""

    def __init__(self, params, device=None):
        super().__init__(params, {"device": device})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            device = self.param_groups[0]["device"] or p.device
            if not self.state[p]:
                n_bytes = p.numel() + 4 * -(-p.numel() // 256)
                n_bytes = n_bytes if p.numel() >= 4096 else 4 * p.numel()
                for name in ("first", "second"):
                    state = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
                    self.state[p][name] = state
            p.sub_(p.grad)


def test_paged_states_take_no_memory():
    trace = record_training()
    assert ask_trial(trace, lambda t, _: t.nbytes_real, choices=["paged 8-bit"]) == 0


@pytest.mark.parametrize("batch", [1, BATCH])
@pytest.mark.parametrize(("name", "device"), [("8-bit", None), ("paged 8-bit", "cpu")])
def test_states_of_8_bits(name, device, batch):
    written = record_training(lambda p: Adam8bit(p, device), batch=batch)
    assert chosen(name, batch=batch) == peak_of(written)


def test_the_process_that_asks_is_as_it_was():
    call, dtype = nn.Module.__call__, torch.get_default_dtype()
    init = torch.optim.AdamW.__init__
    chosen("checkpointing", "bfloat16", "fused", "sgd")
    assert nn.Module.__call__ is call
    assert torch.get_default_dtype() is dtype
    assert torch.optim.AdamW.__init__ is init
    assert torch.optim.AdamW.__new__ is object.__new__


def test_an_unknown_choice_is_an_error_with_the_known_ones():
    with pytest.raises(TrialError, match=r"'lora' is no choice known; .*checkpointing"):
        chosen("lora")


def test_a_choice_that_a_block_does_not_take_says_why():
    with record() as trace:
        torch.ones(2, dtype=torch.float32) @ torch.ones(2)
    message = "it raises RuntimeError: .* same dtype"
    with pytest.raises(TrialError, match=message):
        fit_trace(trace, "t4", choices=["bfloat16"])


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


def train_layers():
    model = Model()
    for _ in range(2):
        model(torch.ones(BATCH, WIDTH)).sum().backward()


def record_written(*names):
    Model.written = names
    try:
        with record() as trace:
            train_layers()
    finally:
        Model.written = ()
    return trace.memory


def choose(*choices):
    with record() as trace:
        train_layers()
    return fit_trace(trace, "t4", choices=choices)


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("h.*", "0123"),
        ("Layer", "0123"),
        ("h.?.mlp", ["mlp"]),
        ("Attention", ["attention"]),
        ("Seq*", ["mlp"]),
    ],
)
def test_modules_by_name_or_class(pattern, written):
    peaks = record_written(*written).peak_nbytes, record_written().peak_nbytes
    assert choose(f"checkpointing:{pattern}").peak_nbytes == peaks[0] < peaks[1]


def test_two_choices_are_two_patterns():
    both = record_written("0", "attention").peak_nbytes
    assert choose("checkpointing:h.0", "checkpointing:*.[!0].attention") != both
    peak = choose("checkpointing:h.0", "checkpointing:h.*.attention").peak_nbytes
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
        choose("checkpointing:blocks.*")
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
