"""A module that was materialized is, to the bit, the one that the CPU builds directly.

Names, values, dtypes, strides, ties and generators are compared in
``tests.conformance.exactness``; importing torch's module database there calls
``torch.backends.disable_global_flags()`` for the process.
"""

import copy
import random

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import meta_magic as mm
from tests.conformance.architectures import (
    ARCHITECTURES,
    USUAL,
    find_inputs,
    is_known,
    make_build,
)
from tests.conformance.constructions import CONSTRUCTIONS
from tests.conformance.exactness import (
    build_both,
    compute_both,
    differences,
    read_tensors,
    seed,
)
from tests.conformance.torch_modules import MODULES
from tests.conformance.torch_modules import make_build as make_torch_build

pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")

each_construction = pytest.mark.parametrize("name", CONSTRUCTIONS)
each_usual_architecture = pytest.mark.parametrize("name", USUAL[::2])
each_architecture = pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if name not in USUAL[::2]]
)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", [*MODULES][::2])  # all: ``materialize_table``
def test_a_module_of_torch_is_the_one_that_the_cpu_builds(name):
    assert build_both(make_torch_build(name))[2] == []


@each_construction
def test_a_special_construction_is_the_one_that_the_cpu_runs(name):
    assert build_both(CONSTRUCTIONS[name])[2] == []


def check_architecture(name):
    """Compare an architecture with the direct one, and then what they compute."""
    if not is_known(name):
        pytest.skip("the installed transformers has no such architecture")
    direct, module, found = build_both(make_build(name))
    assert found == []
    inputs = find_inputs(direct.eval())
    if inputs is None:
        pytest.skip("built equal; no simple input is known")
    assert compute_both(module.eval(), direct, inputs) == []


@each_usual_architecture
def test_an_architecture_is_the_one_that_the_cpu_builds_and_computes_the_same(name):
    check_architecture(name)


@pytest.mark.sweep
@each_architecture
def test_a_rare_architecture_is_so_too(name):
    check_architecture(name)


def test_each_submodule_alone_gets_what_it_has_within_the_whole():
    build = make_build("bert")
    seed()
    direct = build()
    seed()
    with mm.record() as _:
        module = build()
    names = [name for name, child in module.named_modules() if not [*child.children()]]
    random.Random(0).shuffle(names)
    for name in names:
        part = module.get_submodule(name)
        mm.materialize(part)
        wanted = read_tensors(direct.get_submodule(name))
        assert differences(read_tensors(part), wanted) == []


def test_the_whole_is_equal_after_some_of_it_was_materialized_alone():
    build = make_build("gpt2")
    seed()
    direct = build()
    seed()
    with mm.record():
        module = build()
    mm.materialize(module.transformer.h[1])
    mm.materialize(module)
    assert differences(read_tensors(module), read_tensors(direct)) == []


def test_modules_of_one_recording_can_be_materialized_in_any_order():
    def build():
        return [nn.Linear(4, 4), nn.LSTM(4, 3), nn.Embedding(9, 4)]

    seed()
    direct = build()
    seed()
    with mm.record():
        modules = build()
    for module, wanted in zip(reversed(modules), reversed(direct), strict=True):
        mm.materialize(module)
        assert differences(read_tensors(module), read_tensors(wanted)) == []


# A module that was trained is, as constructed, the one that the CPU builds


pytest.importorskip("transformers")

N_STEPS = 2


def train(module: nn.Module, inputs: dict[str, object]) -> None:
    """Call a module in training mode, backward included, and step its parameters."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for _ in range(N_STEPS):
        leaves = tree_leaves(module.train()(**inputs))
        losses = [
            leaf.abs().sum()
            for leaf in leaves
            if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", USUAL[::4])
def test_an_architecture_that_was_trained_is_as_the_cpu_builds_it(name):
    if not is_known(name):
        pytest.skip("the installed transformers has no such architecture")
    build = make_build(name)
    seed()
    direct, next_drawn = build(), torch.rand(4)
    inputs = find_inputs(copy.deepcopy(direct).eval())
    if inputs is None:
        pytest.skip("no simple input is known")
    seed()
    with mm.record(assume="routing=uniform"):
        module = build()
        train(module, inputs)
    mm.materialize(module, state="constructed")
    assert torch.equal(torch.rand(4), next_drawn)
    met, wanted = read_tensors(module), read_tensors(direct)
    # A call may leave tensors as attributes that the construction does not have.
    assert differences({name: met[name] for name in wanted}, wanted) == []
