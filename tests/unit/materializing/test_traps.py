"""What a replay could silently get wrong: each was wrong once."""

import signal

import numpy as np
import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice


def holding(**tensors):
    """Return a module that holds tensors as parameters or buffers."""
    module = nn.Module()
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)
    return module


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


BUILDS = {
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
@pytest.mark.parametrize("name", BUILDS)
def test_a_replay_is_bit_equal(name, cache):
    real, made, _, _ = build_twice(BUILDS[name], cache=cache)
    assert materialize(made).uninitialized == ()
    assert_bit_equal(made, real)
    assert signs_of(made) == signs_of(real)


def signs_of(module):
    """Return the signs of complex buffers: -0.0 equals 0.0."""
    parts = [torch.view_as_real(t) for t in module.buffers() if t.is_complex()]
    return [torch.signbit(part).tolist() for part in parts]


# What is not initialized


UNINITIALIZED = {
    "in place": lambda: torch.empty(3).mul_(2),
    "masked_fill_": lambda: torch.empty(4).masked_fill_(torch.arange(4) > 1, 0.0),
    "index_fill_": lambda: torch.empty(4).index_fill_(0, torch.tensor([0]), 1.0),
    "copied": lambda: torch.zeros(3).copy_(torch.empty(3)),
    "permuted": lambda: torch.empty_permuted((3,), (0,)),
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


def test_memory_that_out_fills_is_not_marked():
    with record():
        made = holding(made=torch.add(torch.ones(3), 1, out=torch.empty(3)))
    assert materialize(made).uninitialized == ()


def test_filling_row_by_row_is_planned_in_no_time():
    with record():
        rows = torch.empty(3000, 64)
        for i in range(3000):
            rows[i] = 1.0
        made = holding(made=rows)
    assert materialize(made).uninitialized == ()
    assert made.made.sum() == 3000 * 64


# Real tensors


def test_a_real_tensor_that_was_not_drawn_is_not_touched():
    with record():
        made = nn.Linear(2, 2)
        with torch.device("cpu"):
            made.register_buffer("pos", torch.zeros(4))
        made.pos.numpy()[:] = 7
    report = materialize(made)
    assert made.pos.tolist() == [7] * 4
    assert report.names("kept") == ("pos",)


def test_a_real_tensor_from_a_file_is_no_hindrance(tmp_path):
    np.arange(4, dtype=np.float32).tofile(tmp_path / "values")
    with record():
        made = nn.Linear(2, 2)
        with torch.device("cpu"):
            values = torch.from_file(str(tmp_path / "values"), size=4)
        made.register_buffer("values", values)
    materialize(made)
    assert made.values.tolist() == [0, 1, 2, 3]


def test_a_real_tensor_written_by_numpy_is_said():
    with record():
        with torch.device("cpu"):
            values = torch.zeros(3)
        values.numpy()[:] = [1, 2, 3]
        made = holding(made=torch.empty(3).copy_(values))
    notes = materialize(made).notes
    assert any("written unseen by torch, as numpy does it" in note for note in notes)


def test_a_real_tensor_that_torch_alone_wrote_is_not_said():
    with record():
        with torch.device("cpu"):
            values = torch.zeros(3)
            values += 1
        made = holding(made=torch.empty(3).copy_(values))
    assert materialize(made).notes == ()
    assert made.made.tolist() == [1, 1, 1]


def test_a_module_with_a_real_sparse_tensor_can_be_materialized():
    real, made, _, _ = build_twice(lambda: nn.Linear(2, 2))
    made.register_buffer("sparse", torch.eye(3).to_sparse())
    assert materialize(made).names("kept") == ("sparse",)
    assert torch.equal(made.weight, real.weight)


# Changes outside


def test_a_change_of_one_of_two_tensors_on_a_storage_is_refused():
    with record():
        made = nn.Module()
        made.a = nn.Parameter(torch.zeros(2))
        with torch.no_grad():
            made.a.add_(1)
            made.a.add_(1)
        made.b = nn.Parameter(made.a.data)
    with torch.no_grad():
        made.b.add_(5)
    with pytest.raises(MaterializeError, match="changed in place outside"):
        materialize(made)


# Surroundings


def test_a_custom_operator_that_draws_is_refused_and_the_generator_left_alone():
    with record():
        made = holding(made=torch.ops.meta_magic_tests.noisy(torch.ones(3)))
    before = torch.get_rng_state()
    with pytest.raises(MaterializeError, match=r"noisy.*draws random numbers"):
        materialize(made)
    assert torch.equal(torch.get_rng_state(), before)
    assert made.made.is_meta


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_module_is_refused():
    with record():
        made = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(MaterializeError, match="scripted module"):
        materialize(made)


def test_within_a_transform_it_is_refused():
    _, made, _, _ = build_twice(lambda: nn.Linear(2, 2))

    def loss(x):
        materialize(made)
        return x.sum()

    with pytest.raises(MaterializeError, match="transforms"):
        torch.func.grad(loss)(torch.ones(2))
    assert made.weight.is_meta


def test_under_inference_mode_a_module_can_be_trained_afterwards():
    _, made, _, _ = build_twice(lambda: nn.Linear(2, 2))
    with torch.inference_mode():
        materialize(made)
    made(torch.ones(1, 2, requires_grad=True)).sum().backward()
    torch.optim.SGD(made.parameters(), lr=1).step()
    assert not made.weight.is_inference()


def test_an_interrupt_while_tensors_are_exchanged_leaves_the_module(monkeypatch):
    _, made, _, _ = build_twice(lambda: nn.Linear(2, 2))
    from meta_magic.materializing import install

    swap = install.swap

    def interrupted(*tensors):
        signal.raise_signal(signal.SIGINT)
        swap(*tensors)

    monkeypatch.setattr(install, "swap", interrupted)
    with pytest.raises(KeyboardInterrupt):
        materialize(made)
    assert [p.is_meta for p in made.parameters()] == [True, True]


# Recordings that go on from each other


def test_two_recordings_that_drew_the_same_numbers_are_named():
    torch.manual_seed(0)
    with record():
        first = nn.Linear(3, 3)
    with record():
        second = nn.Linear(3, 3)
    notes = materialize(nn.Sequential(first, second)).notes
    assert any("drew the same numbers: seed each" in note for note in notes)


def test_recordings_that_need_each_other_are_replayed_once_each():
    tensors = []
    for _ in range(2):
        with record():
            tensors.append(torch.ones(3))
    for _ in range(30):
        with record():
            tensors.append(tensors[-1] + tensors[-2])
    report = materialize(made := holding(made=tensors[20]))
    assert made.made.tolist() == [10946.0] * 3  # the 21st Fibonacci number
    assert report.n_operators == 21


def test_a_storage_that_two_recordings_go_on_from_is_each_ones_own():
    with record():
        base = torch.ones(2)
    with record():
        first = base * 2
        base.add_(1)
    with record():
        made = holding(made=first + base)
    materialize(made)
    assert made.made.tolist() == [4, 4]


def test_a_thousand_recordings_can_follow_each_other():
    with record():
        weight = torch.zeros(2)
    for _ in range(1000):
        with record():
            weight.add_(1)
    materialize(made := holding(made=weight))
    assert made.made.tolist() == [1000, 1000]
