"""The content that each init= gives."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import FILL_BY_INIT
from meta_magic.materializing.fills.protocol import EmptyFill
from tests.unit.eager import (
    assert_bit_equal,
    assert_same_tensor,
    build_twice,
    tensors_of,
)
from tests.unit.materializing.modules import Masked, Raw, holding
from tests.unit.untouchable import Keeping, Listing, Pretending


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


def test_a_state_dict_reports_the_caveats_of_what_is_replayed_besides():
    (note,) = load_and_replay(build_with(copy_of_numpys_numbers)).notes
    assert note.split(": ")[1] == (
        "a real tensor was written without torch, as by numpy; on cpu the cell itself "
        "may give other values"
    )


def test_a_state_dict_counts_the_operators_of_what_is_replayed_besides():
    made = build_with(lambda: torch.arange(3) * 2)
    report = load_and_replay(made)
    assert made.scale.tolist() == [0, 2, 4]
    assert report.n_operators == 2  # arange and mul


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


# Modules that initialize themselves (``reset``), or are left ``empty``.


@pytest.mark.parametrize("is_recorded", [True, False])
def test_reset_initializes_by_the_methods_of_the_modules(is_recorded):
    with record() if is_recorded else torch.device("meta"):
        made = nn.Linear(3, 4)
    torch.manual_seed(5)
    wanted = nn.Linear(3, 4)
    torch.manual_seed(5)
    report = materialize(made, init="reset")
    assert_bit_equal(made, wanted)
    assert report.names("reset") == ("weight", "bias")


def test_reset_reports_a_buffer_that_nothing_writes_as_uninitialized():
    with record():
        made = nn.Linear(3, 4)
        made.register_buffer("mask", torch.ones(3))
    report = materialize(made, init="reset")
    assert report.uninitialized == ("mask",)


def test_reset_reaches_attention_in_all_its_parts():
    _, made, _, _ = build_twice(lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True))
    assert materialize(made, init="reset").uninitialized == ()


def test_reset_calls_init_weights_of_a_transformers_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=11)
    with record():
        made = transformers.GPT2LMHeadModel(config)
    report = materialize(made, init="reset")
    assert "transformer.wte.weight" in report.names("reset")
    assert made.transformer.wte.weight.std().item() == pytest.approx(0.02, rel=0.3)


def test_reset_keeps_the_real_child_of_a_module_that_resets_its_children():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.real = nn.Linear(2, 2)
            self.made = nn.Linear(2, 2, device="meta")

        def reset_parameters(self):
            self.real.reset_parameters()
            self.made.reset_parameters()

    block = Block()
    before = block.real.weight.detach().clone()
    materialize(block, init="reset")
    assert torch.equal(block.real.weight, before)


def test_empty_makes_every_tensor_real_and_reports_it_as_uninitialized():
    _, made, _, _ = build_twice(Masked)
    report = materialize(made, init="empty")
    real = [*tensors_of(made).values(), made.scale, *made.listed]
    assert {tensor.device.type for tensor in real} == {"cpu"}
    assert report.uninitialized == tuple(t.name for t in report.tensors)


# What a replay leaves without values: memory that nothing in the cell filled.


def test_replay_reports_what_the_cell_left_uninitialized():
    _, made, _, _ = build_twice(Raw)
    report = materialize(made)
    assert (report.uninitialized, report.names("replay")) == (("weight",), ("bias",))


UNINITIALIZED = {
    "masked_fill_": lambda: torch.empty(4).masked_fill_(torch.arange(4) > 1, 0.0),
    "index_fill_": lambda: torch.empty(4).index_fill_(0, torch.tensor([0]), 1.0),
    "copied": lambda: torch.zeros(3).copy_(torch.empty(3)),
}


@pytest.mark.parametrize("name", UNINITIALIZED)
def test_what_depends_on_raw_memory_is_marked(name):
    with record():
        made = holding(made=UNINITIALIZED[name]())
    assert materialize(made).uninitialized == ("made",)


def test_what_depends_on_raw_memory_of_an_earlier_recording_is_marked():
    with record():
        x = torch.empty(3)
    with record():
        made = holding(made=x * 2)
    assert materialize(made).uninitialized == ("made",)


GAPS = {
    "filled": lambda x: x.fill_(3),
    "copied": lambda x: x.copy_(torch.arange(6.0).view(2, 3)),
    "row by row": lambda x: (x[0].fill_(1), x[1].fill_(2)),
}


@pytest.mark.parametrize("name", GAPS)
@pytest.mark.parametrize("stride", [(5, 1), (8, 2), (1, 4)])
def test_gaps_between_elements_are_not_marked(name, stride):
    def build():
        x = torch.empty_strided((2, 3), stride)
        GAPS[name](x)
        return holding(made=x)

    real, made, _, _ = build_twice(build)
    assert materialize(made).uninitialized == ()
    assert_bit_equal(made, real)


def test_elements_beside_gaps_that_nothing_filled_are_marked():
    with record():
        x = torch.empty_strided((2, 3), (5, 1))
        x[0].fill_(1)
        made = holding(made=x)
    assert materialize(made).uninitialized == ("made",)


# The values that a replay gives a module; see ``conformance/constructions.py``, too.


def test_tensors_in_attributes_get_their_values():
    real, made, _, _ = build_twice(Masked)
    report = materialize(made)
    assert {tensor.filled_by for tensor in report.tensors} == {"replay"}
    assert_same_tensor(made.scale, real.scale)
    assert [t.tolist() for t in made.listed] == [t.tolist() for t in real.listed]
    assert made.mapped["deep"][0].tolist() == [7.0, 7.0]


# What a replay could silently get wrong: each was wrong once.


@torch.library.custom_op("meta_magic_tests::exp_like", mutates_args=())
def exp_like(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


@exp_like.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("meta_magic_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(x.shape)


@noisy.register_fake
def _(x):
    return torch.empty_like(x)


def grow_and_fill():
    made = torch.empty(2)
    made.resize_(4)
    made.fill_(5)
    made[:2].zero_()
    return holding(made=made)


def out_that_grows():
    made = torch.empty(2)
    torch.add(torch.ones(4), 1, out=made)
    made[:2].zero_()
    return holding(made=made)


def list_index():
    made = torch.zeros(4, 4)
    made[[0, 2]] = 1.0
    made[:, [1, 3]] = 2.0
    return holding(made=made, picked=torch.arange(9.0)[[1, 4, 1]])


def signed_zeros():
    return holding(
        first=torch.full((2,), 0j), second=torch.full((2,), complex(-0.0, -0.0))
    )


TRAPS = {
    "a fill after a tensor grew": grow_and_fill,
    "out= that grows": out_that_grows,
    "a list as an index": list_index,
    "complex zeros with signs": signed_zeros,
    "an operator named as if it read nothing": lambda: holding(
        made=torch.ops.meta_magic_tests.exp_like(torch.ones(3) * 2)
    ),
    "randint_like with a tensor": lambda: holding(
        made=torch.randint_like(torch.zeros(5), torch.tensor(10) * torch.tensor(10))
    ),
    "out= of a part": lambda: holding(
        made=torch.add(torch.ones(2), 1, out=torch.zeros(5)[1:3])
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_bit_equal(name, cache):
    real, made, _, _ = build_twice(TRAPS[name], cache=cache)
    assert materialize(made).uninitialized == ()
    assert_bit_equal(made, real)
    assert signs_of(made) == signs_of(real)


def signs_of(module):
    """Return the signs of complex buffers: -0.0 equals 0.0."""
    parts = [torch.view_as_real(t) for t in module.buffers() if t.is_complex()]
    return [torch.signbit(part).tolist() for part in parts]


def test_a_custom_operator_that_draws_is_refused_and_the_generator_left_alone():
    with record():
        made = holding(made=torch.ops.meta_magic_tests.noisy(torch.ones(3)))
    before = torch.get_rng_state()
    with pytest.raises(MaterializeError, match=r"noisy.*draws random numbers"):
        materialize(made)
    assert torch.equal(torch.get_rng_state(), before)
    assert made.made.is_meta


def test_no_method_of_what_a_module_holds_is_asked_for_its_tensors():
    with record():
        made = torch.nn.Linear(2, 3)
        made.listed = Listing([Pretending(), torch.ones(2)])
        made.kept = Keeping(a=torch.zeros(2))
    materialize(made)
    assert list.__getitem__(made.listed, 1).tolist() == [1, 1]
    assert dict.__getitem__(made.kept, "a").tolist() == [0, 0]
