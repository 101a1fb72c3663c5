"""What a replay could silently get wrong: each was wrong once."""

import pytest
import torch

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.modules import holding
from tests.unit.untouchable import Keeping, Listing, Pretending


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
